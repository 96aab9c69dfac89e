"""The text of a trigger's prompt, with names in braces for what happened: `why did {unit} fail`.

What stands in for a name comes from outside, so it is one short line without control characters; the whole of
it follows the question in a block. `{{` and `}}` are braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MOST_CHARS = 300
"""Of one value in the question: names of units have up to 255."""
UNKNOWN = "(unknown)"


def names_of(template: str) -> list[str]:
    """The names in a template. Raises ValueError, with a sentence, for one that is broken."""
    try:
        parts = [part for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as err:
        raise ValueError(f"the template is broken: {err}; a brace is written twice, {{{{ or }}}}") from None
    for _, name, form, conversion in parts:
        if not _NAME.fullmatch(name or "") or form or conversion:
            raise ValueError(
                f"the template is broken: {{{(name or '')[:60]}}} is no plain name; a brace is written twice"
            )
    return list(dict.fromkeys(name for _, name, _, _ in parts if name))


def fill(template: str, data: Mapping[str, Any]) -> str:
    """The text with the values; what is not known is said to be so."""
    return "".join(
        text + ("" if name is None else _line(data.get(name)))
        for text, name, _, _ in Formatter().parse(template)
    )


def _line(value: Any) -> str:
    if value in (None, ""):
        return UNKNOWN
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def one_line(text: str) -> str:
    """The beginning of a text, as one line without control characters."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + "…"
