"""Parses shell text for rules: strictly for rules that allow, leniently for rules that ask or deny.

`simple_command` accepts only text that bash(1) certainly reads as the words of one command and nothing else.
`commands_in` guesses every command in a text, and prefers to find too many. No guess can be complete, since a
shell has endless ways to write the same command. A rule that denies shell text is a convenience; the sandbox
of the effect is the protection.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

_BLANKS = " \t"
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+=-]+")
"""Characters that mean themselves everywhere in an unquoted word (bash(1), QUOTING and EXPANSION)."""
_NOT_IN_DOUBLE_QUOTES = frozenset('$`\\!"')

_KEYWORDS = "if then elif else fi time for in until while do done case esac coproc select function"
RESERVED = frozenset(_KEYWORDS.split())
"""Words that begin something else than a simple command; those made of other characters are not plain."""

_SPLIT = re.compile(r"[;&|\n\r()<>`]|\$\(|\{(?!\})|(?<!\{)\}")
_QUOTES = re.compile(r"\\\n|\$?['\"]|\\")
_FIELD_SEPARATOR = re.compile(r"\$\{?IFS\}?")
_WRAPPERS = (
    "! sudo doas env nohup exec command builtin eval nice ionice setsid timeout xargs stdbuf chroot unshare"
    " nsenter systemd-run runuser su flock watch strace busybox bash sh dash zsh ksh -c -exec -execdir"
)
_BEFORE_COMMANDS = RESERVED | frozenset(_WRAPPERS.split())
"""Words after which another command begins: keywords, wrappers and shells."""
_TEXT_MAX = 16 << 10
_PIECES_MAX = 1000
"""Longer texts, and more commands, are not taken apart: such a text counts as one that cannot be read."""


def simple_command(text: str) -> list[str] | None:
    """The words of a text that is one simple command; None when it may be anything else.

    Words may be quoted. There are no expansions, substitutions, redirections, operators, comments, escapes,
    assignments before the command, or newlines in such a text.
    """
    words: list[str] = []
    at = 0
    while True:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if at == len(text):
            break
        word, quoted = "", False
        while at < len(text) and text[at] not in _BLANKS:
            if text[at] in "'\"":
                inner, at = _quoted(text, at)
                if inner is None:
                    return None
                word, quoted = word + inner, True
            elif found := _PLAIN.match(text, at):
                word, at = word + found[0], found.end()
            else:
                return None
        if not words and (not word or "=" in word or (not quoted and word in RESERVED)):
            return None
        words.append(word)
    return words or None


def _quoted(text: str, at: int) -> tuple[str | None, int]:
    """The content of the quotes that open at a position, and the position after them."""
    quote = text[at]
    end = text.find(quote, at + 1)
    inner = text[at + 1 : end]
    if end < 0 or not inner.isprintable() or (quote == '"' and not _NOT_IN_DOUBLE_QUOTES.isdisjoint(inner)):
        return None, at
    return inner, end + 1


def commands_in(text: str) -> list[str] | None:
    """Every command that may be in a text, without quotes and with single spaces. Each is also given without
    a wrapper such as sudo, and with the bare name of its program. None when there are too many.
    """
    if len(text) > _TEXT_MAX:
        return None
    text = _FIELD_SEPARATOR.sub(" ", text)
    unquoted = _QUOTES.sub("", text)
    found: dict[str, None] = {_spaced(text): None, _spaced(unquoted): None}
    for source in (text, unquoted):
        for piece in _SPLIT.split(source):
            for command in _unwrapped(_spaced(_QUOTES.sub("", piece))):
                found[command] = None
                program, space, rest = command.partition(" ")
                found[posixpath.basename(program) + space + rest] = None
                if len(found) > _PIECES_MAX:
                    return None
    return [command for command in found if command]


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _unwrapped(command: str) -> Iterator[str]:
    """A command, and its forms without leading wrappers, their options and assignments."""
    yield command
    words = command.split(" ")
    after_wrapper = True
    for number, word in enumerate(words):
        if posixpath.basename(word) in _BEFORE_COMMANDS:
            after_wrapper = True
            yield " ".join(words[number + 1 :])
        elif after_wrapper and (word.startswith("-") or "=" in word or word[:1].isdigit()):
            yield " ".join(words[number + 1 :])
        else:
            after_wrapper = False
