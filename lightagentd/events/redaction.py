"""Takes secrets out of what is about to become an event.

The history calls the redactor once, when an event is made, so that a secret reaches neither the store
nor the journal. Found are the credentials that the daemon itself holds, by value, and well-known key
formats, by pattern. What was removed is marked with its kind.

Nearly every event has nothing to remove, so `suspects` looks at its JSON as a whole first, and only a
suspect is taken apart. Each pattern takes time that grows with the text, and no faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_MIN_SECRET = 8
"""Shorter values are not searched for: they would blot out ordinary words."""

PATTERNS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        "private-key",
        ("-----BEGIN",),
        # To its END line; without one (output that was cut), as far as it looks like key material.
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:[^-]|-(?!----))*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"|(?:\s|\\[rn]|[A-Za-z0-9+/=]{16,})*+[A-Za-z0-9+/=]{0,15})"
        ),
    ),
    ("api-key", ("sk-",), re.compile(r"\bsk-[A-Za-z0-9_-]{20,}")),
    (
        "github-token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})"),
    ),
    ("aws-key", ("AKIA", "ASIA"), re.compile(r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b")),
    ("slack-token", ("xox",), re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    (
        "bearer",
        ("earer ", "EARER "),
        re.compile(
            r"(?i)(?:(?<=authorization: bearer )[A-Za-z0-9._~+/=-]{8,}|(?<=\bbearer )[A-Za-z0-9._~+/=-]{20,})"
        ),
    ),
)
"""Kind, words of which one stands in each text that the pattern can match, and the pattern."""

_HINTS = tuple(hint.encode() for _, hints, _ in PATTERNS for hint in hints)


class Redactor:
    """Removes secrets from JSON values. `secrets` are credentials by value; more can be added later."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values: tuple[str, ...] = ()
        self._in_json: tuple[bytes, ...] = ()
        for value in secrets:
            self.add(value)

    def add(self, value: str) -> None:
        """From now on, remove this value wherever it stands. May be called in any thread."""
        if len(value) >= _MIN_SECRET and value not in self._values:
            # The longest first: a value that is a part of another would leave the other's rest behind.
            self._values = tuple(sorted((*self._values, value), key=len, reverse=True))
            quoted = json.dumps(value, ensure_ascii=False)[1:-1]
            self._in_json = (*self._in_json, quoted.encode("utf-8", "replace"))

    def suspects(self, data: bytes) -> bool:
        """False when no string in this JSON, as `dump_json` writes it, can hold something to remove."""
        for part in (*self._in_json, *_HINTS):  # noqa: SIM110 - any() takes three times as long here
            if part in data:
                return True
        return False

    def text(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, "[removed: credential]")
        for kind, hints, pattern in PATTERNS:
            if any(hint in text for hint in hints):
                text = pattern.sub(f"[removed: {kind}]", text)
        return text

    def value(self, value: Any) -> Any:
        """The same JSON value with each string, keys included, cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(key) if isinstance(key, str) else key: self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value
