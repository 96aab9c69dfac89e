"""What may be asked of a person: the bounds of a question, and of the state that waits for its answer.

Agents ask with `human.ask`, own tools by raising `NeedsInput`. A worker checks what its tool raised before it
is sent, and the daemon checks it again, because a worker may be compromised.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from lightagentd.errors import InputInvalid
from lightagentd.text.strict_json import decoded
from lightagentd.tool import Action, Args, Context, NeedsInput, Result

QUESTION_CHARS, CHOICE_CHARS, CHOICES = 4000, 200, 20
STATE_BYTES, STATE_DEPTH = 64 << 10, 50
"""The largest state as JSON, and how deep it may be nested."""
_SEVERAL_LINES = frozenset({"Cc", "Zl", "Zp"})
"""Categories of Unicode that are no part of a line, or end it."""


class Question(Args):
    """A question, and the answers to choose from."""

    question: str = Field(
        min_length=1, max_length=QUESTION_CHARS, description="What you need to know, and what depends on it."
    )
    choices: list[Annotated[str, Field(min_length=1, max_length=CHOICE_CHARS)]] = Field(
        default=[],
        max_length=CHOICES,
        description="The answers to choose from, two or more, one line each; without them any text is one.",
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


class Asked(Question):
    """What a tool asks, and the state for the action's `resume`."""

    state: Any = None

    @field_validator("state")
    @classmethod
    def _is_json(cls, state: Any) -> Any:
        try:
            text = json.dumps(state)
        except (TypeError, RecursionError) as err:
            raise ValueError(f"it is not JSON: {err}") from err
        if len(text) > STATE_BYTES:
            raise ValueError(f"it has {len(text)} bytes as JSON, more than {STATE_BYTES}")
        return decoded(text, depth=STATE_DEPTH, surrogates=False)


def checked(name: str, question: Any, choices: Any, state: Any) -> Asked:
    """A question of the action `name`. Raises InputInvalid."""
    try:
        return Asked(question=question, choices=choices, state=state)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        why = first["msg"].removeprefix("Value error, ")
        raise InputInvalid(
            f"{name} asked a person something that cannot be asked: {where}: {why}.",
            suggestion="The tool's author has to mend that. Go on without this call.",
        ) from None


def asked_by(action: Action, raised: NeedsInput) -> Asked:
    """What an action asks. Raises InputInvalid, also for an action that could not go on."""
    name = f"{action.tool}.{action.name}"
    if action.resume is None:
        raise InputInvalid(
            f"{name} asked a person something, but declares no resume that could go on with the answer.",
            suggestion="The tool's author has to mend that. Go on without this call.",
        )
    return checked(name, raised.question, raised.choices, raised.state)


def going_on(action: Action, state: Any, answer: str) -> Action:
    """The action as it goes on with an answer. Raises InputInvalid for one that cannot."""
    resume = action.resume
    if resume is None:
        raise InputInvalid(
            f"{action.tool}.{action.name} was answered, but its file has changed and declares no resume.",
            suggestion="Ask for the call again.",
        )

    async def method(context: Context, _args: Any) -> Result:
        return await resume(context, state, answer)

    return replace(action, method=method)


def _encodable(text: str) -> str:
    """Raises ValueError for lone surrogates, which no terminal and no bus accepts."""
    text.encode()
    return text
