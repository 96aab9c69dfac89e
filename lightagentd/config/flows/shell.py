"""Values in commands: each is one word for the shell, or a part of one, whatever is in it.

A value is written in single quotes, so it may stand only where a shell reads plain words. In other places a
quote of its own would end what it stands in, or be taken off before the text is read again: there a
reference is a fault. Where it is not sure what a shell reads, as behind a here-document, a reference is a
fault, too. It is the same for bash(1), its POSIX mode, and dash(1), which run the commands.

What a program does with its words is up to the author of the flow: `eval`, `sh -c`, `ssh`, `declare -i` and
`test -v` read a word again as code, and a word that begins with `-` may be an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lightagentd.config.flows.references import Reference, as_text, filled, parsed
from lightagentd.errors import InvalidArgument

MOST_BYTES = 128 * 1024 - 1
"""The longest argument that execve(2) takes."""
_HERE = "\0"
"""Stands for a reference while a command is read."""
_UNSURE = "in or behind "
_BRACES = r"""(?P<braces>\$\{(?:[^\0'"`\\$(){}]*\})?)"""
_SUM = r"\$\(\([\w\s+*/%=!?:,$-]*\)\)"
_RUN = r"[\w./:,@%+{}~^*?!-]+"
_PLAIN = re.compile(
    rf"""(?P<escaped>\\.?)
    | (?P<single>'[^']*'?)
    | (?P<double>")
    | (?P<backquote>`)
    | (?P<ansi>\$')
    | (?P<sum>{_SUM})
    | (?P<arithmetic>\$?\(\(|\$\[)
    | {_BRACES}
    | (?P<dollar>\$\0)
    | (?P<inner>\$\(|[<>]\()
    | (?P<list>=\()
    | (?P<open>\()
    | (?P<close>\))
    | (?P<heredoc><<<?)
    | (?P<blank>[ \t\n;&|<>])
    | (?P<hash>\#)
    | (?P<index>\[)
    | (?P<text>\0|\$\$|{_RUN}|.)""",
    re.VERBOSE | re.DOTALL,
)
_IN_QUOTES = re.compile(
    rf"""(?P<escaped>\\.?)
    | (?P<double>")
    | (?P<backquote>`)
    | (?P<sum>{_SUM})
    | (?P<arithmetic>\$\(\(|\$\[)
    | {_BRACES}
    | (?P<inner>\$\()
    | (?P<here>\0)
    | (?P<text>\$\$|{_RUN}|.)""",
    re.VERBOSE | re.DOTALL,
)
_INDEX = re.compile(r"[^\[\]\0'\"`\\(){} \t\n;&|<>]*\]")
_COMMENT = re.compile(r"[^\n]*")
_GIVES_UP = {"backquote": "backquotes", "ansi": "$'...'", "arithmetic": "arithmetic", "list": "a list"}
_READS_ON = {"[[": "[[, use [", "shopt": "shopt", "alias": "alias"}
"""Words after which a command is read by other rules."""
_READS_AGAIN = re.compile(
    r"(?<![\w./=-])(eval|let|trap|ssh|su|declare +-[A-Za-z]{0,4}i|(?:ba|da|k|z)?sh +-[a-z]{0,4}c)(?![\w./=-])"
)
_ENDS = re.compile(r"[;&|\n]")
_LONGEST = 1 + max(map(len, _READS_ON))
_ENDS_NOTHING = " \t\n;&|\"'"
"""What may stand before a line that goes on, because it makes no other token with what follows."""


def is_command(call: str, key: str) -> bool:
    """Whether an argument of a call is read by a shell."""
    return call.startswith("bash.") and key == "command"


def misplaced(template: str) -> str:
    """Why a command cannot be run, such as a reference at a place where it cannot be quoted, as words; empty
    when it can. Raises ValueError for a broken template.
    """
    parts = parsed(template)
    if any(_HERE in one for one in parts if isinstance(one, str)):
        return "a NUL byte stands in it"
    if len(template.encode(errors="surrogatepass")) > MOST_BYTES:
        return f"it has more than {MOST_BYTES} bytes"
    found = _Reader("".join(_HERE if isinstance(one, Reference) else one for one in parts)).fault()
    if found is None:
        return ""
    number, where = found
    reference = [one for one in parts if isinstance(one, Reference)][number]
    return f"{reference} stands {where}, where it cannot be quoted; put it outside: it is one word"


def read_again(template: str) -> str:
    """Which program of a command may read a reference again as code, as far as a look can tell."""
    text = "".join(_HERE if isinstance(one, Reference) else one for one in parsed(template))
    begins = (one.rpartition(_HERE)[0] for one in _ENDS.split(text))
    return next((found[1] for one in begins if (found := _READS_AGAIN.search(one))), "")


def quoted_for_shell(template: str, look_up: Callable[[Reference], Any]) -> str:
    """The command with its values, each as one word. Raises InvalidArgument as `filled` does, and for a value
    that no command can have.
    """

    def word(reference: Reference) -> str:
        text = as_text(filled(str(reference), look_up))
        if "\0" in text:
            raise InvalidArgument(f"{reference} has a NUL byte, which no command can have.")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidArgument(f"{reference} has half of a surrogate pair, which no command can have.")
        # Always in quotes: bare, 2 before > would be a descriptor, and `if` or A=b a command's begin no word.
        return "'" + text.replace("'", "'\"'\"'") + "'"

    return "".join(word(one) if isinstance(one, Reference) else one for one in parsed(template))


class _Reader:
    """Reads a command as a shell does, from its begin to the first reference that stands at a wrong place."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._inside: list[str] = []
        """The quotes and parentheses that are open."""
        self._word = ""
        """The word that is read, with NUL for what was quoted or expanded; empty between words."""

    def fault(self) -> tuple[int, str] | None:
        """Which reference stands wrong, counted from 0, and where."""
        while self._at < len(self._text):
            quotes = self._inside[-1:] == ['"']
            match = (_IN_QUOTES if quotes else _PLAIN).match(self._text, self._at)
            assert match is not None
            assert match.lastgroup is not None
            begin, self._at = self._at, match.end()
            take = self._quoted if quotes else self._plain
            where = take(match.lastgroup, match[0])
            unsure = where.startswith(_UNSURE)
            place = self._text.find(_HERE, begin, len(self._text) if unsure else self._at)
            if where and place >= 0:
                return self._text.count(_HERE, 0, place), where
            if unsure:
                return None
        return None

    def _quoted(self, kind: str, text: str) -> str:
        """Takes a token in double quotes; gives where a reference in it stands, empty for a right place."""
        if kind == "double":
            self._inside.pop()
            self._word = _HERE
        elif kind == "here":
            return "in double quotes"
        return self._both(kind, text)

    def _plain(self, kind: str, text: str) -> str:
        """As `_quoted`, for a token outside of quotes."""
        if kind in ("blank", "open", "close", "heredoc") and (where := self._end_of_word()):
            return where
        if kind == "open":
            self._inside.append("(")
        elif kind == "close":
            inner = self._inside.pop() if self._inside else ""
            self._word = _HERE if inner == "$(" else ""  # behind $( ) a word may go on
        elif kind == "heredoc" and text == "<<":
            return _UNSURE + "a here-document"
        elif kind == "double":
            self._inside.append('"')
        elif kind == "dollar":
            return "behind $"
        elif kind == "single":
            self._word = (self._word + _HERE)[:_LONGEST]
            return "in single quotes"
        elif kind == "hash" and not self._word:
            self._skip(_COMMENT)
            return "in a comment"
        elif kind == "index" and self._word not in ("", "["):
            return "" if self._skip(_INDEX) else _UNSURE + "an index"
        elif kind in ("text", "hash", "index"):
            self._word = (self._word + text)[:_LONGEST]
        return self._both(kind, text)

    def _both(self, kind: str, text: str) -> str:
        """What is the same in quotes and outside."""
        if kind in _GIVES_UP:
            return _UNSURE + _GIVES_UP[kind]
        if kind == "braces" and not text.endswith("}"):
            return _UNSURE + "${...}"
        if kind == "escaped" and text == "\\\n":
            before = self._text[self._at - 3 : self._at - 2]
            return "" if before in _ENDS_NOTHING else _UNSURE + "a line that goes on within a word"
        if kind == "escaped" and text == "\\" + _HERE:
            return "behind a backslash"
        if kind == "inner":
            self._inside.append("$(")
            self._word = ""
        elif kind in ("braces", "sum", "escaped"):
            self._word = (self._word + _HERE)[:_LONGEST]
        return ""

    def _end_of_word(self) -> str:
        word, self._word = self._word, ""
        if word == "case" and self._inside:  # its patterns end with parentheses that are not open
            return _UNSURE + "a case in parentheses"
        return _UNSURE + _READS_ON[word] if word in _READS_ON else ""

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match is not None
