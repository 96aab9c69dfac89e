"""A run of a flow as whoever waits for a turn sees it: over at its end, with its output as the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightagentd.agents.turn import Asked, Turn
from lightagentd.errors import Cancelled, LightagentError, ShuttingDown, ToolError
from lightagentd.events.context import own_task
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.flows.run import Run


class FlowTurn(Turn):
    """Follows a run; to cancel it cancels the run."""

    in_conversation = False

    def __init__(self, run: Run) -> None:
        record = run.record
        asked = Asked(prompt=Prompt(""), unattended=record.unattended, trigger=record.trigger)
        super().__init__(run.session, asked, trace_id=record.id, caller=record.owner)
        self._run = run
        own_task(self._follow(), name=f"follow-{record.id}")

    async def _follow(self) -> None:
        await self._run.ended.wait()
        record = self._run.record
        self.stays = record.state == "running"
        self.answer = self._run.output
        failure: LightagentError | None = None
        if self.stays:
            failure = ShuttingDown(f"The run {record.id} goes on when the daemon starts again.")
        elif record.state != "success":
            failure = ToolError(f"The run {record.id} of the flow {record.flow}: {record.message}")
        self.finish(failure, self.figures)

    @property
    def figures(self) -> dict[str, Any]:
        record = self._run.record
        return {"steps": len(self._run.steps), "duration_ms": (record.ended_us - record.started_us) // 1000}

    def cancel(self, why: LightagentError | None = None) -> None:
        own_task(self._run.cancel(why or Cancelled("The run was cancelled.")), name=f"cancel-{self.trace_id}")
