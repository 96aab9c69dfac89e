"""Approvals and inputs as one store, for code that stops, ends or deletes turns.

The daemon makes it and keeps it to its end. Code that asks or answers uses the single stores.
"""

from __future__ import annotations

from pathlib import Path

from lightagentd.config.configuration import Limits
from lightagentd.events.history import History
from lightagentd.policy.questions.approvals import Approvals
from lightagentd.policy.questions.inputs import Input, Inputs
from lightagentd.policy.questions.questions import Stored


class AllQuestions:
    """Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(self, history: History, limits: Limits, *, key_file: Path) -> None:
        most = limits.owner.questions
        timeout_s = limits.approval_timeout_s
        self.approvals = Approvals(history, timeout_s=timeout_s, open_of_owner=most, key_file=key_file)
        self.inputs = Inputs(history, timeout_s=limits.input_timeout_s, open_of_owner=most)

    async def load(self) -> None:
        """Read what the last run left. Raises StorageError."""
        await self.approvals.load()
        await self.inputs.questions.load()

    def suspend(self) -> None:
        """End all waiting for answers, because the daemon stops."""
        self.approvals.questions.suspend()
        self.inputs.questions.suspend()

    @property
    def suspended(self) -> bool:
        return self.approvals.questions.suspended

    def is_open(self, question_id: str) -> bool:
        """Whether the call still needs the question."""
        questions = self.inputs.questions if is_input(question_id) else self.approvals.questions
        return questions.is_open(question_id)

    def lapse(self, question_id: str, why: str) -> Stored:
        """Close a question whose turn ends; returns what the caller has to store."""
        lapse = self.inputs.lapse if is_input(question_id) else self.approvals.questions.lapse
        return lapse(question_id, why)

    def of_session(self, session: str) -> list[str]:
        """The ids of a session's questions that calls still need."""
        return [*self.approvals.questions.of_session(session), *self.inputs.questions.of_session(session)]


def is_input(question_id: str) -> bool:
    """Whether the id belongs to an input and not to an approval."""
    return question_id.startswith(f"{Input.PREFIX}_")
