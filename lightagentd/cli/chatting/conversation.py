"""One chat: the open session, the typed lines, and what they do.

A conversation owns its tasks: the watch of the session, the one that works off the typed lines in order, and
a clock for the times on the screen. An answer to a question does not wait for the lines before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from contextlib import aclosing
from typing import Any

from lightagentd.cli.chatting.catching_up import CatchingUp
from lightagentd.cli.chatting.commands import Command, parse
from lightagentd.cli.chatting.completion import Completions
from lightagentd.cli.chatting.daemon import Daemon, Watch
from lightagentd.cli.chatting.questions import Question, Questions
from lightagentd.cli.chatting.screen import Line, Screen
from lightagentd.cli.chatting.startup import Opening, open_latest
from lightagentd.cli.chatting.transcript import Transcript
from lightagentd.cli.output import cell
from lightagentd.cli.terminal import DIM, clean, style
from lightagentd.errors import Cancelled, DaemonUnreachable, InvalidArgument, LightagentError, ShuttingDown

_TICK_S = 0.5
_MOMENT_S = 2.0
"""A second Ctrl-C within it is meant to leave."""
_LINES_AHEAD = 1000


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
        self._doing: asyncio.Task[None] | None = None
        """The line that is worked off."""
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(_LINES_AHEAD if screen.can_ask else 1)
        self._changed = asyncio.Event()
        """A turn ended, or began to wait for a person."""
        self._over: dict[str, int] = {}
        """Where lines come from a program: the turns that are over, and the exit status of each."""
        self._latest = ""
        """The turn that was prompted here last, where lines come from a program."""
        self._is_lost = False
        self._interrupted_s = -_MOMENT_S
        self._leaving = asyncio.Event()

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
            for work in (self._work(), self._clock(), self._read()):
                self._spawn(work)
            await self._leaving.wait()
            for task in [*self._spawned]:
                task.cancel()
        return self.status

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have a task run that ends with the chat at the latest."""
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
        self._spawn(self._interrupt())

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
        """Have another session on the screen. Raises as the client; then the one before stays."""
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
        self._watching = self._spawn(watch.run())
        self._spawn(self._completions.refresh())

    def leave(self) -> None:
        """End the chat; a turn that runs goes on."""
        if self._transcript.running and self.screen.is_terminal:
            self.say(f"The turn goes on. Come back with: lactl chat {self.agent} --session {self.session}")
        self._leaving.set()

    async def cancel(self) -> None:
        """Cancel the turn that runs and the prompts that wait."""
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
            self._changed.set()

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
            self._spawn(self._reopen())

    async def _reopen(self) -> None:
        try:
            await self.open(await open_latest(self.daemon, self.agent))
        except LightagentError as err:
            self.screen.warn(err.message, err.suggestion)

    def _turn_ended(self, trace_id: str, error: LightagentError | None) -> None:
        if not self.screen.can_ask:
            self._over[trace_id] = 0 if error is None else error.exit_status
        self._changed.set()
        if self._lines.empty() and not self._transcript.progress.queued:
            self.screen.ready()

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self._transcript.progress.trace:
                self.screen.refresh()

    # What is typed

    async def _read(self) -> None:
        try:
            async with aclosing(self.screen.typed(self)) as typed:
                async for line in typed:
                    if line.asked:
                        await self._answer(line)
                    elif line.text.strip():
                        await self._lines.put(line)
                    else:
                        self.screen.ready()
        except LightagentError as err:
            self.screen.warn(err.message, err.suggestion)
            self.status = err.exit_status
        if self.screen.can_ask:
            self.leave()
        else:
            await self._lines.put(None)

    async def _work(self) -> None:
        while (line := await self._lines.get()) is not None:
            self._doing = self._spawn(self._do(line.text))
            await asyncio.wait([self._doing])
            self._doing = None
        await self._until_over()
        self._leaving.set()

    async def _do(self, text: str) -> None:
        """Work off one line; what is wrong with it is told."""
        try:
            meant = parse(text)
            if isinstance(meant, str):
                await self._prompt(meant)
                return
            command, argument = meant
            await self._command(command, argument, text)
        except LightagentError as err:
            self.screen.warn(err.message, err.suggestion)
            if not self.screen.can_ask:
                self.status = err.exit_status
        self.screen.ready()

    async def _command(self, command: Command, argument: str, typed: str) -> None:
        if self.screen.can_redraw:
            self._transcript.note(f"{self.prompt()}{typed}")
        await command.run(self, argument)
        self._spawn(self._completions.refresh())

    async def _prompt(self, text: str) -> None:
        """Prompt; where lines come from a program, one turn after the other. While one waits for a person,
        the next line may be a command that answers.
        """
        await self._until_over()
        attached, self.attached = self.attached, []
        try:
            trace_id = await self.daemon.prompt(session=self.session, text=text, attachments=attached or None)
        except LightagentError:
            self.attached = attached
            self.screen.put_back(text)
            raise
        self._transcript.own.add(trace_id)
        if not self.screen.can_ask:
            self._latest = trace_id
            await self._until_over(or_waiting=True)

    async def _until_over(self, *, or_waiting: bool = False) -> None:
        while self._latest and self._latest not in self._over:
            self._changed.clear()
            if or_waiting and self._transcript.progress.waiting:
                return
            await self._changed.wait()
        if self._latest:
            self.status = self._over.pop(self._latest)
            self._latest = ""

    async def _answer(self, line: Line) -> None:
        """Answer the question that was on the screen."""
        question = self.questions.current
        if line.text.strip().startswith("/") and not line.text.strip().startswith("//"):
            await self._lines.put(Line(line.text))
            return
        if question is None or question.id != line.asked:
            self.screen.warn("This was answered already.")
            return
        text = line.text.replace("//", "/", 1) if line.text.startswith("//") else line.text
        answer = question.answer(text)
        if self.screen.can_redraw:
            self._transcript.note(f"{question.words}{line.text}")
        if answer is None:
            self._say_how(question)
            self.screen.ready()
        elif question.kind == "confirmation":
            self.questions.confirmed(answer == "yes")
        else:
            self._spawn(self._send_answer(question, answer))

    def _say_how(self, question: Question) -> None:
        if question.kind != "input":
            self.screen.warn(
                "Answer y to allow it, or n to refuse it." if question.kind == "approval" else "y or n?"
            )
        elif question.choices:
            self.screen.warn("Answer with a number of the list, or with its text.")
        else:
            self.screen.warn("The question waits for a text.", "Ctrl-C cancels the turn.")

    async def _send_answer(self, question: Question, answer: str) -> None:
        try:
            if question.kind == "input":
                await self.daemon.call("Inputs.Answer", input=question.id, text=answer)
            else:
                method = "Approvals.Approve" if answer == "yes" else "Approvals.Deny"
                await self.daemon.call(method, approval=question.id)
        except LightagentError as err:
            self.screen.warn(err.message, err.suggestion)
            if not isinstance(err, InvalidArgument):
                self.questions.close(question.id)

    async def _interrupt(self) -> None:
        """Ctrl-C: cancel the turn, or forget what was typed, or say how to leave."""
        if not self.screen.can_ask:  # what feeds the lines was ended, too
            if self._transcript.running:
                await self._try_cancel()
            self.status = Cancelled.exit_status
            self._leaving.set()
            return
        now_s, before_s = time.monotonic(), self._interrupted_s
        self._interrupted_s = now_s
        asks_to_leave = now_s - before_s < _MOMENT_S
        question = self.questions.current
        if question is not None and question.kind == "confirmation":
            self.questions.confirmed(False)
        elif self._transcript.running:
            await self._try_cancel()
        elif self._doing is not None:
            self._doing.cancel()
        elif not self.screen.clear():
            asks_to_leave = True
        if asks_to_leave:
            self._transcript.note("Leave with Ctrl-D or /exit.")
            self._interrupted_s = -_MOMENT_S
        if not self._transcript.running:
            self.screen.ready()

    async def _try_cancel(self) -> None:
        try:
            await self.cancel()
        except LightagentError as err:
            self.screen.warn(f"The turn could not be cancelled: {err.message}", err.suggestion)
