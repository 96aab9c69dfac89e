"""One chat: the open session, the typed lines, and their effects.

A conversation owns its tasks: the watch of the session, the task that processes the typed lines in order, and
a clock for the times on the screen. An answer to a question does not wait for the lines before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from lightagentd.cli.chatting.catching_up import CatchingUp
from lightagentd.cli.chatting.completion import Completions
from lightagentd.cli.chatting.daemon import Daemon, Watch
from lightagentd.cli.chatting.questions import Questions
from lightagentd.cli.chatting.screen import Screen
from lightagentd.cli.chatting.startup import Opening, open_latest
from lightagentd.cli.chatting.transcript import Transcript
from lightagentd.cli.chatting.typed import Typed
from lightagentd.cli.output import cell
from lightagentd.cli.terminal import DIM, clean, style
from lightagentd.errors import DaemonUnreachable, LightagentError, ShuttingDown

_TICK_S = 0.5


class Conversation:
    """A chat with one agent. `session` is the id of the one that is open."""

    def __init__(self, screen: Screen, daemon: Daemon, agent: str) -> None:
        self.screen = screen
        self.daemon = daemon
        self.agent = agent
        self.questions = Questions(screen)
        self.attached: list[dict[str, str]] = []
        """What goes with the next prompt."""
        self.deleting = ""
        """The session that is being deleted here."""
        self.status = 0
        """The exit status: that of the last turn where lines come from a program."""
        self._completions = Completions(daemon)
        self._transcript = Transcript(screen, self.questions, self._turn_ended)
        self._catching_up = CatchingUp(daemon, "")
        self._tasks: asyncio.TaskGroup
        self._spawned: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._is_lost = False
        self.leaving = asyncio.Event()
        self._typed = Typed(self)

    @property
    def session(self) -> str:
        return str(self.info["id"])

    @property
    def info(self) -> dict[str, Any]:
        """The session as the daemon described it last."""
        return self._transcript.session

    async def run(self, opening: Opening) -> int:
        """Chat until the person leaves or the input ends; gives the exit status."""
        catching_up = await self._prepared(opening)
        async with asyncio.TaskGroup() as self._tasks:
            self._begin(opening, catching_up)
            for work in (self._typed.work(), self._clock(), self._typed.read()):
                self.spawn(work)
            await self.leaving.wait()
            for task in [*self._spawned]:
                task.cancel()
        return self.status

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the chat at the latest."""
        task = self._tasks.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    # The view of the screen

    def prompt(self) -> str:
        marks = [mark for mark in (self.info.get("mode"),) if mark not in (None, "normal")]
        marks += ["paused"] if self.info.get("paused") else []
        marks += ["away"] if self._is_lost else []
        marks += [f"{len(self.attached)} attached"] if self.attached else []
        return f"{cell(self.agent)} ({', '.join(marks)})> " if marks else f"{cell(self.agent)}> "

    def live(self, columns: int, rows: int) -> list[str]:
        return self._transcript.live(columns, rows)

    def completions(self, before: str) -> Iterable[tuple[str, str]]:
        return self._completions.of(before)

    def interrupted(self) -> None:
        self.spawn(self._typed.interrupt())

    # For the commands

    def say(self, *lines: str) -> None:
        """Show lines of our own."""
        self._transcript.lines([clean(line) for line in lines])

    def show(self, lines: Iterable[str]) -> None:
        """Show lines that are safe already and may be coloured."""
        self._transcript.lines(list(lines))

    @property
    def transcript(self) -> Transcript:
        return self._transcript

    async def open(self, opening: Opening) -> None:
        """Open another session. Raises the errors of the client; then the former session stays."""
        catching_up = await self._prepared(opening)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        self._begin(opening, catching_up)

    async def _prepared(self, opening: Opening) -> CatchingUp:
        catching_up = CatchingUp(self.daemon, opening.session["id"])
        await catching_up.begin()
        return catching_up

    def _begin(self, opening: Opening, catching_up: CatchingUp) -> None:
        self.questions.close_turn()
        self.agent = opening.session["agent"]
        self._transcript = Transcript(self.screen, self.questions, self._turn_ended)
        self._transcript.session = opening.session
        self._catching_up = catching_up
        self._is_lost = False
        if self.screen.is_terminal:
            self.show([style(line, DIM) for line in opening.lines])
            catching_up.show_last(self._transcript)
        watch = Watch(
            self.daemon,
            self.session,
            opened=self._opened,
            happened=self._happened,
            lost=self._lost,
            gone=self._gone,
        )
        self._watching = self.spawn(watch.run())
        self.refresh_names()

    def refresh_names(self) -> None:
        """Have the names for completion fetched again."""
        self.spawn(self._completions.refresh())

    def leave(self) -> None:
        """End the chat; a running turn goes on."""
        if self._transcript.running and self.screen.is_terminal:
            self.say(f"The turn goes on. Come back with: lactl chat {self.agent} --session {self.session}")
        self.leaving.set()

    async def cancel(self) -> None:
        """Cancel the running turn and the waiting prompts."""
        await self.daemon.call("Sessions.Cancel", session=self.session)

    # The watch

    async def _opened(self, session: dict[str, Any]) -> None:
        if self._is_lost:
            self._is_lost = False
            self._transcript.note("The daemon is back.")
        self._transcript.opened(session)
        await self._catching_up.go_on(self._transcript)
        if session["state"] == "running":
            self._transcript.joins()
        if session["state"] != "waiting":
            self.questions.close_turn()
        if session["interrupted"]:
            self._transcript.interrupted(session["interrupted"])
        if not self._transcript.running:
            self.screen.ready()

    async def _happened(self, event: dict[str, Any]) -> None:
        if self._transcript.needs_history(event):
            await self._catching_up.go_on(self._transcript)
        self._transcript.show(event)
        if event["type"] in ("approval_requested", "input_requested"):
            self._typed.changed.set()

    def _lost(self, problem: LightagentError | None) -> None:
        self._transcript.lost()
        if self._is_lost:
            return
        self._is_lost = True
        if problem is None or isinstance(problem, DaemonUnreachable | ShuttingDown):
            text = "The daemon has stopped; waiting for it to come back."
        else:
            text = f"{problem.message} Trying again."
        self.screen.warn(text)

    async def _gone(self) -> None:
        if self.session != self.deleting:
            self.screen.warn(f"The session {self.session} was deleted.")
            self.spawn(self._reopen())

    async def _reopen(self) -> None:
        try:
            await self.open(await open_latest(self.daemon, self.agent))
        except LightagentError as err:
            self.screen.warn(err.message, err.suggestion)

    def _turn_ended(self, trace_id: str, error: LightagentError | None) -> None:
        self._typed.turn_ended(trace_id, error)

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self._transcript.progress.trace:
                self._transcript.tick()
