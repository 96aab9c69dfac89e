"""The questions to the person at the terminal, and the answers that they may type.

The oldest open question is asked. Text typed before it was shown does not answer it: the screen puts an
unfinished line aside, and marks each finished line with the question that was on the screen.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from lightagentd.cli.chatting.screen import TurnScreen
from lightagentd.cli.output import cell
from lightagentd.cli.question import ALLOW, decision, question_lines, visible

CONFIRMATION = "confirmation"
"""The id of a question that the chat itself asks."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """An open question. `kind`: approval (of a call), input (what an agent asks), confirmation."""

    id: str
    kind: str
    words: str
    """The prompt under which it is answered."""
    summary: str
    choices: tuple[str, ...] = ()
    trace_id: str = ""
    event: dict[str, Any] = field(default_factory=dict)
    """That asks for the call that was shown."""
    whole: tuple[str, ...] = ()
    """The question with nothing folded."""

    @classmethod
    def of_call(cls, event: dict[str, Any]) -> Question:
        """The question of an event approval_requested."""
        call = visible(f"{event['tool']}.{event['action']}")
        return cls(
            id=event["approval"],
            kind="approval",
            words=ALLOW,
            summary=f"may {cell(call)} run?",
            trace_id=event["trace_id"],
            event=event,
            whole=tuple(question_lines(event)),
        )

    @classmethod
    def of_agent(cls, event: dict[str, Any]) -> Question:
        """The question of an event input_requested."""
        return cls(
            id=event["input"],
            kind="input",
            words=f"Answer (1-{len(event['choices'])}): " if event["choices"] else "Answer: ",
            summary=cell(visible(event["question"])),
            choices=tuple(event["choices"]),
            trace_id=event["trace_id"],
        )

    def answer(self, line: str) -> str | None:
        """The answer in a line: `yes`, `no` or `view`, or a text; None when the line does not answer this."""
        text = line.strip()
        if self.kind != "input":
            verdict, note = decision(line)
            fits = self.kind == "approval" or (verdict in ("yes", "no") and not note)
            return verdict if verdict and fits else None
        if self.choices and text.isascii() and text.isdigit() and text not in self.choices:
            number = int(text) if len(text) < 4 else 0
            text = self.choices[number - 1] if 0 < number <= len(self.choices) else ""
        return text if text and (not self.choices or text in self.choices) else None


class Questions:
    """The open questions, oldest first; the conversation owns them."""

    def __init__(self, screen: TurnScreen) -> None:
        self._screen = screen
        self._open: dict[str, Question] = {}
        self._confirmed: asyncio.Future[bool] | None = None

    @property
    def current(self) -> Question | None:
        """The one that is asked."""
        return next(iter(self._open.values()), None)

    def is_open(self, question_id: str) -> bool:
        return question_id in self._open

    def open(self, question: Question) -> None:
        self._open.setdefault(question.id, question)
        self._ask()

    def close(self, question_id: str) -> None:
        self._open.pop(question_id, None)
        self._ask()

    def close_turn(self, trace_id: str | None = None) -> None:
        """Close all questions of a turn; without its trace id, all questions."""
        self._open = {
            key: one
            for key, one in self._open.items()
            if one.kind == CONFIRMATION or trace_id not in (None, one.trace_id)
        }
        self._ask()

    async def confirm(self, words: str) -> bool:
        """Ask the person at the terminal for yes or no."""
        self._confirmed = asyncio.get_running_loop().create_future()
        self.open(Question(id=CONFIRMATION, kind=CONFIRMATION, words=f"{words} [y/N] ", summary=words))
        try:
            return await self._confirmed
        finally:
            self.close(CONFIRMATION)

    def confirmed(self, yes: bool) -> None:
        """The answer to `confirm`."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(yes)

    def _ask(self) -> None:
        current = self.current
        self._screen.ask(current.id if current else "", current.words if current else "")
