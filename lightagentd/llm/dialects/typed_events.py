"""The base of decoders for streams whose events are objects with a `type`.

Events of unknown types are ignored, since the APIs add types as they grow. An invalid event of a known type
makes the whole answer ModelGarbled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from lightagentd.errors import ModelCutOff, ModelFiltered, ModelGarbled
from lightagentd.events.model import new_id
from lightagentd.llm.dialects.dialect import MOST_TOKENS, from_json
from lightagentd.llm.endpoint.refusals import printable, stream_error
from lightagentd.llm.protocol import Finish, Part, Reasoning, ToolCall, Usage

_SHOWN_CHARS = 200
_MOST_CALLS = 1000
"""More calls in one answer than anybody means."""
MOST_BLOCKS = 10_000
"""More blocks or items, or parts of one, than any answer has."""


class TypedDecoder(ABC):
    """Assembles the typed events of one answer."""

    PROTOCOL = ""
    """The name of the protocol."""

    def __init__(self, model: str, on_usage: Callable[[Usage], None] | None = None) -> None:
        self._model = model
        self._on_usage = on_usage
        self._usage: Usage | None = None
        self._any = False
        """Whether there was an event of a known type."""
        self.over = False
        self._reason = ""
        self._said = False
        """Whether there was any text."""

    def feed(self, data: str) -> list[Part]:
        """The parts in the data of one event. Raises ModelError."""
        if data.strip() in ("", "[DONE]"):
            return []
        try:
            event = from_json(data)
        except (ValueError, RecursionError) as err:
            raise self._garbled("something that is not JSON", data) from err
        if not isinstance(event, dict):
            raise self._garbled("something that is no event", data)
        try:
            if "type" not in event and event.get("error"):
                raise stream_error(self._model, event)
            found = self._take(event)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as err:
            raise self._garbled("something that is not part of an answer", data) from err
        self._any = self._any or found is not None
        return found or []

    def _garbled(self, what: str, data: str) -> ModelGarbled:
        return ModelGarbled(
            f"The stream of {self._model} holds {what}: {data[:_SHOWN_CHARS]!r}.",
            suggestion=f"Check base_url and kind: what answers must speak the {self.PROTOCOL}.",
            reached=self._any,
        )

    @abstractmethod
    def _take(self, event: dict[str, Any]) -> list[Part] | None:
        """The parts in one event; None for an event of an unknown type.

        Raises ModelError, and for an invalid event AttributeError, LookupError, TypeError, ValueError,
        OverflowError or RecursionError.
        """

    @abstractmethod
    def _blocks(self) -> Iterator[Reasoning | ToolCall]:
        """The reasoning that goes back to the model, and the calls in their order."""

    def finish(self, content_type: str) -> Iterator[Part]:
        """The reasoning, the calls, and the end. Raises ModelError."""
        if not self._any:
            raise ModelGarbled(
                f"The model {self._model} answered with nothing that is a stream of the {self.PROTOCOL} "
                f"(content type {printable(content_type[:100]) or 'missing'}).",
                suggestion=f"Check base_url and kind: what answers must speak the {self.PROTOCOL}.",
            )
        if not self.over:
            raise ModelCutOff(
                f"The answer of {self._model} broke off before its end.",
                suggestion="Try again, or choose another model.",
                reached=True,
            )
        blocks = list(self._blocks())
        calls = [block for block in blocks if isinstance(block, ToolCall)]
        if len(calls) > _MOST_CALLS:
            raise ModelGarbled(
                f"The answer of {self._model} has {len(calls)} calls, which nobody can mean.",
                suggestion="Try again, or choose another model.",
                reached=True,
            )
        if self._reason == "content_filter" and not self._said and not calls:
            raise ModelFiltered(
                f"The model {self._model} gave no answer: its endpoint's rules about content forbid one.",
                suggestion="Put the request in other words, or choose another model.",
                reached=True,
            )
        used: set[str] = set()
        for block in blocks:
            yield _with_new_id(block, used) if isinstance(block, ToolCall) else block
        yield Finish(reason=self._reason or ("tool_calls" if calls else "stop"), usage=self._usage)

    def _count(self, *, prompt: int, completion: int, cached: int) -> None:
        """Store the usage so far, and report it at once. Zeros are of a server that does not count."""
        if not (prompt or completion):
            return
        self._usage = Usage(
            prompt_tokens=min(prompt, MOST_TOKENS), completion_tokens=completion, cached_tokens=cached
        )
        if self._on_usage is not None:
            self._on_usage(self._usage)


def _with_new_id(call: ToolCall, used: set[str]) -> ToolCall:
    """The call, with a new id if the endpoint gave none, or a duplicate."""
    if call.id and call.id not in used:
        used.add(call.id)
        return call
    made = new_id("call")
    used.add(made)
    return ToolCall(id=made, name=call.name, arguments=call.arguments)
