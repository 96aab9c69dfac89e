"""Asks an agent without a person: calls that need an approval are refused, and the wait is limited.

When the time is over, or the program is told to end, the turn is cancelled, because nobody is left to read
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lightagentd import errors
from lightagentd.client.aio import AsyncClient
from lightagentd.errors import Cancelled, LightagentError, TimedOut

_T = TypeVar("_T")
CONNECT_TIMEOUT_S = 20.0
"""A daemon that starts because of the connection needs a moment."""
_CANCEL_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An agent's answer. `refused` names the calls that policy did not allow."""

    text: str
    session: str
    trace_id: str
    duration_ms: int
    refused: tuple[str, ...]


class Asker:
    """Asks over one daemon's socket. `session` is that of the last prompt, for error messages."""

    def __init__(self, socket: Path | None = None) -> None:
        self._socket = socket
        self.session = ""

    async def ask(
        self,
        trigger: str,
        data: dict[str, Any],
        *,
        correlation_id: str,
        timeout_s: float,
        agent: str | None = None,
        flow: str | None = None,
    ) -> Answer:
        """Have the daemon ask what the trigger says, and wait for the answer. `data` say what happened;
        `agent` is asked in place of the trigger's, or `flow` runs.

        Raises the error of the turn, TimedOut, and the errors of a client.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer(trigger, data, agent, flow, correlation_id)
        except TimeoutError as err:
            await self._cancel()
            raise TimedOut(
                f"The agent did not answer within {timeout_s:g} seconds; the turn was cancelled.",
                suggestion=f"What it did says: {self._look()}",
            ) from err
        except asyncio.CancelledError:
            await self._cancel()
            raise

    async def _answer(
        self, trigger: str, data: dict[str, Any], agent: str | None, flow: str | None, correlation_id: str
    ) -> Answer:
        refused: list[str] = []
        async with AsyncClient(self._socket, timeout_s=CONNECT_TIMEOUT_S) as client:
            replies = client.stream(
                "Triggers.Run", name=trigger, data=data, agent=agent, flow=flow, correlation_id=correlation_id
            )
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    event = reply["event"]
                    self.session = event.get("session") or self.session
                    match event["type"]:
                        case "tool_call" if event.get("decision") in (
                            "ask",
                            "deny",
                        ):  # nobody is there to be asked
                            refused.append(f"{event.get('tool')}.{event.get('action')}")
                        case "notice":
                            sys.stderr.write(f"<5>{event.get('message')}\n")  # for the journal, sd-daemon(3)
                        case "error":
                            raise self._error(event)
                        case "done":
                            return Answer(
                                text=str(event.get("text") or ""),
                                session=self.session,
                                trace_id=str(event.get("trace_id") or ""),
                                duration_ms=int(event.get("duration_ms") or 0),
                                refused=tuple(refused),
                            )
        raise LightagentError("The turn ended without a last event.", suggestion=f"Look: {self._look()}")

    def _error(self, event: dict[str, Any]) -> LightagentError:
        return errors.from_dict({**event, "suggestion": event.get("suggestion") or f"Look: {self._look()}"})

    def _look(self) -> str:
        return f"lactl sessions show {self.session}" if self.session else "journalctl -u lightagentd"

    async def _cancel(self) -> None:
        """Cancel the prompt. Errors are ignored, since the caller needs the reason for the cancellation."""
        if not self.session:
            return
        with contextlib.suppress(LightagentError):
            async with AsyncClient(self._socket, timeout_s=_CANCEL_TIMEOUT_S) as client:
                await client.call("Sessions.Cancel", session=self.session)


def run_until_told(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run something to its end, or until SIGTERM or SIGINT, which cancel it. Raises Cancelled then."""
    return asyncio.run(_until_told(work))


async def _until_told(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    task = asyncio.create_task(work())
    async with _cancelled_by_signals(task):
        await asyncio.wait([task])
    if task.cancelled():
        raise Cancelled("It was told to end before there was an answer; the turn was cancelled.")
    return task.result()


@contextlib.asynccontextmanager
async def _cancelled_by_signals(task: asyncio.Task[Any]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
