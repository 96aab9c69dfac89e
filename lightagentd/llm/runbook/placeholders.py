"""Replaces the arguments of a prompt with placeholders.

A placeholder is `<kind>` or `<kind:word>`. The word comes from the prompt or from the value itself; the
matcher weighs both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Extraction:
    """The prompt with placeholders, and the first value of each kind."""

    text: str
    values: dict[str, str] = field(default_factory=dict)

    def take(
        self, pattern: str | re.Pattern[str], kind: str, value: Callable[[re.Match[str]], str | None]
    ) -> None:
        """Replace matches with a placeholder; `value` returns None for a match that is no valid value."""

        def replace(found: re.Match[str]) -> str:
            got = value(found)
            if got is None:
                return found.group(0)
            self.values.setdefault(kind, got)
            word = found.groupdict().get("name") or _label(kind, got)
            keep = found.groupdict().get("keep") or ""
            return f" {keep} <{kind}:{word.lower()}> " if word else f" {keep} <{kind}> "

        self.text = re.sub(pattern, replace, self.text, flags=re.IGNORECASE)


def _label(kind: str, value: str) -> str:
    """A word that the value itself adds: `certfile` for a path that ends in .pem, `varlog` for a log file."""
    if kind == "path" and value.endswith((".pem", ".crt", ".cer", ".cert", ".p12")):
        return "certfile"
    if kind == "path" and re.search(r"\.log$|^/var/log/(?:syslog|messages|\w+\.log)", value):
        return "varlog"
    if kind == "path" and "reboot-required" in value:
        return "rebootrequired"
    return "sinceboot" if kind == "time" and value == "boot" else ""
