"""The built-in tool `human`: asks a person in the middle of a turn.

The turn is stored as waiting together with its question (`Inputs`). Its clock stops until there is an answer.
The answer comes from a person, so it does not taint the session. A timeout also counts as an answer. The
control planes decide who may answer; an agent cannot.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lightagentd.agents.builtin.running import NO_TIME_LIMIT_S, BuiltinContext, builtin_action
from lightagentd.agents.tool_calls.asking import ask
from lightagentd.host.users import called
from lightagentd.policy.questions.inputs import ACTION, TOOL, Input, Inputs
from lightagentd.tool import Result, Tool
from lightagentd.worker.needs_input import Question

YEAR_S = 366 * 86_400.0


class AskArgs(Question):
    """The arguments of `human.ask`."""

    timeout_s: float | None = Field(
        default=None,
        ge=1.0,
        le=YEAR_S,
        description="How long to wait at the most; the daemon has a limit, too.",
    )


class Human(Tool):
    """Asks the person whose session it is."""

    name = TOOL

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    @builtin_action(timeout_s=NO_TIME_LIMIT_S)
    async def ask(self, ctx: BuiltinContext, args: AskArgs) -> Result:
        """Ask the person a question and wait for the answer. Only for what you cannot find out by yourself
        and what only a person can decide; it gives no permission, which each call gets or not by itself.
        """
        found = await ask(
            self._inputs,
            ctx.origin,
            ctx.stream,
            f"{TOOL}.{ACTION}",
            call_id=ctx.call_id,
            question=args.question,
            choices=args.choices,
            timeout_s=args.timeout_s,
        )
        return answer_result(found)


def answer_result(found: Input) -> Result:
    """The text for the model: the answer, or the reason why there is none."""
    metadata: dict[str, Any] = {"input": found.id, "state": found.state.value}
    if found.state == "answered":
        metadata["answered_by"] = found.answered_by
        return Result(output=f"{called(found.answered_by or 0)} answered:\n{found.answer}", metadata=metadata)
    if found.state == "expired":
        span_s = (found.expires_us - found.created_us) / 1_000_000
        why = f"Nobody answered within {span_s:g} seconds"
    else:
        why = "The question was dropped"
    return Result(
        output=f"{why}, so there is no answer, and none may be assumed. Go on without it in the way that"
        " risks least, or say in your final answer what you need to know.",
        metadata=metadata,
    )
