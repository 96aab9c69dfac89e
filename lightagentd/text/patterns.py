"""The text patterns of the rules in policy.d and of the configuration.

    "nginx.service"     this text
    "nginx*"            a shell-style glob over the whole text: * any text, ? one character, [ab] one of these
    "re:[a-z]{1,8}"     a regular expression (Python's) over the whole text
    true, 5             this value

The texts come from the model, so no pattern may take long on any text: match within `text.bounded`. After a
stop, and for a text that is too long (None), the result is unknown, and the caller must fail closed.
"""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass

TEXT_MAX_CHARS = 1 << 20
REGEX_TEXT_MAX_CHARS = 4096
PATTERN_MAX_CHARS = 1000
REGEX_PREFIX = "re:"
GLOB_CHARACTERS = frozenset("*?[")

PatternValue = bool | int | float | str
"""What a pattern is in a file."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One pattern. `value` is the value in the file, `text` its text without `re:`."""

    value: PatternValue
    text: str
    is_regex: bool
    strict: bool
    """Of a rule that allows: there `.` in a regular expression does not match a newline."""
    compiled: re.Pattern[str]

    @property
    def literal(self) -> bool:
        """Whether the pattern matches only its own text."""
        return not self.is_regex and GLOB_CHARACTERS.isdisjoint(self.text)

    def matches(self, text: str) -> bool | None:
        """Whether the pattern matches the whole text; None for one that is too long. Call it in `bounded`."""
        if len(text) > (REGEX_TEXT_MAX_CHARS if self.is_regex else TEXT_MAX_CHARS):
            return None
        return self.compiled.fullmatch(text) is not None


def parse_pattern(value: PatternValue, *, strict: bool) -> Pattern:
    """The pattern for a value in a file. Raises ValueError that says what is wrong."""
    text = value if isinstance(value, str) else json.dumps(value)
    if not text:
        raise ValueError("a pattern is empty")
    if len(text) > PATTERN_MAX_CHARS:
        raise ValueError(f"a pattern is longer than {PATTERN_MAX_CHARS} characters")
    if not text.startswith(REGEX_PREFIX):
        compiled = re.compile(fnmatch.translate(text))
        return Pattern(value=value, text=text, is_regex=False, strict=strict, compiled=compiled)
    text = text.removeprefix(REGEX_PREFIX)
    try:
        compiled = re.compile(text, 0 if strict else re.DOTALL)
    except (re.error, RecursionError, OverflowError) as err:
        raise ValueError(f"{text!r} is not a regular expression: {err}") from err
    return Pattern(value=value, text=text, is_regex=True, strict=strict, compiled=compiled)


def value_text(value: object) -> str | None:
    """A value as text for patterns: a text unchanged, other values as compact JSON with sorted keys.

    None when the value is too deeply nested or has a number that is too long.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return None
