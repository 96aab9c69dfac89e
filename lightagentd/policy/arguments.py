"""Conditions of a rule on a call's arguments: `args = { NAME = PATTERN }`.

A name with dots addresses a field of an object, and several patterns are alternatives. How a pattern is
matched depends on the rule's decision, so that a doubt never lets a call through:

- In a rule that **allows**, the argument must be there, every element of a list must match, and the name must
  be spelled as it is. A path must be absolute, has no `..`, and `*` stays within one folder (`**` does not).
  In a URL the host is compared by itself, so that `*` cannot reach beyond it. A command must be
  one simple command, compared word by word: `*` is one word that is no option, `**` one or more of those,
  in a word with slashes `*` stays within one folder, and no word has `..`. Unless the rule names the folder
  (`cwd`) too, it is the root folder: relative names mean files of whoever owns the folder.
- In a rule that **asks or denies**, one element is enough, names are compared without case, `*` matches any
  text, a path matches as it stands and as it reads without `..` and `//`, and a command matches as a whole or
  by any command that a guess finds in it.
- What cannot be decided (a text that is too long, say) does not match in the first, and does in the others.

Symbolic links are not followed: a pattern sees names, and the sandbox sees files.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lightagentd.policy.patterns import Pattern, PatternValue, parse_pattern, value_text
from lightagentd.policy.shelltext import RESERVED, commands_in, simple_command
from lightagentd.text.bounded import TakesTooLongError, bounded

PATH_MAX_CHARS = 4096
URL_MAX_CHARS = 8192
_COMMAND, _FOLDER = "command", "cwd"
_PATH_NAMES = ("path", "paths", _FOLDER)
_ANY_WORDS = "**"
_GOES_UP = re.compile(r"\.\.(?:/|$)")
"""A path in a word that leads out of its folder."""
_COMMAND_WORD = re.compile(r"[A-Za-z0-9_./:,@%+=*?\[\]!^-]+")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?"
    r"(?P<rest>[/?][!-\"$-\[\]-~]*)?"
)
"""Only what every reader takes apart in the same way: no user, fragment, backslash, blank or control."""
_URL_PATTERN = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<host>[A-Za-z0-9._*?-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?"
    r"(?P<rest>[/?].*)?"
)
_DOTS_IN_URL = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:[/?]|$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ArgumentCondition:
    """One argument and its patterns. `strict` is set in a rule that allows."""

    name: str
    patterns: tuple[Pattern, ...]
    strict: bool
    optional: bool = False
    """Whether it also holds without the argument."""

    def holds(self, args: dict[str, Any]) -> bool:
        """Whether the arguments of a call meet the condition. Never raises."""
        parts = tuple(self.name.split("."))
        try:
            with bounded():
                return self._every(args, parts) if self.strict else self._some(args, parts)
        except (TakesTooLongError, RecursionError, MemoryError):
            return not self.strict

    def _every(self, value: Any, parts: tuple[str, ...]) -> bool:
        if isinstance(value, list):
            return bool(value) and all(self._every(item, parts) for item in value)
        if not parts:
            return self._allows(value)
        if not isinstance(value, dict):
            return False
        found = list(_children(value, parts))
        if not found:
            return self.optional
        return all(exact and self._every(item, rest) for item, rest, exact in found)

    def _some(self, value: Any, parts: tuple[str, ...]) -> bool:
        if not parts:
            return self._catches(value)
        if isinstance(value, list):
            return any(self._some(item, parts) for item in value)
        if not isinstance(value, dict):
            return False
        return any(self._some(item, rest) for item, rest, _ in _children(value, parts))

    def _allows(self, value: Any) -> bool:
        kind = _kind(self.name)
        if kind and not isinstance(value, str):
            return False
        if kind == "command":
            words = simple_command(value)
            return words is not None and any(_command_matches(words, pattern) for pattern in self.patterns)
        if kind == "path":
            path = _plain_path(value)
            return path is not None and any(_path_matches(path, pattern) for pattern in self.patterns)
        if kind == "url":
            return any(_url_matches(value, pattern) for pattern in self.patterns)
        return any(
            pattern.matches(text) is True
            for text in _number_texts(value)
            for pattern in self.patterns
            if text is not None
        )

    def _catches(self, value: Any) -> bool:
        """Whether any reading of the value or of a part of it matches, or is undecidable."""
        for part in _with_parts(value):
            for text in self._readings(part):
                if text is None or any(pattern.matches(text) is not False for pattern in self.patterns):
                    return True
        return False

    def _readings(self, value: Any) -> Iterator[str | None]:
        yield from _number_texts(value)
        if not isinstance(value, str):
            return
        kind = _kind(self.name)
        if kind == "path":
            yield from _path_readings(value)
        elif kind == "url":
            yield from _url_readings(value)
        elif kind == "command":
            commands = commands_in(value)
            yield from [None] if commands is None else commands


def _children(value: dict[str, Any], parts: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...], bool]]:
    """The values that a dotted name leads to in an object, each with the rest of the name and whether the key
    is spelled exactly so. A key may have dots itself.
    """
    for size in range(1, len(parts) + 1):
        name = ".".join(parts[:size])
        for key, item in value.items():
            if key == name or key.casefold() == name.casefold():
                yield item, parts[size:], key == name


def _with_parts(value: Any) -> Iterator[Any]:
    """The value itself, then every scalar part of a list or an object."""
    yield value
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
        elif part is not value:
            yield part


def _kind(name: str) -> str:
    """The kind of an argument, by its name: command, path, url, or empty for any text."""
    last = name.rpartition(".")[2].lower()
    if last == _COMMAND:
        return "command"
    if last in _PATH_NAMES or last.endswith(("_path", "_paths")):
        return "path"
    return "url" if last in ("url", "urls") or last.endswith("_url") else ""


def _number_texts(value: Any) -> list[str | None]:
    """The text of a value; a whole number as a fraction has two."""
    texts = [value_text(value)]
    if isinstance(value, float) and value.is_integer():
        texts.append(value_text(int(value)))
    return texts


def _path_readings(path: str) -> Iterator[str]:
    """A path without `.`, `..` and double slashes; a relative one also as if below the root. Each also with a
    slash at the end, so that `/etc/*` matches `/etc` too.
    """
    for reading in (path, f"/{path}"):
        plain = (
            "/" + posixpath.normpath(reading).lstrip("/")
            if reading[:1] == "/"
            else posixpath.normpath(reading)
        )
        yield plain
        yield f"{plain}/"


def _url_readings(url: str) -> Iterator[str | None]:
    """A URL in lower case, without surrounding blanks, user, port and fragment."""
    text = url.strip().lower().replace("\\", "/")
    yield text
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        yield None
        return
    query = f"?{parts.query}" if parts.query else ""
    yield f"{parts.scheme}://{host}{parts.path or '/'}{query}"


def _plain_path(path: str) -> str | None:
    """An absolute path without empty parts and `.`; None for one that is relative, too long or has `..`."""
    if not path.startswith("/") or "\0" in path or len(path) > PATH_MAX_CHARS:
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return None if ".." in parts else "/" + "/".join(parts)


def _path_matches(path: str, pattern: Pattern) -> bool:
    if pattern.is_regex:
        return pattern.matches(path) is True
    return _parts_match(path[1:].split("/"), pattern.text[1:].split("/"), _fnmatch)


def _fnmatch(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern)


def _word_matches(word: str, pattern: str) -> bool:
    """Whether a word of a command matches. An option matches only a pattern written as an option. In a
    pattern with slashes `*` stays within one folder.
    """
    if not word or (word.startswith("-") and not pattern.startswith("-")):
        return False
    if "/" in pattern:
        return _parts_match(word.split("/"), pattern.split("/"), _fnmatch)
    return _fnmatch(word, pattern)


def _parts_match(parts: Sequence[str], patterns: Sequence[str], match: Any) -> bool:
    """Whether each part matches its pattern, where `**` stands for one or more parts."""
    reached = {0}
    """How many parts the patterns so far can have taken."""
    for pattern in patterns:
        if pattern == _ANY_WORDS:
            taken: set[int] = set()
            for at in reached:
                end = at
                while end < len(parts) and end + 1 not in taken and match(parts[end], "*"):
                    end += 1
                    taken.add(end)
            reached = taken
        else:
            reached = {at + 1 for at in reached if at < len(parts) and match(parts[at], pattern)}
        if not reached:
            return False
    return len(parts) in reached


def _command_matches(words: Sequence[str], pattern: Pattern) -> bool:
    if any(_GOES_UP.search(word) for word in words):
        return False
    if pattern.is_regex:
        return pattern.matches(shlex.join(words)) is True
    return _parts_match(words, pattern.text.split(), _word_matches)


def _url_matches(url: str, pattern: Pattern) -> bool:
    value = _URL.fullmatch(url) if len(url) <= URL_MAX_CHARS else None
    if value is None or _DOTS_IN_URL.search(value["rest"] or "/"):
        return False
    if pattern.is_regex:
        return pattern.matches(url) is True
    wanted = _URL_PATTERN.fullmatch(pattern.text)
    return (
        wanted is not None
        and value["scheme"].lower() == wanted["scheme"].lower()
        and _fnmatch(value["host"].lower(), wanted["host"].lower().replace("[", "[[]"))
        and (value["port"] or "") == (wanted["port"] or "")
        and _fnmatch(value["rest"] or "/", wanted["rest"] or "/")
    )


def parse_condition(
    name: str, values: PatternValue | Sequence[PatternValue], *, strict: bool
) -> ArgumentCondition:
    """The condition on one argument. Raises ValueError if it is invalid or could never match."""
    listed = [values] if isinstance(values, bool | int | float | str) else list(values)
    if not listed:
        raise ValueError("an empty list matches nothing")
    if not name or "" in name.split("."):
        raise ValueError(f"{name!r} is not the name of an argument")
    patterns = tuple(parse_pattern(value, strict=strict) for value in listed)
    if strict:
        for pattern in patterns:
            _check_can_match(_kind(name), pattern)
    return ArgumentCondition(name=name, patterns=patterns, strict=strict)


def implied_conditions(named: Collection[str]) -> Iterator[ArgumentCondition]:
    """What a rule that allows a command says without naming it: the command runs in the root folder."""
    for name in named:
        folder = name[: name.rfind(".") + 1] + _FOLDER
        if _kind(name) == _COMMAND and folder not in named:
            root = parse_pattern("/", strict=True)
            yield ArgumentCondition(name=folder, patterns=(root,), strict=True, optional=True)


def _check_can_match(kind: str, pattern: Pattern) -> None:
    if pattern.is_regex:
        return
    if kind == "path" and (not pattern.text.startswith("/") or _plain_path(pattern.text) != pattern.text):
        raise ValueError(
            f"{pattern.text!r}: a path in a rule that allows is absolute, without .., // and / at its end"
        )
    if kind == "url" and not _URL_PATTERN.fullmatch(pattern.text):
        raise ValueError(f"{pattern.text!r}: a URL in a rule that allows is SCHEME://HOST/PATH")
    if kind == "command":
        words = pattern.text.split()
        if not words or words[0] in RESERVED or "=" in words[0]:
            raise ValueError(f"{pattern.text!r}: a command in a rule that allows begins with a program")
        for word in words:
            if not _COMMAND_WORD.fullmatch(word):
                raise ValueError(
                    f"{word!r}: a rule allows one simple command, whose words hold no such characters"
                )
