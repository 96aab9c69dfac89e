"""The built-in tool `plan`: a model proposes a plan or looks at it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field
from pydantic.config import JsonDict

from lightagentd.agents.builtin.running import BuiltinContext, builtin_action
from lightagentd.agents.planning.plan import shown
from lightagentd.agents.planning.plans import Plans
from lightagentd.errors import PlanConflict
from lightagentd.tool import Args, Result, Tool

_TASK: JsonDict = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "A short name or number, unlike that of other tasks."},
        "text": {"type": "string", "description": "All that it takes to do the task."},
        "check": {
            "type": "string",
            "description": "A shell command that only observes; status 0 says that the task is done.",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}


class ProposeArgs(Args):
    """The shape of a plan is checked where every plan's is (`agents.proposal`), so it is open here."""

    title: Any = Field(default="", json_schema_extra={"type": "string"}, description="What it is about.")
    tasks: Any = Field(
        json_schema_extra={"type": "array", "items": _TASK}, description="The tasks, in their order."
    )


class ShowArgs(Args):
    pass


class PlanTool(Tool):
    """The plan of the conversation: proposed by the agent, applied by its user."""

    name = "plan"

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    @builtin_action()
    async def propose(self, ctx: BuiltinContext, args: ProposeArgs) -> Result:
        """Propose a plan to the user, or a better one, while plan mode is on. It replaces the one before."""
        turn = ctx.origin.turn
        if turn is None:
            raise PlanConflict(
                "A plan belongs to a conversation, and this call to none.",
                suggestion="Give one with: lactl plan set",
            )
        plan = await self._plans.propose(turn.session, {"title": args.title, "tasks": args.tasks}, turn)
        return Result(
            output=f"The plan {plan.title!r} with {len(plan.tasks)} tasks is ready. Your user looks at it"
            " now, and applies it or says what to change. Say in a sentence that it is there.",
            metadata={"phase": plan.phase, "tasks": [task.id for task in plan.tasks]},
        )

    @builtin_action()
    async def show(self, ctx: BuiltinContext, args: ShowArgs) -> Result:
        """Show the plan of this conversation, and how far it is applied."""
        del args
        session = ctx.origin.session
        plan = shown(ctx.origin.session_id, session.plan if session is not None else None)
        tasks = [
            {"id": task.id, "text": task.text, "check": task.check, "state": task.state, "note": task.note}
            for task in plan.tasks
        ]
        found = {"phase": plan.phase, "title": plan.title, "tasks": tasks, "note": plan.note}
        return Result(output=json.dumps(found, ensure_ascii=False), metadata={"phase": plan.phase})
