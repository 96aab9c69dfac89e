"""Loads and calls a model client of the administrator's own (`module:Class`), and checks all that it returns.

`protocol.ModelClient` documents the class for authors. Unlike a store of memories it has no thread of its
own: a stream of tokens through a second loop would cost more than the call. So it must not block, and it runs
with all the rights of the daemon. Any exception it raises ends the call as a ModelError; what it yields is
checked part by part.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from lightagentd.errors import ConfigError, LightagentError, ModelCutOff, ModelError, ModelTimedOut
from lightagentd.llm.circuit import endpoint_of
from lightagentd.llm.protocol import (
    ASSUMED_WINDOW,
    Finish,
    ModelClient,
    ModelSettings,
    Part,
    Reasoning,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)
from lightagentd.llm.retry import RetrySettings

_log = logging.getLogger(__name__)

MOST_CHARS = 16 << 20
"""How long all parts of one answer may be together."""
END_TIMEOUT_S = 5.0
"""How long it may take to close a stream, and to close at all."""
_MOST_PARTS = 4_000_000
_MOST_TOKENS = 10**9
_NAME_CHARS = 256
_REASONS = ("stop", "length", "tool_calls", "content_filter")


class OwnClient:
    """Implements `ModelClient` over a class that is named `module:Class`."""

    def __init__(self, named: str, settings: ModelSettings) -> None:
        """Imports the module and makes the class. Raises ConfigError."""
        self.name = f"{settings.provider}/{settings.model}"
        self._named = named
        self._settings = settings
        self._client = _make(named, settings)
        window = settings.context_tokens or getattr(self._client, "context_tokens", 0)
        if isinstance(window, bool) or not isinstance(window, int) or window < 0:
            raise _wrong(named, settings, "its context_tokens is not a number of tokens")
        self.context_tokens = window or ASSUMED_WINDOW
        self.window_known = window > 0
        self.endpoint = endpoint_of(self._client)
        self.retry = RetrySettings(max_retries=settings.max_retries, max_retry_s=settings.max_retry_s)

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """One model call. Raises only ModelError, whatever the client does."""
        settings, check = self._settings, _Check(self.name)
        loop = asyncio.get_running_loop()
        end = loop.time() + settings.total_timeout_s
        answer = self._begin(dataclasses.replace(request, on_usage=_checked_usage(request)))
        try:
            while check.finish is None:
                wait_s = max(0.0, min(settings.idle_timeout_s, end - loop.time()))
                part = await self._next(answer, wait_s)
                if part is _END:
                    raise ModelCutOff(f"The client of {self.name} ended its answer without a Finish.")
                try:
                    checked = check.part(part)
                except ValueError as err:
                    raise self._failed(f"it gave back {err}") from None
                yield checked
        finally:
            await self._let_go(answer)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._client.close()
        except asyncio.CancelledError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt):  # noqa: BLE001 - nothing depends on it any more
            _log.exception("the model client %s does not close as it should", self._named)

    def _begin(self, request: Request) -> AsyncIterator[object]:
        try:
            answer: Any = self._client.stream(request)
        except ModelError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as err:
            raise self._raised(err) from err
        if inspect.iscoroutine(answer):
            answer.close()
        if not isinstance(answer, AsyncIterator):
            raise self._failed("its stream is no async generator")
        return answer

    async def _next(self, answer: AsyncIterator[object], wait_s: float) -> object:
        """The next part, or `_END`. Raises ModelError."""
        own = asyncio.current_task()
        cancels = own.cancelling() if own is not None else 0
        waiting = asyncio.timeout(wait_s)
        try:
            async with waiting:
                part = await anext(answer, _END)
            if own is not None and own.cancelling() > cancels:
                raise asyncio.CancelledError  # which the client swallowed
            return part
        except ModelError:
            raise
        except asyncio.CancelledError:
            if own is None or own.cancelling() > cancels:
                raise
            raise self._failed("it cancelled itself") from None
        except TimeoutError as err:
            if not waiting.expired():
                raise self._raised(err) from err
            raise ModelTimedOut(
                f"The client of {self.name} did not answer in time.",
                suggestion="Try again, or choose another model.",
                reached=True,
            ) from None
        except (Exception, SystemExit, KeyboardInterrupt) as err:
            raise self._raised(err) from err

    async def _let_go(self, answer: AsyncIterator[object]) -> None:
        """Close the generator, so that it releases its connection."""
        aclose = getattr(answer, "aclose", None)
        if aclose is None:
            return
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await aclose()
        except asyncio.CancelledError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt):  # noqa: BLE001 - the call is over all the same
            _log.exception("the model client %s does not end its stream as it should", self._named)

    def _raised(self, err: BaseException) -> ModelError:
        said = f": {err.message}" if isinstance(err, LightagentError) else ""
        _log.error("the model client %s failed", self._named, exc_info=err)
        return self._failed(f"{type(err).__name__}{said}")

    def _failed(self, why: str) -> ModelError:
        return ModelError(
            f"The client of {self.name} ({self._named}) failed: {why.rstrip('.')}.",
            suggestion="The journal says more; ask an administrator to look.",
            reached=True,
        )


class _End:
    """Marks the end of a stream."""


_END = _End()


class _Check:
    """Checks the parts of one answer."""

    def __init__(self, name: str) -> None:
        self.finish: Finish | None = None
        self._name = name
        self._chars = self._parts = 0

    def part(self, part: object) -> Part:
        """The part, with storable text. Raises ValueError for an invalid part."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise ValueError("more parts than an answer has")
        if type(part) is TextDelta:
            return TextDelta(self._text(part.text))
        if type(part) is ReasoningDelta:
            return ReasoningDelta(self._text(part.text))
        if type(part) is ToolCall:
            if not part.id or not part.name:
                raise ValueError("a tool call without an id or a name")
            called = ToolCall(
                id=self._text(part.id), name=self._text(part.name), arguments=self._text(part.arguments)
            )
            if max(len(called.id), len(called.name)) > _NAME_CHARS:
                raise ValueError(f"a tool call with an id or a name of more than {_NAME_CHARS} characters")
            return called
        if type(part) is Reasoning:
            texts = {name: self._text(getattr(part, name)) for name in ("text", "signature", "data", "id")}
            return Reasoning(model=self._name, **texts)
        if type(part) is Finish:
            self.finish = Finish(reason=_reason(part.reason), usage=_usage(part.usage))
            return self.finish
        raise ValueError(f"what is no part of an answer: {type(part).__name__[:40]}")

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{type(value).__name__[:40]} where text should be")  # noqa: TRY004
        self._chars += len(value)
        if self._chars > MOST_CHARS:
            raise ValueError(f"more than {MOST_CHARS >> 20} million characters")
        # A lone surrogate cannot be stored.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or reason not in _REASONS:
        raise ValueError(f"a Finish whose reason is none of {', '.join(_REASONS)}")
    return reason


def _usage(usage: object) -> Usage | None:
    if usage is None:
        return None
    if type(usage) is not Usage:
        raise ValueError(f"{type(usage).__name__[:40]} where a Usage should be")
    for count in (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST_TOKENS:
            raise ValueError("a Usage whose numbers are no numbers of tokens")
    return usage


def _checked_usage(request: Request) -> Any:
    """Check the usage that the client reports, too; a ValueError goes to the client."""
    told = request.on_usage
    if told is None:
        return None

    def on_usage(usage: Usage) -> None:
        checked = _usage(usage)
        if checked is not None:
            told(checked)

    return on_usage


def _make(named: str, settings: ModelSettings) -> ModelClient:
    """Import the module and make the class. Raises ConfigError."""
    module, _, cls = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), cls, None)
        if not isinstance(found, type):
            raise _wrong(named, settings, f"the module {module} has no class {cls}")
        lacking = [method for method in ("stream", "close") if not callable(getattr(found, method, None))]
        if lacking:
            raise _wrong(named, settings, f"it lacks the methods {', '.join(lacking)}")
        if not inspect.iscoroutinefunction(found.close):  # type: ignore[attr-defined]
            raise _wrong(named, settings, "its method close is not async")
        made: ModelClient = found(settings)
    except ConfigError:
        raise
    except ModuleNotFoundError as err:
        raise _wrong(named, settings, f"there is no module {err.name}") from err
    except (Exception, SystemExit, KeyboardInterrupt) as err:
        _log.exception("the model client %s cannot be made", named)
        raise _wrong(named, settings, f"{type(err).__name__} when it is imported and made") from err
    return made


def _wrong(named: str, settings: ModelSettings, why: str) -> ConfigError:
    key = f"models.providers.{settings.provider}.kind"
    return ConfigError(
        f"{key}: {named} cannot be used: {why}.",
        suggestion="Name a class that the daemon can import and that has what"
        " lightagentd.llm.protocol.ModelClient says; its module must be on the daemon's PYTHONPATH.",
        field=key,
    )
