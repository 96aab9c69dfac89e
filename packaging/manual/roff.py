"""A man page in the language of man(7), from plain text.

Text is ASCII, so that every locale can show it; a test looks for other characters. A word in `backticks`
becomes bold. Each sentence begins a line, as groff(7) wants it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
"""What the package installs as examples."""
_ESCAPES = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
    "…": "...",
}
_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z'\"(])")
_EXAMPLE = re.compile(r"^@EXAMPLE (\S+)@$", re.MULTILINE)
_PAGES = re.compile(r"^@PAGES([^@]*)@$", re.MULTILINE)
OWN_PAGES = (
    "lightagent-intro(7)",
    "lactl(1)",
    "lightagent-notify(1)",
    "lightagentd(8)",
    "lightagent-approver(8)",
    "lightagentd.toml(5)",
    "lightagent-agent(5)",
    "lightagent-eval(5)",
    "lightagent-flow(5)",
    "lightagent-hook(5)",
    "lightagent-mcp(5)",
    "lightagent-policy(5)",
    "lightagent-skill(5)",
    "lightagent-tool(5)",
    "lightagent-trigger(5)",
    "org.lightagent1(5)",
)
"""Each page names all others of these."""
_QUOTED = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Stamp:
    """Values shared by all pages of one build."""

    date: str
    version: str

    def fill(self, text: str) -> str:
        """A handwritten page, with @DATE@, @VERSION@ and the lines @EXAMPLE ..@ and @PAGES ..@ replaced."""
        text = _EXAMPLE.sub(lambda found: _lines_of(EXAMPLES / found[1]), text)
        name = text.partition('.TH "')[2].partition('"')[0].replace("\\-", "-")
        text = _PAGES.sub(lambda found: see_also(name, *found[1].split()), text)
        return text.replace("@DATE@", self.date).replace("@VERSION@", self.version)


def escaped(text: str) -> str:
    """Plain text as roff, without any markup."""
    return "".join(_ESCAPES.get(char, char) for char in text)


def bold(text: str) -> str:
    return rf"\fB{escaped(text)}\fR"


def italic(text: str) -> str:
    return rf"\fI{escaped(text)}\fR"


def see_also(name: str, *more: str) -> str:
    """The references of the page `name`, as roff: all own pages, and more."""
    others = [page for page in (*OWN_PAGES, *more) if page.partition("(")[0] != name]
    return ",\n".join(f"{bold(page)}({number}" for page, _, number in (one.partition("(") for one in others))


def _marked(text: str) -> str:
    """Prose: backticks become bold."""
    parts = _QUOTED.split(text)
    return "".join(bold(part) if number % 2 else escaped(part) for number, part in enumerate(parts))


def _lines_of(file: Path) -> str:
    return "\n".join(_guarded(escaped(line)) for line in file.read_text().splitlines())


def _guarded(line: str) -> str:
    """A line that would be taken for a request, escaped as text."""
    return r"\&" + line if line.startswith((".", "'")) else line


class Page:
    """Collects a page; `text` returns it."""

    def __init__(self, name: str, number: int, title: str, summary: str, stamp: Stamp) -> None:
        self._lines = [
            '.\\" Generated from the code; do not edit.',
            f'.TH "{escaped(name)}" "{number}" "{stamp.date}" "lightagentd {stamp.version}" "{title}"',
            ".nr HY 0",
            ".nh",
            ".ad l",
            ".SH NAME",
            f"{escaped(name)} \\- {escaped(summary)}",
        ]

    def section(self, title: str) -> None:
        self._lines.append(f'.SH "{escaped(title)}"')

    def subsection(self, title: str) -> None:
        self._lines.append(f'.SS "{escaped(title)}"')

    def raw(self, line: str) -> None:
        """A line that is roff already."""
        self._lines.append(line)

    def paragraph(self, text: str) -> None:
        """One paragraph of prose."""
        self._begin()
        self._prose(text)

    def prose(self, text: str) -> None:
        """Paragraphs as docstrings have them; those that are indented are examples."""
        for block in blocks(text):
            if block[0].startswith("    "):
                self.example(line[4:] for line in block)
            else:
                self.paragraph(" ".join(block))

    def example(self, lines: Iterable[str]) -> None:
        """Lines that stay as they are."""
        body = [_guarded(escaped(line)) for line in lines]
        self._begin()
        self._lines += [".RS 4", ".EX", *body, ".EE", ".RE"]

    def item(self, term: str, text: str) -> None:
        """A term, in roff, and its explanation; paragraphs of the text stay with the term."""
        self._lines += [".TP", term]
        for number, block in enumerate(blocks(text)):
            if number:
                self._lines.append(".IP")
            self._prose(" ".join(line.strip() for line in block))

    def continued(self, line: str) -> None:
        """One more paragraph of the last item; the line is roff already."""
        self._lines += [".IP", _guarded(line)]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _begin(self) -> None:
        """Begin a paragraph, unless a heading has begun one."""
        if not self._lines[-1].startswith((".SH", ".SS")):
            self._lines.append(".PP")

    def _prose(self, text: str) -> None:
        self._lines += [_guarded(_marked(part)) for part in _SENTENCE_END.split(text.strip())]


def blocks(text: str) -> list[list[str]]:
    """The paragraphs of a text, as lists of lines."""
    found: list[list[str]] = [[]]
    for line in text.expandtabs().splitlines():
        if line.strip():
            found[-1].append(line.rstrip())
        elif found[-1]:
            found.append([])
    return [block for block in found if block]
