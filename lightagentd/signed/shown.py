"""What a person is shown of a change that waits for them: all of its statement, and nothing hidden in it.

The digest that they answer is that of the statement: two statements give the same lines only if they are
equal. A character that is not seen, that moves others or that only looks like another is written as its
number, such as <U+202E>; a text that has such a mark already gets <U+003C>U+202E>. A text is shown after a
colon, any other value as JSON after an equals sign; each line of a text of several lines has a bar before it.
What the daemon says beside the statement, and the fields that it alone knows, are marked as its word.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from lightagentd.text.readable import LONG_CHARS, LONG_LINES, is_latin, is_seen, misleads, warnings

_DAEMON = "the daemon says"
_HEAD, _TAIL = 12, 4
"""So many lines of a folded text are shown."""
_ALL_LINES = 60
"""More lines of arguments than that are folded, too."""
_CALL = ("agent", "tool", "action", "effect")
_TERMS = {
    "confirm_within_s": "taken back after seconds",
    "check": "unless this command ends with 0",
    "inverse": "taken back by",
}
_WORD = ("owner", "session", "trigger", "above")
"""Fields of the statement that nobody but the daemon knows."""
_SAID = ("chain", "tainted", "rule", "reason", "trace_id", "preview")
"""In this order; others follow by their names."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PARTS = re.compile(r"(<(?=U\+)|\w+)")
"""Words, and what a mark begins with."""
_SLASHES = "\u0589\u05c3\u2010\u2044\u2215\u2236\u29f8\u2571\ua789"
"""Signs that a reader takes for / : or - (UTS #39, confusables)."""

Kind = Literal["call", "value", "said", "warning", "folded"]


class Line(NamedTuple):
    """One line of text, without a line break. `folded` stands for what is left out, and counts it."""

    kind: Kind
    text: str


def lines(request: Mapping[str, Any], *, whole: bool = True, secret: Collection[str] = ()) -> list[Line]:
    """A request as the approver gives it (`approver.request.Request.to_dict`); all of it is in the lines.

    Not `whole`, the middle of long texts is left out, and arguments that are `secret`: each such place is a
    line of the kind `folded`. Show all to whoever wants to see it before they answer. What is secret is for
    the tool's own file to say, that with the `tool_sha256` of the statement: the daemon could call any
    argument so.
    """
    statement, said = dict(request["statement"]), dict(request["said"])
    args = statement.pop("args")
    first = [f"{name}: {visible(str(statement.pop(name)))}" for name in _CALL]
    terms = {name: value for name in _TERMS if (value := statement.pop(name))}
    word = {name: statement.pop(name) for name in _WORD if name in statement}
    found = [Line("call", text) for text in first]
    found += _folded(_args(args, () if whole else secret, whole=whole), _ALL_LINES, whole=whole)
    for name, value in {**terms, **statement}.items():
        if value or name == "call_id":
            found += _value("value", _TERMS.get(name, name), value, whole=whole)
    said = {name: said.pop(name) for name in _SAID if name in said} | dict(sorted(said.items()))
    for name, value in {**word, **said}.items():
        if value or name == "owner":
            found += _value("said", f"{_DAEMON}: {name}", value, whole=whole)
    found += [Line("warning", text) for text in _warnings(args | terms)]
    return [*found, Line("value", f"digest: {visible(str(request['digest']))}")]


def visible(text: str) -> str:
    """The text with a mark for each character that is not seen as what it is; line breaks and tabs stay."""
    if text.isascii() and text.isprintable() and "<U+" not in text:
        return text
    parts = _PARTS.split(text)
    out = "".join(_word(part) if at % 2 else "".join(map(_char, part)) for at, part in enumerate(parts))
    return re.sub(r" +$", lambda found: _code(" ") * len(found[0]), out, flags=re.MULTILINE)


def _word(word: str) -> str:
    if word == "<":
        return _code(word)
    if not misleads(word):
        return "".join(map(_char, word))
    return "".join(_char(char) if is_latin(char) else _code(char) for char in word)


def _char(char: str) -> str:
    if char in "\n\t" or (char.isascii() and char.isprintable()):
        return char
    looks_ascii = not char.isalnum() and unicodedata.normalize("NFKC", char).isascii()
    return _code(char) if looks_ascii or char in _SLASHES or not is_seen(char) else char


def _code(char: str) -> str:
    return f"<U+{ord(char):04X}>"


def _args(args: Mapping[str, Any], secret: Collection[str], *, whole: bool) -> list[Line]:
    found = []
    for name in sorted(args):
        if name in secret:
            text = args[name] if isinstance(args[name], str) else json.dumps(args[name])
            shown = f"{_named(name)}: … {_count(text)}, a secret: not shown here …"
            found.append(Line("folded", shown))
        else:
            found += _value("value", _named(name), args[name], whole=whole)
    return found


def _named(name: str) -> str:
    """The name of an argument, which can be any text."""
    return name if _NAME.fullmatch(name) else visible(json.dumps(name, ensure_ascii=False))


def _value(kind: Kind, name: str, value: Any, *, whole: bool) -> list[Line]:
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, sort_keys=True)
        return _shortened([Line(kind, f"{name} = {visible(text)}")], whole=whole)
    first, *rest = visible(value).split("\n")
    if not rest:
        return _shortened([Line(kind, f"{name}: {first}")], whole=whole)
    barred = [Line(kind, f"| {text}") for text in (first, *rest)]
    return [Line(kind, f"{name}:"), *_shortened(_folded(barred, LONG_LINES, whole=whole), whole=whole)]


def _folded(found: list[Line], most: int, *, whole: bool) -> list[Line]:
    """The first and the last of more lines than `most`."""
    if whole or len(found) <= most:
        return found
    head, tail = (most - _TAIL if most > LONG_LINES else _HEAD), _TAIL
    left_out = found[head:-tail]
    text = (
        f"… {len(left_out)} lines with {sum(len(one.text) for one in left_out)} characters: not shown here …"
    )
    return [*found[:head], Line("folded", text), *found[-tail:]]


def _shortened(found: list[Line], *, whole: bool) -> list[Line]:
    """The beginning and the end of each line that is too long, on lines of their own."""
    if whole:
        return found
    return [part for line in found for part in (_parts(line) if len(line.text) > LONG_CHARS else (line,))]


def _parts(line: Line) -> tuple[Line, ...]:
    begin, end = LONG_CHARS // 2, LONG_CHARS // 4
    count = len(line.text) - begin - end
    left_out = Line("folded", f"… {count} characters: not shown here …")
    return line._replace(text=line.text[:begin]), left_out, line._replace(text=line.text[-end:])


def _count(text: str) -> str:
    return f"{text.count(chr(10)) + 1} lines with {len(text)} characters"


def _warnings(args: Mapping[str, Any]) -> list[str]:
    found = warnings(dict(args))
    for name, value in args.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if marks := visible(text).count("<U+"):
            found.append(f"Look closely: in {_named(name)} {marks} characters are written as <U+…>.")
    return found
