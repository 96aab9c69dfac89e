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
from lightagentd.cli.terminal import DIM, clean, is_plain, style
from lightagentd.errors import DaemonUnreachable, LightagentError, ShuttingDown

_TICK_S = 0.5
_TITLE_CHARS = 40


class Conversation:
    """A chat with one agent. `session` is the id of the one that is open."""

    def __init__(self, screen: Screen, daemon: Daemon, agent: str) -> None:
        self.screen = screen
        self.daemon = daemon
        self.agent = agent
        self.questions = Questions(screen)
        self.attached: list[dict[str, str]] = []
        """What goes with the next prompt."""
        self.sent: tuple[str, list[dict[str, str]]] | None = None
        """The last prompt of this session that was sent here, and what was attached to it."""
        self._window, self._window_of = 0, ("", "")
        """How many tokens the window has, 0 when that is not known; and of which session and model."""
        self.deleting = ""
        """The session that is being deleted here."""
        self.status = 0
        """The exit status: that of the last turn where lines come from a program."""
        self._completions = Completions(daemon)
        self.transcript = Transcript(screen, self.questions, self._turn_ended)
        self._catching_up = CatchingUp(daemon, "")
        self._tasks: asyncio.TaskGroup
        self._spawned: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._is_lost = False
        self.leaving = asyncio.Event()
        self.typed = Typed(self)

    @property
    def session(self) -> str:
        return str(self.info["id"])

    @property
    def info(self) -> dict[str, Any]:
        """The session as the daemon described it last."""
        return self.transcript.session

    async def run(self, opening: Opening) -> int:
        """Chat until the person leaves or the input ends; gives the exit status."""
        catching_up = await self._prepared(opening)
        async with asyncio.TaskGroup() as self._tasks:
            self._begin(opening, catching_up)
            for work in (self.typed.work(), self._clock(), self.typed.read()):
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
        words = f" ({', '.join(marks)})" if marks else ""
        return f"{cell(self.agent)}{words}{': ' if is_plain() else '> '}"

    def below(self) -> str:
        shown, queued = self.transcript, len(self.transcript.progress.queued)
        words = [cell(self.agent), cell(self.info.get("title") or "new session")[:_TITLE_CHARS]]
        words += [cell(model)] if (model := self.info.get("model") or shown.model) else []
        if shown.tokens:
            part = (
                f" of {self._window / 1000:.0f}k ({shown.tokens / self._window:.0%})" if self._window else ""
            )
            words.append(f"{shown.tokens / 1000:.1f}k{part} tokens")
        words += [f"{queued} queued"] if queued else []
        words += ["waits for you"] if shown.progress.waiting else []
        return " · ".join(words)

    def live(self, columns: int, rows: int) -> list[str]:
        return self.transcript.live(columns, rows)

    def completions(self, before: str) -> Iterable[tuple[str, str]]:
        return self._completions.of(before)

    def interrupted(self) -> None:
        self.spawn(self.typed.interrupt())

    # For the commands

    def say(self, *lines: str) -> None:
        """Show lines of our own."""
        self.transcript.lines([clean(line) for line in lines])

    def show(self, lines: Iterable[str]) -> None:
        """Show lines that are safe already and may be coloured."""
        self.transcript.lines(list(lines))

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
        self.transcript = Transcript(self.screen, self.questions, self._turn_ended)
        self.transcript.session = opening.session
        self._catching_up = catching_up
        self._is_lost, self.sent = False, None
        if self.screen.is_terminal:
            self.show([style(line, DIM) for line in opening.lines])
            catching_up.show_last(self.transcript)
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
        if self.transcript.running and self.screen.is_terminal:
            self.say(f"The turn goes on. Come back with: lactl chat {self.agent} --session {self.session}")
        self.leaving.set()

    # The watch

    async def _opened(self, session: dict[str, Any]) -> None:
        if self._is_lost:
            self._is_lost = False
            self.transcript.note("The daemon is back.")
        self.transcript.opened(session)
        await self._catching_up.go_on(self.transcript)
        if session["state"] == "running":
            self.transcript.joins()
        if session["state"] != "waiting":
            self.questions.close_turn()
        if session["interrupted"]:
            self.transcript.interrupted(session["interrupted"])
        if self.screen.can_redraw:
            self.spawn(self._look())
        if not self.transcript.running:
            self.screen.ready()

    async def _happened(self, event: dict[str, Any]) -> None:
        if self.transcript.needs_history(event):
            await self._catching_up.go_on(self.transcript)
        event = await self.daemon.asked(event)
        self.transcript.show(event)
        if event["type"] == "started" and self.screen.can_redraw:
            self.spawn(self._look())
        if event["type"] in ("approval_requested", "input_requested"):
            self.typed.changed.set()
            self.screen.alert(self.transcript.progress.took_s)

    def _lost(self, problem: LightagentError | None) -> None:
        self.transcript.lost()
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

    async def _look(self) -> None:
        """Look at what the status line tells, where no event did."""
        try:
            if not self.info.get("title"):
                found = await self.daemon.call("Sessions.Get", session=self.session)
                self.transcript.session = self.info | {"title": found["title"]}
            if self._window_of != (asked := (self.session, self.info.get("model") or self.transcript.model)):
                context = await self.daemon.call("Sessions.Context", session=self.session)
                self._window_of, self._window = asked, context["window_tokens"]
                self.transcript.model = self.transcript.model or context["model"]
        except LightagentError:
            return  # whatever fails is told where it matters
        self.screen.refresh()

    def _turn_ended(self, trace_id: str, error: LightagentError | None) -> None:
        self.screen.alert(self.transcript.took_s)
        if self.screen.can_redraw:
            self.spawn(self._look())
        self.typed.turn_ended(trace_id, error)

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self.transcript.progress.trace or self.transcript.progress.own is not None:
                self.transcript.tick()
