"""A step of a flow, as the calls that it makes see it: a turn without a model.

It belongs to the session of the run, and is stored as the step and not as a turn. So its calls go through the
same policy, workers, approvals and history as those of a model, and wait for a person across restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd.agents.flows.records import MOST_OUTPUT_BYTES, StepRecord
from lightagentd.agents.tool_calls.results import Outcome, cap_text
from lightagentd.agents.turn import Asked, Turn
from lightagentd.events.history import Change, NewEvent
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.flows.records import AsksFor, RunRecord
    from lightagentd.agents.sessions.session import Session

SAID_BYTES = 1000
"""How much a failed step says of why."""
_CANCELLED = "cancelled"


class StepTurn(Turn):
    """One attempt of a step. `record` is the step as it is stored, or is about to be."""

    in_conversation = False
    can_wait = True

    def __init__(
        self,
        session: Session,
        run: RunRecord,
        record: StepRecord,
        *,
        asks_for: AsksFor,
        judged: bool = False,
        needs_approval: bool = False,
        keep: Callable[[StepRecord], None],
    ) -> None:
        """`judged`: whether a check or a schema follows a call that went well. `keep` takes each new state of
        the step.
        """
        asked = Asked(prompt=Prompt(""), unattended=run.unattended, trigger=run.trigger, sent_by=run.sent_by)
        super().__init__(session, asked, trace_id=record.trace_id, caller=run.owner)
        self._stored_waits = self.waits_for = record.waits_for
        self.record, self._keep = record, keep
        self._flow, self._asks_for, self._judged = run.flow, asks_for, judged
        self.needs_approval = needs_approval

    def change(self, state: str, waits_for: str = "") -> Change:
        if state == "waiting":
            self._take(self.record.moved("waiting_approval", waits_for=waits_for, asks_for=self._asks_for))
        else:
            self._take(self.record.moved("running", waits_for="", asks_for=""))
        return self.record.change()

    def asking(self, question_id: str) -> tuple[NewEvent, ...]:
        waits = self.record.moved("waiting_approval", waits_for=question_id, asks_for=self._asks_for)
        return (waits.event(self._flow),)

    def call_ended(self, outcome: Outcome) -> tuple[Sequence[NewEvent], Sequence[Change]]:
        code, message = failure_of(outcome)
        if code == _CANCELLED:
            return (), ()  # whoever cancelled it says what that means
        if code:
            self._take(replace(self.record, code=code, message=message))
            return (), (self.record.change(),)
        done = replace(self.record, output=output_of(outcome), ran=True, code="", message="")
        if self._judged:
            self._take(done)
            return (), (done.change(),)
        self._take(done.moved("success"))
        return (self.record.event(self._flow),), (self.record.change(),)

    def _take(self, record: StepRecord) -> None:
        self.record = record
        self._keep(record)


def output_of(outcome: Outcome) -> str:
    """What a call gave, without the line ends at its end, as `$(…)` of a shell has it."""
    silent = outcome.metadata.get("stdout_bytes") == 0 == outcome.metadata.get("stderr_bytes")
    return "" if silent else cap_text(outcome.text.rstrip("\n"), MOST_OUTPUT_BYTES)


def failure_of(outcome: Outcome) -> tuple[str, str]:
    """The code and the sentence of a call that failed; empty for one that went well."""
    if outcome.result != "ok":
        said = outcome.text.removeprefix(f"Error ({outcome.result}): ")
        return outcome.result, cap_text(said, SAID_BYTES)
    status = outcome.metadata.get("exit_status", 0)
    if outcome.metadata.get("timed_out"):
        return "timeout", cap_text(f"The command took too long: {outcome.text.strip()}", SAID_BYTES)
    if status == 0:
        return "", ""
    how = (
        f"with status {status}" if status is not None else f"by {outcome.metadata.get('signal', 'a signal')}"
    )
    return "command_failed", cap_text(f"The command ended {how}: {outcome.text.strip()}", SAID_BYTES)
