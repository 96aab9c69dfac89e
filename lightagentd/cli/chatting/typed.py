"""Processes the input of a chat: prompts and commands in order, and answers, which do not wait."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from lightagentd.cli.chatting.bringing import named_files, run_own
from lightagentd.cli.chatting.commands import Command, parse
from lightagentd.cli.chatting.pasting import BEGIN as PASTED
from lightagentd.cli.chatting.questions import Question
from lightagentd.cli.chatting.screen import Line
from lightagentd.cli.question import NO_DECISION, YES, decision, page
from lightagentd.cli.rules import check_rule, proposal_lines
from lightagentd.client.approver import Question as Asked
from lightagentd.errors import Cancelled, InvalidArgument, LightagentError, SessionPaused

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_MOMENT_S = 2.0
"""A second Ctrl-C within it is meant to leave."""
_LINES_AHEAD = 1000


class Typed:
    """The typed lines of one chat. The conversation owns it, and the tasks that it begins."""

    def __init__(self, chat: Conversation) -> None:
        self._chat = chat
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(_LINES_AHEAD if chat.screen.can_ask else 1)
        self._doing: asyncio.Task[None] | None = None
        """The line that is worked off."""
        self.changed = asyncio.Event()
        """A turn ended, or began to wait for a person."""
        self._over: dict[str, int] = {}
        """Where lines come from a program: the turns that are over, and the exit status of each."""
        self._latest = ""
        """The turn that was prompted here last, where lines come from a program."""
        self._interrupted_s = -_MOMENT_S
        self._refused = ""
        """What was typed while the session was paused."""

    def turn_ended(self, trace_id: str, error: LightagentError | None) -> None:
        """A turn of the session is over."""
        if not self._chat.screen.can_ask:
            self._over[trace_id] = 0 if error is None else error.exit_status
        self.changed.set()
        if self._lines.empty() and not self._chat.transcript.progress.queued:
            self._chat.screen.ready()

    async def read(self) -> None:
        """Read the input to its end."""
        try:
            async with aclosing(self._chat.screen.typed(self._chat)) as typed:
                async for line in typed:
                    if line.asked:
                        await self._answer(line)
                    elif line.text.strip():
                        await self._lines.put(line)
                    else:
                        self._chat.screen.ready()
        except LightagentError as err:
            self._chat.screen.warn(err.message, err.suggestion)
            self._chat.status = err.exit_status
        if self._chat.screen.can_ask:
            self._chat.leave()
        else:
            await self._lines.put(None)

    async def work(self) -> None:
        """Process the lines, to the last one."""
        while (line := await self._lines.get()) is not None:
            self._doing = self._chat.spawn(self._do(line))
            await asyncio.wait([self._doing])
            self._doing = None
        await self._until_over()
        self._chat.leaving.set()

    async def _do(self, line: Line) -> None:
        """Process one line, and report its errors."""
        text, typed = line.text, line.text if line.typed is None else line.typed
        try:
            if self._chat.screen.can_ask and typed.startswith("!") and not typed.startswith("!!"):
                if self._chat.screen.can_redraw:
                    self._chat.transcript.note(f"{self._chat.prompt()}{typed}")
                await run_own(self._chat, text[1:].strip())
            elif isinstance(meant := text if typed.startswith(PASTED) else parse(text), str):
                await self._prompt(meant, typed)
                return
            else:
                await self._command(*meant, text, is_key=line.is_key)
        except LightagentError as err:
            if isinstance(err, SessionPaused):
                back = ", and brings back what you typed" if self._refused else ""
                err.suggestion = f"/resume takes it up again{back}."
            self._chat.screen.warn(err.message, err.suggestion)
            if not self._chat.screen.can_ask:
                self._chat.status = err.exit_status
        self._chat.screen.ready()

    async def _command(self, command: Command, argument: str, typed: str, *, is_key: bool) -> None:
        if self._chat.screen.can_redraw and not is_key:
            self._chat.transcript.note(f"{self._chat.prompt()}{typed}")
        await command.run(self._chat, argument)
        if command.name == "resume" and self._refused:
            self._chat.screen.put_back(self._refused)
            self._refused = ""
        self._chat.refresh_names()

    async def _prompt(self, text: str, typed: str) -> None:
        """Prompt with what was typed, and with what is attached to it."""
        text = text[1:] if self._chat.screen.can_ask and typed.startswith("!!") else text
        attached, self._chat.attached = self._chat.attached, []
        try:
            named = await asyncio.to_thread(named_files, typed) if self._chat.screen.can_ask else []
            await self.send(text, [*attached, *named])
        except LightagentError as err:
            self._chat.attached = attached
            if isinstance(err, SessionPaused):  # the line has to be free for /resume
                self._refused = text
            else:
                self._chat.screen.put_back(text)
            raise

    async def send(self, text: str, attached: list[dict[str, str]], model: str = "") -> None:
        """Send a prompt, also to another model than usual. A program's lines wait for the end of each turn.
        While a turn waits for a person, the next line may be a command that answers. Raises LightagentError.
        """
        await self._until_over()
        trace_id = await self._chat.daemon.prompt(
            session=self._chat.session, text=text, attachments=attached or None, model=model or None
        )
        self._chat.sent = text, attached
        self._chat.transcript.own.add(trace_id)
        if not self._chat.screen.can_ask:
            self._latest = trace_id
            await self._until_over(or_waiting=True)

    async def _until_over(self, *, or_waiting: bool = False) -> None:
        while self._latest and self._latest not in self._over:
            self.changed.clear()
            if or_waiting and self._chat.transcript.progress.waiting:
                return
            await self.changed.wait()
        if self._latest:
            self._chat.status = self._over.pop(self._latest)
            self._latest = ""

    async def _answer(self, line: Line) -> None:
        """Answer the question that was on the screen."""
        question = self._chat.questions.current
        if line.text.strip().startswith("/") and not line.text.strip().startswith("//"):
            await self._lines.put(Line(line.text))
            return
        if question is None or question.id != line.asked:
            self._chat.screen.warn("This was answered already.")
            return
        text = line.text.replace("//", "/", 1) if line.text.startswith("//") else line.text
        answer = question.answer(text)
        if self._chat.screen.can_redraw:
            self._chat.transcript.note(f"{question.words}{line.text}")
        if answer is None:
            self._say_how(question)
            self._chat.screen.ready()
        elif question.kind == "approval" and answer == "view":
            await self._chat.screen.suspended(partial(page, question.whole))
            self._chat.screen.ready()
        elif question.kind == "confirmation":
            self._chat.questions.confirmed(answer == "yes")
        else:
            note = decision(text)[1] if question.kind == "approval" else ""
            self._chat.spawn(self._send_answer(question, answer, note))

    def _say_how(self, question: Question) -> None:
        if question.kind != "input":
            self._chat.screen.warn(NO_DECISION if question.kind == "approval" else "y or n?")
        elif question.choices:
            self._chat.screen.warn("Answer with a number of the list, or with its text.")
        else:
            self._chat.screen.warn("The question waits for a text.", "Ctrl-C cancels the turn.")

    async def _send_answer(self, question: Question, answer: str, note: str) -> None:
        try:
            if question.kind == "input":
                await self._chat.daemon.call("Inputs.Answer", input=question.id, text=answer)
            else:
                allows = answer in YES
                if answer == "always" and not await self._rule_written(question):
                    return
                method = "Approvals.Approve" if allows else "Approvals.Deny"
                more: dict[str, Any] = {"digest": question.event["digest"], "note": note or None}
                more |= {"for_session": True} if answer == "session" else {}
                await self._chat.daemon.answer(method, question.event, **more)
        except LightagentError as err:
            self._chat.screen.warn(err.message, err.suggestion)
            if not isinstance(err, InvalidArgument) and answer != "always":
                self._chat.questions.close(question.id)

    async def _rule_written(self, question: Question) -> bool:
        """Show the rule for a call; whether the person had it written. Else the call is asked about again.

        Raises LightagentError.
        """
        found = await self._chat.daemon.call("Approvals.ProposeRule", approval=question.id)
        if isinstance(question.event, Asked):
            check_rule(str(found["text"]), question.event["request"]["statement"], tainted=False)
        self._chat.say(*proposal_lines(found))
        self._chat.questions.close(question.id)
        if not await self._chat.questions.confirm("Write this rule?"):
            self._chat.questions.open(question)
            return False
        given = {"approval": question.id, "sha256": found["sha256"]}
        try:
            path = await self._chat.daemon.call("Approvals.WriteRule", **given)
        except LightagentError:
            self._chat.questions.open(question)
            raise
        self._chat.say(f"Written: {path}")
        return True

    async def interrupt(self) -> None:
        """Ctrl-C: cancel the turn, or forget what was typed, or say how to leave."""
        if not self._chat.screen.can_ask:  # what feeds the lines was ended, too
            if self._chat.transcript.running:
                await self._try_cancel()
            self._chat.status = Cancelled.exit_status
            self._chat.leaving.set()
            return
        now_s, before_s = time.monotonic(), self._interrupted_s
        self._interrupted_s = now_s
        asks_to_leave = now_s - before_s < _MOMENT_S
        question = self._chat.questions.current
        if question is not None and question.kind == "confirmation":
            self._chat.questions.confirmed(False)
        elif self._chat.transcript.progress.own is not None and self._doing is not None:
            self._doing.cancel()
        elif self._chat.transcript.running:
            await self._try_cancel()
        elif self._doing is not None:
            self._doing.cancel()
        elif not self._chat.screen.clear():
            asks_to_leave = True
        if asks_to_leave:
            self._chat.transcript.note("Leave with Ctrl-D or /exit.")
            self._interrupted_s = -_MOMENT_S
        if not self._chat.transcript.running:
            self._chat.screen.ready()

    async def _try_cancel(self) -> None:
        try:
            await self._chat.daemon.call("Sessions.Cancel", session=self._chat.session)
        except LightagentError as err:
            self._chat.screen.warn(f"The turn could not be cancelled: {err.message}", err.suggestion)
