"""Values in commands: each is one word for the shell, whatever is in it.

That holds only where the shell reads words. Inside of quotes, a comment, a here-document or arithmetic a
quoted value could end what it stands in, so a reference there is a fault.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from lightagentd.config.flows.references import Reference, as_text, filled, parsed
from lightagentd.errors import InvalidArgument

_ENDS = {"'": "'", '"': '"', "`": "`", "#": "\n"}
_NAMES = {
    "'": "single quotes",
    '"': "double quotes",
    "`": "backquotes",
    "#": "a comment",
    "<": "a here-document",
    "(": "arithmetic",
}


def is_command(call: str, key: str) -> bool:
    """Whether an argument of a call is read by a shell."""
    return call.startswith("bash.") and key == "command"


def misplaced(template: str) -> str:
    """Where a reference of a command stands that cannot be quoted, as words; empty when all can. Raises
    ValueError for a broken template.
    """
    inside = ""
    for part in parsed(template):
        if isinstance(part, Reference):
            if inside:
                return f"{part} stands in {_NAMES[inside]}"
            continue
        inside = _inside(part, inside)
    return ""


def quoted_for_shell(template: str, look_up: Callable[[Reference], Any]) -> str:
    """The command with its values, each as one word. Raises InvalidArgument as `filled` does, and for a NUL
    byte.
    """

    def word(reference: Reference) -> str:
        text = as_text(filled(str(reference), look_up))
        if "\0" in text:
            raise InvalidArgument(f"{reference} has a NUL byte, which no command can have.")
        return shlex.quote(text)

    return "".join(word(one) if isinstance(one, Reference) else one for one in parsed(template))


def _inside(text: str, inside: str) -> str:
    """What the end of a text stands in, where its beginning stands in `inside`."""
    escaped, before = False, " "
    for place, char in enumerate(text):
        if inside in ("<", "("):
            return inside  # to its end, to be safe
        if escaped:
            escaped = False
        elif char == "\\" and inside != "'":
            escaped = True
        elif inside:
            inside = "" if char == _ENDS[inside] else inside
        elif (
            char in "'\"`"
            or text[place : place + 2] in ("<<", "((")
            or (char == "#" and before in " \t\n;&|(")
        ):
            inside = char
        before = char
    return inside
