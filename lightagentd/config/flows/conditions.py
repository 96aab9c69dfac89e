"""Conditions of steps, as tables: `when = { step = "updates", path = "count", compare = "> 0" }`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr, model_validator

from lightagentd.config.flows.references import MISSING, as_text, dig
from lightagentd.config.section import Section
from lightagentd.errors import LimitExceeded
from lightagentd.text.bounded import TakesTooLongError, bounded

State = Literal["pending", "running", "success", "failed", "skipped", "waiting_approval", "cancelled"]
Over = Literal["success", "failed", "skipped"]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_COMPARE = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*(-?\d+(?:\.\d+)?)\s*")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
MOST_CHARS = 100_000
"""Of an output, for a pattern."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What conditions and references may see of a step: its state, its output, and that output as JSON."""

    state: State
    output: str = ""
    data: Any = MISSING


class Condition(Section):
    """One condition. All tests that it has must pass; one about a value that does not exist does not pass."""

    step: str = ""
    """The step that it is about."""
    input: str = ""
    """In place of a step: an input of the flow."""
    path: str = Field(default="", max_length=1000)
    """Where in the output, as JSON, the value is: names and places (from 0) with dots between them."""
    status: Annotated[
        tuple[Over, ...], BeforeValidator(lambda one: [one] if isinstance(one, str) else one)
    ] = ()
    """The states, one of which the step is in."""
    contains: str | None = Field(default=None, max_length=10_000)
    matches: str | None = Field(default=None, max_length=1000)
    """A regular expression that is found in the first 100,000 characters of the value."""
    equals: StrictStr | StrictBool | StrictInt | Finite | None = None
    compare: str | None = Field(default=None, max_length=100)
    """`<`, `<=`, `==`, `!=`, `>=` or `>`, and a number."""
    negated: bool = Field(default=False, alias="not")
    """Whether it holds when its tests do not pass."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.step) == bool(self.input):
            raise ValueError("a condition is about a step or about an input: name one of them")
        if self.input and (self.status or self.path):
            raise ValueError("status and path do not go with an input")
        if not self.status and not self._tests_value:
            raise ValueError("a condition needs status, contains, matches, equals or compare")
        if self.path and not self._tests_value:
            raise ValueError("path goes with contains, matches, equals or compare")
        if self.path and not all(self.path.split(".")):
            raise ValueError("path is names and places with one dot between them")
        if self.status and self._tests_value and "success" not in self.status:
            raise ValueError("only a step with the status success has an output to look at")
        if self.compare is not None and not _COMPARE.fullmatch(self.compare):
            raise ValueError(f'compare is an operator and a number, such as "> 0", not {self.compare[:40]!r}')
        check_pattern("matches", self.matches or "")
        return self

    @property
    def _tests_value(self) -> bool:
        return any(one is not None for one in (self.contains, self.matches, self.equals, self.compare))

    @property
    def needs_success(self) -> bool:
        """Whether it holds only once its step has an output."""
        return bool(self.step) and not self.negated and (self._tests_value or self.status == ("success",))

    def holds(self, outcomes: Mapping[str, Outcome], inputs: Mapping[str, Any]) -> bool:
        """Whether it holds now. Raises LimitExceeded when its pattern takes so long that nobody knows."""
        return self._passes(outcomes, inputs) != self.negated

    def _passes(self, outcomes: Mapping[str, Outcome], inputs: Mapping[str, Any]) -> bool:
        if self.input:
            return self._fits(inputs.get(self.input, MISSING))
        outcome = outcomes.get(self.step, Outcome(state="pending"))
        if self.status and outcome.state not in self.status:
            return False
        if not self._tests_value:
            return True
        value = dig(outcome.data, tuple(self.path.split("."))) if self.path else outcome.output
        return self._fits(value if outcome.state == "success" else MISSING)

    def _fits(self, value: Any) -> bool:
        if value is MISSING:
            return False
        text = as_text(value)
        return (
            (self.contains is None or self.contains in text)
            and (self.matches is None or pattern_fits(self.matches, text[:MOST_CHARS]))
            and (self.equals is None or _same(value, self.equals))
            and (self.compare is None or _compares(value, self.compare))
        )


def check_pattern(key: str, pattern: str) -> None:
    """Raises ValueError for what is not a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as err:
        raise ValueError(f"{key} is not a regular expression: {err}") from None


def pattern_fits(pattern: str, text: str, *, whole: bool = False) -> bool:
    """Whether a regular expression is found in a text, or fits the `whole` of it. Raises LimitExceeded."""
    match = re.fullmatch if whole else re.search
    try:
        with bounded():
            return match(pattern, text) is not None
    except TakesTooLongError:
        raise LimitExceeded(
            f"The regular expression {pattern[:200]!r} takes too long on a text of {len(text)} characters.",
            suggestion="Write it without a repetition within a repetition, such as (a+)+.",
        ) from None


def _same(value: Any, wanted: str | int | float | bool) -> bool:
    if isinstance(wanted, str):
        return as_text(value).strip() == wanted
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted or (
            isinstance(wanted, bool) and as_text(value).strip().lower() == str(wanted).lower()
        )
    return _number(value) == wanted


def _compares(value: Any, compare: str) -> bool:
    wanted, number = _COMPARE.fullmatch(compare), _number(value)
    return wanted is not None and number is not None and _OPERATORS[wanted[1]](number, float(wanted[2]))


def _number(value: Any) -> float | None:
    """A number, or a text that is one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
