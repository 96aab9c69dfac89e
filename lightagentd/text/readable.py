"""Shows people text of others so that every character of it is seen, and says what is easily overlooked.

A person who allows a call must read what would run. So nothing is removed: a character that a terminal would
act on, or not show, is written as an escape such as \\x1b or \\u202e. Letters that are written from right to
left are escapes too, because a terminal would reorder the text beside them.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from lightagentd.text.visible import escaped

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
"""Categories of Unicode whose characters act on a terminal, or are not seen there."""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that are not seen either (Default_Ignorable_Code_Point, and an empty braille cell)."""
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
"""Bidirectional classes whose characters have a terminal show what stands around them in another order."""
LONG_LINES, LONG_CHARS = 20, 1500
"""A text with more than that may have its most important part out of sight when the question comes."""
_MANY_BLANKS = 40
_LOOKS_LATIN = re.compile(
    "[\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b1\u03b3\u03b9\u03ba\u03bd"
    "\u03bf\u03c1\u03c5\u03f2\u0405\u0406\u0408\u0410\u0412\u0415\u041a\u041c-\u041e\u0420-\u0423\u0425\u0430\u0435"
    "\u043a\u043c\u043e\u0440-\u0443\u0445\u0455\u0456\u0458\u0475\u04ae\u04af\u04bb\u04cf\u0501\u051b\u051d\u0570\u0578"
    "\u057d\u0585]"
)
"""Greek, Cyrillic and Armenian letters that a reader takes for Latin ones (UTS #39, confusables)."""


def visible(text: str) -> str:
    """The text with all characters visible; line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    return char if char in " \n\t" or is_seen(char) else escaped(char)


def is_seen(char: str) -> bool:
    """Whether a character is seen, and moves no other one."""
    if unicodedata.category(char) in _UNSEEN or _BLANK.match(char):
        return False
    return unicodedata.bidirectional(char) not in _RIGHT_TO_LEFT


def barred(value: Any) -> str:
    """A value, visible, with a bar before each line but the first: none can look like a line of ours."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return visible(text).replace("\n", "\n| ")


def call_lines(asked: dict[str, Any]) -> list[str]:
    """All of a call that a person is asked about (`api.Approval`), and all that a yes to it allows, as plain
    text: one item for each thing that is said.
    """
    args = asked["args"] if isinstance(asked["args"], dict) else {"arguments": asked["args"]}
    if asked["volatile"]:
        lines = ["Its arguments hold a secret, so they are not shown here."]
    else:
        args = {**args, **({"cwd": asked["cwd"]} if asked["cwd"] else {})}
        lines = [f"{barred(name)}: {barred(value)}" for name, value in args.items()]
        if asked["preview"]:
            lines.append(f"What it would do: {barred(asked['preview'])}")
    if asked["confirm_within_s"]:
        lines.append(f"Taken back {asked['confirm_within_s']} s after it is done, unless it is confirmed")
        lines += [f"Taken back by: {barred(asked['inverse'])}"] if asked["inverse"] else []
        lines += [f"Confirmed when this ends with 0: {barred(asked['check'])}"] if asked["check"] else []
    lines += warnings(args | {"check": asked["check"], "inverse": asked["inverse"]})
    return [
        *lines,
        f"Asked by the rule {barred(asked['rule'])}: {barred(asked['reason'])}".removesuffix(": "),
    ]


def warnings(arguments: dict[str, Any]) -> list[str]:
    """Easily overlooked parts of the arguments, as sentences; they come last, next to the question."""
    found = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown, lines = visible(name), text.count("\n") + 1
        if lines > LONG_LINES or len(text) > LONG_CHARS:
            found.append(f"Read all of it: {shown} has {lines} lines and {len(text)} characters.")
        if re.search(rf"[ \t]{{{_MANY_BLANKS}}}|(?:\n[ \t]*){{10}}", text):
            found.append(f"Look closely: in {shown} something stands behind many blanks or empty lines.")
        if mixed := [word for word in re.findall(r"\w+", text) if misleads(word)]:
            letters = sorted({char for word in mixed for char in word if not is_latin(char)})
            names = ", ".join(f"U+{ord(char):04X} {unicodedata.name(char, '')}" for char in letters[:5])
            found.append(f"Look closely: in {shown} a word has letters that only look like others: {names}.")
    return found


def misleads(word: str) -> bool:
    """Whether a word has letters of several scripts, or wholly of those that look like Latin ones."""
    letters = [char for char in word if char.isalpha()]
    if any(char.isascii() for char in letters):
        return not all(is_latin(char) for char in letters)
    return any(not is_latin(char) for char in letters) and all(
        _LOOKS_LATIN.match(char) or unicodedata.normalize("NFKC", char).isascii() for char in letters
    )


def is_latin(char: str) -> bool:
    """Whether a character is a Latin letter, or no letter."""
    return not char.isalpha() or char.isascii() or unicodedata.name(char, "").startswith("LATIN ")
