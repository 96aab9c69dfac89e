"""The built-in tool `flows`: has the flows run that the agent's definition names (`agents.flows`).

A run is made by the agent that asked for it: its steps can do nothing that this agent could not do. It goes
on when the turn is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from pydantic import Field

from lightagentd.agents.builtin.running import BuiltinContext, builtin_action
from lightagentd.agents.team.mail import held
from lightagentd.errors import NotFound, Refused
from lightagentd.tool import Args, Result, Tool

if TYPE_CHECKING:
    from lightagentd.agents.flows.flows import Flows
    from lightagentd.agents.flows.run import Run

FLOWS = "flows"
MOST_WAIT_S = 600.0
_MOST_CHARS = 20_000


class RunArgs(Args):
    """The arguments of `flows.run`."""

    name: str = Field(min_length=1, max_length=129, description="The name of the flow.")
    inputs: dict[str, Any] = Field(default={}, description="Its inputs, by name.")
    wait_s: float = Field(default=60.0, ge=0, le=MOST_WAIT_S, description="How long to wait for its end.")


class ShowArgs(Args):
    """The arguments of `flows.show`."""

    run: str = Field(min_length=1, max_length=60, description="The run, as flows_run named it.")
    wait_s: float = Field(default=0.0, ge=0, le=MOST_WAIT_S, description="How long to wait for its end.")


class FlowsTool(Tool):
    """Has flows run: sequences of steps that an administrator wrote."""

    name = FLOWS

    def __init__(self) -> None:
        self._flows: Flows | None = None

    def bind(self, flows: Flows) -> None:
        """Give it the runs, which are made after the tools."""
        self._flows = flows

    @builtin_action(taints=True, timeout_s=MOST_WAIT_S + 30)
    async def run(self, ctx: BuiltinContext, args: RunArgs) -> Result:
        """Have a flow run, and wait for its end. Gives its output, or how it stands: it goes on by itself,
        and flows_show tells of it.
        """
        flows, origin = self._there(), ctx.origin
        if args.name not in origin.agent.front.flows:
            hint = f"It has: {', '.join(origin.agent.front.flows)}."
            raise NotFound(f"The agent {ctx.agent} has no flow {args.name[:60]!r}.", suggestion=hint)
        if origin.turn is None or origin.plan:
            raise Refused("No flow runs outside of a turn, or while a plan is drafted.")
        run = await flows.run(
            args.name,
            args.inputs,
            ctx.owner,
            unattended=origin.turn.unattended,
            trigger=origin.turn.trigger,
            sent_by=[held(one.agent) for one in origin.line],
            tainted=origin.tainted,
        )
        return await _told(run, args.wait_s)

    @builtin_action(taints=True, timeout_s=MOST_WAIT_S + 30)
    async def show(self, ctx: BuiltinContext, args: ShowArgs) -> Result:
        """How a run of a flow stands, and its output when it is over."""
        flows = self._there()
        record = flows.record(args.run)
        if record.owner != ctx.owner or record.flow not in _full(flows, ctx.origin.agent.front.flows):
            raise NotFound(f"There is no run {args.run!r} of a flow of this agent.")
        return await _told(flows.of_record(record), args.wait_s)

    def _there(self) -> Flows:
        if self._flows is None:
            raise Refused("Nothing runs flows here.")
        return self._flows


def _full(flows: Flows, names: list[str]) -> set[str]:
    found = {*names}
    for name in names:
        with contextlib.suppress(NotFound):
            found.add(flows.files.file(name).name)
    return found


async def _told(run: Run, wait_s: float) -> Result:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await run.ended.wait()
    record = run.record
    waits = [one.waits_for for one in run.steps.values() if one.waits_for and not one.is_over]
    steps = {name: one.state for name, one in run.steps.items() if "/" not in name}
    about = {"run": record.id, "state": record.state, "steps": steps}
    if record.state == "success":
        return Result(output=f"The run {record.id} is done.\n{run.output[:_MOST_CHARS]}", metadata=about)
    if record.state != "running":
        return Result(output=f"The run {record.id} has {record.state}: {record.message}", metadata=about)
    why = "it waits for a person" if waits else "it is not over yet"
    return Result(output=f"The run {record.id} goes on: {why}.", metadata=about)
