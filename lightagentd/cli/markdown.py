"""Markdown for a terminal: rendered by rich, and safe to show whatever a model wrote.

Only text and colours reach the terminal: control characters are removed from the source and, since Markdown
can encode them (`&#x202e;`, `%1b` in a link), from each rendered piece again. Links are written out, never
hidden behind words (no OSC 8). On a narrow terminal a table becomes a list. The colours can be read on
a dark and on a light background.
"""

from __future__ import annotations

import io
from functools import cache
from itertools import accumulate
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich import markdown as rich_markdown
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from lightagentd.cli.terminal import clean, is_dumb, is_plain, theme

LONG_CHARS = 20_000
"""A longer block is shown as plain text: laying it out would keep the program from everything else."""
_NARROW = 60
"""Below so many columns a table is a list."""
_CELL_COLUMNS = 6
"""A table that has less than that for each of its columns is a list, too: rich would leave cells out."""
_MIN_COLUMNS = 10
_MAX_LEVEL = 18
"""What is nested deeper than two levels below it the parser leaves out (its `maxNesting` is 20)."""
_INDENTS = {"list_item_open": 3, "list_item_close": -3, "blockquote_open": 2, "blockquote_close": -2}
"""How many columns rich takes from what is inside of it."""
_STYLES = {
    "markdown.block_quote": "none",
    "markdown.item.bullet": "bold",
    "markdown.item.number": "bold",
    "markdown.hr": "dim",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
    **{f"markdown.h{level}": "bold" for level in range(1, 8)},
}


@cache
def _themes(kind: str) -> tuple[Theme, ANSISyntaxTheme]:
    """The colours of texts and of code, for `terminal.theme`."""
    bright = "bright_" if kind == "dark" else ""
    code = {
        ("Comment",): Style(dim=True),
        ("Keyword",): Style(bold=True),
        ("Name", "Function"): Style(bold=True),
        ("Name", "Class"): Style(bold=True),
        ("Literal", "String"): Style(color=f"{bright}magenta"),
        ("Literal", "Number"): Style(color=f"{bright}magenta"),
        ("Generic", "Deleted"): Style(color=f"{bright}red"),
        ("Generic", "Inserted"): Style(color=f"{bright}green"),
    }
    return Theme({**_STYLES, "markdown.code": f"{bright}magenta"}), ANSISyntaxTheme(code)


def parser() -> MarkdownIt:
    """The Markdown that models write: CommonMark with tables and strikethrough; HTML is text."""
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class _Heading(rich_markdown.Heading):
    """A heading at the left, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold")
        yield text


class _Code(rich_markdown.CodeBlock):
    """Code at the left, so that it can be copied. rich 13 loses characters where padded code is wrapped."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=_themes(theme())[1], word_wrap=True)


class _Quote(rich_markdown.BlockQuote):
    """A quote as it is written, with `>` before each line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.elements, options.update(width=options.max_width - 2)):
            yield Segment("> ", Style(dim=True))
            yield from line
            yield Segment("\n")


class _Table(rich_markdown.TableElement):
    """A table; a list of its rows where it would not fit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header = self.header.row.cells if self.header is not None and self.header.row is not None else []
        rows = self.body.rows if self.body is not None else []
        if not is_plain() and options.max_width >= max(_NARROW, _CELL_COLUMNS * len(header)):
            frame = None if is_dumb() else box.SIMPLE
            table = Table(box=frame, pad_edge=False, show_edge=False, collapse_padding=True)
            for column in header:
                table.add_column(column.content, justify=column.justify, overflow="fold")
            for row in rows:
                table.add_row(*(cell.content for cell in row.cells))
            yield table
            return
        for row in rows:
            for number, cell in enumerate(row.cells):
                name = header[number].content.plain if number < len(header) else ""
                begin = "- " if number == 0 else "  "
                yield Text.assemble(begin, (f"{name}: " if name else "", "bold"), cell.content)


class _Rule(rich_markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return iter(()) if is_plain() else super().__rich_console__(console, options)


class _Markdown(rich_markdown.Markdown):
    elements: ClassVar[dict[str, type[rich_markdown.MarkdownElement]]] = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "blockquote_open": _Quote,
        "table_open": _Table,
        "hr": _Rule,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = [_plain(token) for token in parser().parse(source)]

    def fits(self, columns: int) -> bool:
        """Whether nothing has to be left out, however deep the lists and quotes are nested."""
        indents = accumulate(_INDENTS.get(token.type, 0) for token in self.parsed)
        deepest = max((token.level for token in self.parsed), default=0)
        return deepest <= _MAX_LEVEL and max(indents, default=0) <= columns // 2


def _plain(token: Token) -> Token:
    """The token with its links and pictures as text: rich would print a link's target without cleaning."""
    if token.children:
        children: list[Token] = []
        hrefs: list[str] = []
        for child in token.children:
            if child.type == "link_open":
                hrefs.append(str(child.attrs.get("href", "")))
            elif child.type == "link_close":
                href = hrefs.pop() if hrefs else ""
                if not (children and children[-1].type == "text" and children[-1].content == href):
                    children.append(_text(f" ({href})"))
            elif child.type == "image":
                children.append(_text(f"[{child.content}] ({child.attrs.get('src', '')})"))
            else:
                children.append(child)
        token.children = children
    return token


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def render(source: str, columns: int, *, colours: bool) -> list[str]:
    """The lines of a Markdown text, each at most `columns` wide, without blank lines around them."""
    source = clean(source)
    columns = max(columns, _MIN_COLUMNS)
    if len(source) > LONG_CHARS:
        return source.strip("\n").split("\n")
    console = Console(
        file=io.StringIO(),
        width=columns,
        force_terminal=colours,
        color_system="standard" if colours else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        theme=_themes(theme())[0],
        _environ={},
    )
    try:
        laid_out = _Markdown(source)
        if not laid_out.fits(columns):
            return source.strip("\n").split("\n")
        rows = console.render_lines(laid_out, console.options, pad=False)
    except Exception:  # noqa: BLE001 - what a model nested in a way that rich cannot lay out is shown as it is
        return source.strip("\n").split("\n")
    lines = [_line(row, colours=colours) for row in rows]
    while lines and not clean(lines[0]).strip():
        lines.pop(0)
    while lines and not clean(lines[-1]).strip():
        lines.pop()
    return lines


def _line(row: list[Segment], *, colours: bool) -> str:
    pieces = []
    for segment in _without_padding(row):
        text = clean(segment.text).replace("\n", "")
        if colours and segment.style is not None:
            text = segment.style.render(text, color_system=ColorSystem.STANDARD)
        pieces.append(text)
    return "".join(pieces) if colours else "".join(pieces).rstrip()


def _without_padding(row: list[Segment]) -> list[Segment]:
    """A line without the blanks that rich adds up to the width."""
    row = [segment for segment in row if not segment.control and segment.text]
    while row and (row[-1].style is None or row[-1].style.bgcolor is None):
        text, style, control = row.pop()
        if text.strip():
            return [*row, Segment(text.rstrip(), style, control)]
    return row
