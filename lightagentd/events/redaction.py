"""Takes secrets out of what is about to become an event.

The history calls the redactor once, when an event is made, so that a secret reaches neither the store
nor the journal. Found are the credentials that the daemon itself holds, by value, and well-known key
formats, by pattern. What was removed is marked with its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_MIN_SECRET = 8
"""Shorter values are not searched for: they would blot out ordinary words."""

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "private-key",
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]{0,20000}?-----END [A-Z ]*PRIVATE KEY-----"),
    ),
    ("api-key", re.compile(r"\bsk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{20,}")),
    ("github-token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})")),
    ("aws-key", re.compile(r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b")),
    ("slack-token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("bearer", re.compile(r"(?i)(?<=authorization: bearer )[A-Za-z0-9._~+/=-]{8,}")),
)

_HINTS = ("-----BEGIN", "sk-", "gh", "AKIA", "ASIA", "xox", "earer ")


class Redactor:
    """Removes secrets from JSON values. `secrets` are credentials by value; more can be added later."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        for value in secrets:
            self.add(value)

    def add(self, value: str) -> None:
        """From now on, remove this value wherever it stands."""
        if len(value) >= _MIN_SECRET:
            self._values.add(value)

    def text(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, "[removed: credential]")
        if any(hint in text for hint in _HINTS):
            for kind, pattern in PATTERNS:
                text = pattern.sub(f"[removed: {kind}]", text)
        return text

    def value(self, value: Any) -> Any:
        """The same JSON value with each string, keys included, cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value
