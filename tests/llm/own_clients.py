"""Clients of an administrator's own: one as its author would write it, and some that do everything wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from lightagentd.errors import ModelRateLimited
from lightagentd.llm.protocol import (
    Finish,
    ModelSettings,
    Part,
    Reasoning,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)


class Echo:
    """Says what the last message said."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.name = f"{settings.provider}/{settings.model}"
        self.context_tokens = 100_000
        self.window_known = True
        self.closed = False

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        for word in request.messages[-1].content.split():
            yield TextDelta(f"{word} ")
        yield Finish(reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=2))

    async def close(self) -> None:
        self.closed = True


class Scripted(Echo):
    """Does what the test says."""

    script: ClassVar[Any] = None
    ended: ClassVar[list[str]] = []

    def stream(self, request: Request) -> Any:
        return type(self).script(request)


class ClosesBadly(Echo):
    async def close(self) -> None:
        raise RuntimeError("not closed")


class NeverMade(Echo):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        raise ValueError(f"the key was {settings.api_key}")


class Ends(Echo):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        raise SystemExit(3)


class NoStream:
    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings

    async def close(self) -> None: ...


class BlockingClose(Echo):
    def close(self) -> None:  # type: ignore[override]
        self.closed = True


def not_a_class(settings: ModelSettings) -> Echo:
    return Echo(settings)


async def everything(_request: Request) -> AsyncGenerator[Part, None]:
    yield TextDelta("lone \ud800 surrogate")
    yield Reasoning(model="somebody/else", text="hm", signature="s")
    yield ToolCall(id="call_1", name="proc_list", arguments="{}")
    yield Finish(reason="tool_calls")


async def garbage(part: object) -> AsyncGenerator[Any, None]:
    yield part
    yield Finish(reason="stop")


async def raising(err: BaseException) -> AsyncGenerator[Part, None]:
    yield TextDelta("x")
    raise err


async def limited(request: Request) -> AsyncGenerator[Part, None]:
    if request.messages:
        raise ModelRateLimited("not now", retry_after_s=3.0)
    yield TextDelta("")


async def silent(_request: Request) -> AsyncGenerator[Part, None]:
    try:
        await asyncio.Event().wait()
        yield TextDelta("never")
    finally:
        Scripted.ended.append("silent")


async def deaf(_request: Request) -> AsyncGenerator[Part, None]:
    """Keeps its cancellation to itself."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        yield TextDelta("I go on")
    yield Finish(reason="stop")


async def talks_on(_request: Request) -> AsyncGenerator[Part, None]:
    try:
        yield Finish(reason="stop")
        yield TextDelta("after the end")
    finally:
        Scripted.ended.append("talks_on")


async def unfinished(_request: Request) -> AsyncGenerator[Part, None]:
    yield TextDelta("x")
