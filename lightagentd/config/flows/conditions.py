"""Conditions of steps, as tables: `when = { step = "updates", path = "count", compare = "> 0" }`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lightagentd.config.flows.references import MISSING, as_text, dig
from lightagentd.config.section import Section

State = Literal["pending", "running", "success", "failed", "skipped", "waiting_approval", "cancelled"]
Over = Literal["success", "failed", "skipped"]
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
    contains: str | None = None
    matches: str | None = Field(default=None, max_length=1000)
    """A regular expression that is found in the value."""
    equals: str | int | float | bool | None = None
    compare: str | None = None
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
        if self.compare is not None and not _COMPARE.fullmatch(self.compare):
            raise ValueError(f'compare is an operator and a number, such as "> 0", not {self.compare[:40]!r}')
        try:
            re.compile(self.matches or "")
        except re.error as err:
            raise ValueError(f"matches is not a regular expression: {err}") from None
        return self

    @property
    def _tests_value(self) -> bool:
        return any(one is not None for one in (self.contains, self.matches, self.equals, self.compare))

    def holds(self, outcomes: Mapping[str, Outcome], inputs: Mapping[str, Any]) -> bool:
        """Whether it holds now."""
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
            and (self.matches is None or re.search(self.matches, text[:MOST_CHARS]) is not None)
            and (self.equals is None or _same(value, self.equals))
            and (self.compare is None or _compares(value, self.compare))
        )


def _same(value: Any, wanted: str | int | float | bool) -> bool:
    if isinstance(wanted, str):
        return as_text(value).strip() == wanted
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted or (
            isinstance(wanted, bool) and as_text(value).strip().lower() == str(wanted).lower()
        )
    return _compares(value, f"== {wanted}")


def _compares(value: Any, compare: str) -> bool:
    found = _COMPARE.fullmatch(compare)
    try:
        number = float(value) if not isinstance(value, bool | dict | list) and value is not None else None
    except ValueError:
        return False
    return found is not None and number is not None and _OPERATORS[found[1]](number, float(found[2]))
