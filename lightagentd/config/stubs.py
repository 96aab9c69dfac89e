"""A stub: what a tool call says in an assessment, in place of what the machine would.

`Stub` is the same in the file of a case and with a prompt. `fits` compares in part, also for the calls that a
case asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from lightagentd.config.section import Section
from lightagentd.errors import InvalidArgument, LimitExceeded

PATTERN = "=~"
MOST_STUBS = 200
MOST_CHARS = 64 << 10
"""How long the output of a stub is at most, in characters."""


class Stub(Section):
    """The result of the calls that it matches; of several that match, the first counts."""

    tool: str = Field(min_length=1, max_length=100)
    action: str = Field(min_length=1, max_length=100)
    args: dict[str, Any] = Field(default_factory=dict)
    """What the call's arguments have in them; without it, any call of the action."""
    output: str | None = Field(default=None, max_length=MOST_CHARS)
    error: str | None = Field(default=None, min_length=1, max_length=4000)
    """In place of an output: the call fails with this message."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.output is None) == (self.error is None):
            raise ValueError("a stub has an output or an error")
        return self

    @property
    def name(self) -> str:
        return f"{self.tool}.{self.action}"

    def matches(self, tool: str, action: str, args: dict[str, Any]) -> bool:
        """Whether it is for a call with these arguments."""
        return (self.tool, self.action) == (tool, action) and fits(self.args, args)

    def to_dict(self) -> dict[str, Any]:
        """As it is sent and stored."""
        return self.model_dump(exclude_defaults=True)


_STUBS = TypeAdapter(list[Stub])


def stubs_in(value: Any) -> tuple[Stub, ...]:
    """The stubs in what a caller gave. Raises InvalidArgument, LimitExceeded."""
    if isinstance(value, Sequence) and len(value) > MOST_STUBS:
        raise LimitExceeded(f"A prompt has {MOST_STUBS} stubs at most, and this one has {len(value)}.")
    try:
        return tuple(_STUBS.validate_python(value))
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidArgument(
            f"stubs is a list of objects with tool, action, args, output or error: {where}: {first['msg']}.",
            field="stubs",
        ) from None


def fits(wanted: Any, given: Any, *, patterns: bool = False) -> bool:
    """Whether a value has all that is wanted: of objects the keys that are named, in lists of the same length
    item by item, and else the same value. With `patterns`, `{"=~": EXPRESSION}` stands for each text in which
    the regular expression is found; whoever allows that runs expressions of others.
    """
    if patterns and isinstance(wanted, dict) and wanted.keys() == {PATTERN}:
        return isinstance(given, str | int) and re.search(str(wanted[PATTERN]), str(given)) is not None
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(
            name in given and fits(one, given[name], patterns=patterns) for name, one in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(given, list)
            and len(wanted) == len(given)
            and all(fits(one, other, patterns=patterns) for one, other in zip(wanted, given, strict=True))
        )
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    return bool(wanted == given)
