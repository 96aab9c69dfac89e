"""A chat's access to the daemon: calls on connections of their own, and the watch of a session.

When polkit wants a password for a call, the blocking client repeats it and lets polkit ask on the terminal,
which the screen gives up meanwhile. A watch survives restarts of the daemon and broken connections, until it
is cancelled or the session is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from lightagentd.cli.options import CALL_TIMEOUT_S, Settings
from lightagentd.client.aio import AsyncClient
from lightagentd.errors import AuthorizationRequired, DaemonUnreachable, LightagentError, SessionNotFound

_T = TypeVar("_T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""How long a watch waits before it connects again; the pause doubles each time."""


class GivesTerminal(Protocol):
    """Gives up the terminal for the length of a blocking function."""

    async def suspended(self, function: Callable[[], _T]) -> _T: ...


class Daemon:
    """Calls of the daemon. `screen` is the conversation's."""

    def __init__(self, settings: Settings, screen: GivesTerminal) -> None:
        self._settings = settings
        self._screen = screen

    def client(self, timeout_s: float | None = CALL_TIMEOUT_S) -> AsyncClient:
        """A client of the socket that the command line names, not yet connected."""
        return AsyncClient(self._settings.place, timeout_s=timeout_s)

    async def call(self, method: str, /, **parameters: Any) -> Any:
        """Make a call and return the one parameter of its reply, or None. Raises the errors of the client."""
        try:
            async with self.client() as client:
                reply = await client.call(method, **parameters)
        except AuthorizationRequired:
            if not self.may_ask:
                raise
            return await self._screen.suspended(lambda: self._settings.call(method, **parameters))
        return next(iter(reply.values()), None)

    async def asked(self, event: dict[str, Any]) -> dict[str, Any]:
        """As `AsyncClient.asked`."""
        if event["type"] != "approval_requested":
            return event
        return await self.client().asked(event)

    async def answer(self, method: str, found: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        """As `Settings.answer`, for what was shown."""
        try:
            async with self.client() as client:
                if method == "Approvals.Approve":
                    return await client.approve(found, **parameters)
                return await client.deny(found, parameters.get("note"))
        except AuthorizationRequired:
            if not self.may_ask:
                raise
            return await self._screen.suspended(lambda: self._settings.answer(method, found, **parameters))

    async def prompt(self, **parameters: Any) -> str:
        """Prompt, and return the turn's trace id once the prompt is stored. The watch shows the turn.

        Raises the daemon's error; the prompt was not accepted then.
        """

        try:
            async with (
                asyncio.timeout(CALL_TIMEOUT_S),
                self.client() as client,
                aclosing(client.stream("Sessions.Prompt", **parameters)) as replies,
            ):
                reply = await anext(replies)
        except AuthorizationRequired:
            if not self.may_ask:
                raise
            reply = await self.authorized("Sessions.Prompt", **parameters)
        except (TimeoutError, StopAsyncIteration) as err:
            raise DaemonUnreachable(
                "The daemon did not say whether it took the prompt.",
                suggestion="Look at its journal: journalctl -u lightagentd",
            ) from err
        return str(reply["event"]["trace_id"])

    async def authorized(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """The first reply of a streaming method, with polkit asking on the terminal whether it is allowed."""

        def asking() -> dict[str, Any]:
            with self._settings.client() as client:
                return next(iter(client.stream(method, **parameters)))

        return await self._screen.suspended(asking)

    @property
    def may_ask(self) -> bool:
        """Whether polkit may ask on the terminal; on another host it cannot."""
        return self._settings.ask_password and not self._settings.host

    def uid(self) -> int:
        """The user that the daemon sees."""
        return self._settings.uid()

    async def stream(self, method: str, /, **parameters: Any) -> AsyncGenerator[dict[str, Any], None]:
        """The parameters of each reply of a streaming method; raises as the client."""
        async with (
            self.client() as client,
            aclosing(client.stream(method, **parameters)) as replies,
        ):
            async for reply in replies:
                yield reply


class Watch:
    """A watched session. `opened` is awaited with the session whenever the watch begins, also again;
    `happened` with each event after that. `lost` is called when the watch breaks. `gone` is awaited when the
    session no longer exists, which ends the watch.
    """

    def __init__(
        self,
        daemon: Daemon,
        session: str,
        *,
        opened: Callable[[dict[str, Any]], Awaitable[None]],
        happened: Callable[[dict[str, Any]], Awaitable[None]],
        lost: Callable[[LightagentError | None], None],
        gone: Callable[[], Awaitable[None]],
    ) -> None:
        self._daemon = daemon
        self._session = session
        self._opened, self._happened, self._lost, self._gone = opened, happened, lost, gone

    async def run(self) -> None:
        """Watch until the session is gone or the task is cancelled."""
        pause_s, has_asked = FIRST_PAUSE_S, False
        while True:
            problem: LightagentError | None = None
            try:
                async for begun in self._once():
                    pause_s = FIRST_PAUSE_S if begun else pause_s
            except SessionNotFound:
                await self._gone()
                return
            except AuthorizationRequired as err:
                problem = err
                if self._daemon.may_ask and not has_asked:
                    has_asked = True
                    problem = await self._authorize()
                    if problem is None:
                        continue
            except LightagentError as err:
                problem = err
            self._lost(problem)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _authorize(self) -> LightagentError | None:
        """Have polkit ask once; it keeps the answer for a while. Returns the problem, if any."""
        try:
            await self._daemon.authorized("Sessions.Watch", session=self._session)
        except LightagentError as err:
            return err
        return None

    async def _once(self) -> AsyncGenerator[bool, None]:
        """The events of one connection, until the daemon stops. Raises the errors of the client."""
        is_open = False
        async with aclosing(self._daemon.stream("Sessions.Watch", session=self._session)) as replies:
            async for reply in replies:
                event = reply.get("event")
                if event is None:
                    return
                if event["type"] == "session" and event.get("session_info") is None:
                    raise SessionNotFound(f"The session {self._session} was deleted.")
                if not is_open and event["type"] == "session":
                    is_open = True
                    await self._opened(event["session_info"])
                else:
                    await self._happened(event)
                yield is_open
