"""Decodes answers of the Responses API.

The reference is "Streaming events". Some endpoints leave out events, or an event's item index; repeated
content is delivered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lightagentd.errors import ModelCutOff
from lightagentd.llm.dialects.dialect import count, text
from lightagentd.llm.dialects.typed_events import MOST_BLOCKS, TypedDecoder
from lightagentd.llm.endpoint.refusals import stream_error
from lightagentd.llm.protocol import Part, Reasoning, ReasoningDelta, TextDelta, ToolCall, Usage


@dataclass(kw_only=True)
class _Item:
    """An item of the answer that is being assembled."""

    index: int
    kind: str = ""
    id: str = ""
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    """The arguments of a call."""
    whole: str | None = None
    """The arguments of a call, once the endpoint has said all of them at once."""
    text: str = ""
    """Reasoning in words that the endpoint wants back, or the summary of what it encrypted."""
    encrypted: str = ""
    told: set[tuple[str, int]] = field(default_factory=set)
    """The parts whose text was delivered, by kind and index."""
    ended: bool = False


class ResponsesDecoder(TypedDecoder):
    """Assembles the events of one answer."""

    PROTOCOL = "Responses API"

    def __init__(self, model: str, on_usage: Callable[[Usage], None] | None = None) -> None:
        super().__init__(model, on_usage)
        self._items: dict[int, _Item] = {}
        self._by_id: dict[str, _Item] = {}
        self._last: _Item | None = None

    def _take(self, event: dict[str, Any]) -> list[Part] | None:
        kind = text(event.get("type"))
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                return self._text(event, text(event["delta"]), more=True)
            case "response.output_text.done":
                return self._text(event, text(event.get("text")))
            case "response.refusal.done":
                return self._text(event, text(event.get("refusal")))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._thought(event, kind)
            case "response.function_call_arguments.delta":
                self._item(event).pieces.append(text(event["delta"]))
            case "response.function_call_arguments.done":
                self._item(event).whole = text(event["arguments"])
            case "response.output_item.added":
                self._describe(self._begun(event), event["item"])
            case "response.output_item.done":
                return self._end(self._item(event), event["item"])
            case "response.created" | "response.in_progress" | "response.queued":
                self._take_usage(event.get("response") or {})
            case "response.completed" | "response.incomplete":
                return self._complete(event["response"], kind)
            case "response.failed" | "response.cancelled":
                self._fail(event["response"])
            case "error":
                raise stream_error(self._model, event.get("error") or event)
            case "" if event.get("object") == "response":
                # The answer in one piece, from servers that do not stream.
                return self._complete(event, kind)
            case _:
                return None
        return []

    def _item(self, event: dict[str, Any]) -> _Item:
        """The item that an event is about. Some endpoints give no index, but an id of the item or call."""
        index = event.get("output_index")
        item_id = text(event.get("item_id")) or text((event.get("item") or {}).get("id"))
        if index is None:
            known = self._by_id.get(item_id) if item_id else self._last
            index = len(self._items) if known is None else known.index
        item = self._items.get(int(index)) or self._new_item(int(index))
        if item_id and len(self._by_id) < 2 * MOST_BLOCKS:  # some endpoints have a new id in each event
            self._by_id[item_id] = item
        self._last = item
        return item

    def _begun(self, event: dict[str, Any]) -> _Item:
        """The item that begins. vLLM has sent one index for all items, so an ended item is not this one."""
        item, given = self._item(event), event["item"]
        ids = {text(given.get("id")), text(given.get("call_id"))} - {""}
        if not item.ended or not ids or ids & {item.id, item.call_id}:
            return item
        index, item.index = item.index, len(self._items) - MOST_BLOCKS  # after those that ended before it
        self._items[item.index] = item
        self._last = item = self._new_item(index)
        self._by_id |= dict.fromkeys(ids, item)
        return item

    def _new_item(self, index: int) -> _Item:
        if len(self._items) >= MOST_BLOCKS:
            raise ValueError("too many items")
        item = self._items[index] = _Item(index=index)
        return item

    def _text(self, event: dict[str, Any], said: str, *, more: bool = False) -> list[Part]:
        """Deliver a piece of text, or a whole part when none of its pieces was delivered."""
        part = ("text", int(event.get("content_index") or 0))
        return self._deliver(self._item(event), part, said, more=more)

    def _deliver(self, item: _Item, part: tuple[str, int], said: str, *, more: bool) -> list[Part]:
        if not said or (not more and part in item.told):
            return []
        self._tell(item, part)
        self._said = True
        return [TextDelta(said)]

    def _tell(self, item: _Item, part: tuple[str, int]) -> None:
        if len(item.told) >= MOST_BLOCKS:
            raise ValueError("too many parts")
        item.told.add(part)

    def _thought(self, event: dict[str, Any], kind: str) -> list[Part]:
        item, said = self._item(event), text(event["delta"])
        part = (kind, int(event.get("summary_index") or event.get("content_index") or 0))
        begins = bool(item.told) and part not in item.told
        self._tell(item, part)
        return [ReasoningDelta(f"\n\n{said}" if begins else said)] if said else []

    def _describe(self, item: _Item, given: dict[str, Any]) -> None:
        """Store the facts about an item."""
        item.kind, item.id = text(given.get("type")) or item.kind, text(given.get("id")) or item.id
        if item.kind == "function_call":
            item.call_id = text(given.get("call_id")) or item.call_id
            item.name = text(given.get("name")) or item.name
            self._by_id[item.call_id] = item

    def _end(self, item: _Item, given: dict[str, Any]) -> list[Part]:
        """Take a whole item; text that was not delivered yet is delivered now."""
        self._describe(item, given)
        item.ended = text(given.get("status")) != "incomplete"
        if item.kind == "function_call":
            item.whole = text(given.get("arguments")) or item.whole
        elif item.kind == "reasoning":
            item.encrypted = text(given.get("encrypted_content"))
            words = given.get("summary") if item.encrypted else given.get("content")
            item.text = "\n\n".join(text(part.get("text")) for part in words or [])
        elif item.kind == "message":
            said = [
                text(part.get("text")) or text(part.get("refusal")) for part in given.get("content") or []
            ]
            return [
                part
                for at, words in enumerate(said)
                for part in self._deliver(item, ("text", at), words, more=False)
            ]
        return []

    def _complete(self, response: dict[str, Any], kind: str) -> list[Part]:
        """The end: its reason, the usage, and the items that had no events."""
        self._take_usage(response)
        found: list[Part] = []
        output = response.get("output") or []
        for item, (index, given) in zip(self._known(output), enumerate(output), strict=True):
            if item is None:
                if given.get("type") == "message" and self._said:
                    continue
                item = self._new_item(index if index not in self._items else max(self._items) + 1)
            if not item.ended:
                found += self._end(item, given)
        if kind == "response.incomplete" or text(response.get("status")) == "incomplete":
            why = text((response.get("incomplete_details") or {}).get("reason"))
            self._reason = "content_filter" if why == "content_filter" else "length"
        self.over = True
        return found

    def _known(self, output: list[dict[str, Any]]) -> list[_Item | None]:
        """The items of a whole answer that events were about: by id, by index, or as the next of their kind,
        since some endpoints use other ids here than in the events. No call may count twice.
        """
        found: list[_Item | None] = []
        for given in output:
            ids = (text(given.get("id")), text(given.get("call_id")))
            found.append(next((self._by_id[one] for one in ids if one in self._by_id), None))
        told, left = {id(item) for item in found}, dict[str, list[_Item]]()
        for item in sorted(self._items.values(), key=lambda item: -item.index):
            if id(item) not in told:
                left.setdefault(item.kind, []).append(item)
        for at, given in enumerate(output):
            if found[at] is None:
                same = left.get(text(given.get("type"))) or left.get("")
                found[at] = same.pop() if same else None
        return found

    def _fail(self, response: dict[str, Any]) -> None:
        """Raise the error that the endpoint reports."""
        self._take_usage(response)
        if error := response.get("error"):
            raise stream_error(self._model, error)
        raise ModelCutOff(f"The endpoint of {self._model} ended the answer itself.", reached=True)

    def _take_usage(self, response: dict[str, Any]) -> None:
        if not (usage := response.get("usage")):
            return
        details = usage.get("input_tokens_details") or {}
        self._count(
            prompt=count(usage.get("input_tokens")),
            completion=count(usage.get("output_tokens")),
            cached=count(details.get("cached_tokens")),
        )

    def _blocks(self) -> Iterator[Reasoning | ToolCall]:
        items = sorted(self._items.values(), key=lambda item: item.index)
        for item in items:
            if item.kind == "reasoning" and (item.encrypted or item.text) and item.ended:
                yield Reasoning(model=self._model, text=item.text, data=item.encrypted, id=item.id)
            elif item.kind == "function_call":
                written = "".join(item.pieces) if item.whole is None else item.whole
                # A call that was cut off before its arguments must not run as one without arguments.
                cut = self._reason == "length" and item is items[-1]
                nothing = "{" if cut else "{}"
                yield ToolCall(
                    id=item.call_id or item.id,
                    name=item.name,
                    arguments=written if written.strip() else nothing,
                )
