"""The built-in tool `human`: asks a person in the middle of a turn.

The turn is stored as waiting together with its question (`Inputs`). Its clock stops until there is an answer.
The answer comes from a person, so it does not taint the session. A timeout also counts as an answer. The
control planes decide who may answer; an agent cannot.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any

from pydantic import Field, field_validator

from lightagentd.agents.builtin.running import NO_TIME_LIMIT_S, BuiltinContext, builtin_action
from lightagentd.agents.tool_calls.asking import answer_to
from lightagentd.errors import Refused
from lightagentd.events.model import current_context
from lightagentd.host.users import called
from lightagentd.policy.decide import PERSON
from lightagentd.policy.questions.inputs import TOOL, Input, Inputs
from lightagentd.tool import Args, Result, Tool

QUESTION_CHARS, CHOICE_CHARS, CHOICES = 4000, 200, 20
YEAR_S = 366 * 86_400.0
_SEVERAL_LINES = frozenset({"Cc", "Zl", "Zp"})
"""Categories of Unicode that are no part of a line, or end it."""


class AskArgs(Args):
    """The arguments of `human.ask`."""

    question: str = Field(
        min_length=1, max_length=QUESTION_CHARS, description="What you need to know, and what depends on it."
    )
    choices: list[Annotated[str, Field(min_length=1, max_length=CHOICE_CHARS)]] = Field(
        default=[],
        max_length=CHOICES,
        description="The answers to choose from, two or more, one line each; without them any text is one.",
    )
    timeout_s: float | None = Field(
        default=None,
        ge=1.0,
        le=YEAR_S,
        description="How long to wait at the most; the daemon has a limit, too.",
    )

    @field_validator("question")
    @classmethod
    def _is_text(cls, question: str) -> str:
        if not question.strip() or "\0" in question:
            raise ValueError("a question is text, without NUL bytes")
        return _encodable(question)

    @field_validator("choices")
    @classmethod
    def _can_be_told_apart(cls, choices: list[str]) -> list[str]:
        found = [_encodable(choice.strip()) for choice in choices]
        if len(found) == 1:
            raise ValueError("one choice is none: name two or more, or leave them out")
        if not all(found) or any(unicodedata.category(char) in _SEVERAL_LINES for char in "".join(found)):
            raise ValueError("each choice is one line, and not empty")
        if len(set(found)) != len(found):
            raise ValueError("two choices are the same")
        return found


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
        if ctx.origin.turn is None:
            raise Refused(
                "human.ask asks in the middle of a turn, and this call belongs to none.",
                suggestion=f"Prompt the agent {ctx.agent}, so that it can ask.",
            )
        if ctx.origin.trigger != PERSON:
            raise Refused(
                "Nobody is there to be asked: this turn runs unattended.",
                suggestion="Say in your final answer what you would have asked, and what you left undone.",
            )
        chain = ctx.origin.chain
        asked = self._inputs.new(
            agent=ctx.agent,
            session=ctx.origin.session_id,
            owner=ctx.owner,
            trace_id=current_context().trace_id,
            call_id=ctx.call_id,
            question=f"{chain}: {args.question}" if ctx.origin.above is not None else args.question,
            choices=args.choices,
            timeout_s=args.timeout_s,
        )
        await self._inputs.questions.ask(asked, changes=ctx.origin.asks(asked.id))
        return answer_result(await answer_to(self._inputs.questions, asked.id, ctx.origin, ctx.stream))


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


def _encodable(text: str) -> str:
    """Raises ValueError for lone surrogates, which no terminal and no bus accepts."""
    text.encode()
    return text
