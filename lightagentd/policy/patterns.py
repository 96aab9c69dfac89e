"""The text patterns of the rules in policy.d, which are those of the configuration (`lightagentd.text`)."""

from lightagentd.text.patterns import (
    GLOB_CHARACTERS,
    PATTERN_MAX_CHARS,
    REGEX_PREFIX,
    REGEX_TEXT_MAX_CHARS,
    TEXT_MAX_CHARS,
    Pattern,
    PatternValue,
    parse_pattern,
    value_text,
)

__all__ = [
    "GLOB_CHARACTERS",
    "PATTERN_MAX_CHARS",
    "REGEX_PREFIX",
    "REGEX_TEXT_MAX_CHARS",
    "TEXT_MAX_CHARS",
    "Pattern",
    "PatternValue",
    "parse_pattern",
    "value_text",
]
