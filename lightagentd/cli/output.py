"""How commands print: aligned for people on a terminal, tab-separated for programs in a pipe, or JSON.

In a pipe a table has no heading, an empty cell is `-`, and no cell holds a tab or a newline, so that
`cut`, `awk` and `while read` work.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightagentd.cli.layout import Layout
from lightagentd.cli.terminal import BOLD, Styled, clean, columns, has_colours, is_terminal, style
from lightagentd.host.users import user_name

if TYPE_CHECKING:
    from lightagentd.cli.options import Settings

Columns = Mapping[str, str | Callable[[dict[str, Any]], object]]
"""A table: the heading of each column, and the field, or the function of an object, that fills it."""
_TO_ESCAPE = re.compile(
    "[\x7f-\x9f\u180e\u200b\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""What JSON does not escape by itself, and a terminal or a decoder stumbles over."""


def say(*parts: str, end: str = "\n") -> None:
    """Print text; on a terminal, text that is not `Styled` is cleaned first."""
    terminal = is_terminal()
    sys.stdout.write(
        "".join(part if isinstance(part, Styled) or not terminal else clean(part) for part in parts) + end
    )


def say_markdown(text: str) -> None:
    """Print Markdown: laid out on a terminal, as it is in a pipe."""
    if not is_terminal():
        say(text.rstrip("\n"))
        return
    from lightagentd.cli.markdown import render  # only here: it imports what draws

    for line in render(text, columns(), colours=has_colours()):
        say(Styled(line))


def warn(text: str, suggestion: str = "") -> None:
    """Tell the person something, on standard error."""
    lines = warning_lines(text, suggestion)
    with contextlib.suppress(OSError):  # what cannot be written is told at the end
        sys.stdout.flush()
    sys.stderr.write("".join(clean(line) + "\n" for line in lines))
    sys.stderr.flush()


def warning_lines(text: str, suggestion: str = "") -> list[str]:
    """What `warn` tells, as lines."""
    return [f"lactl: {text}", *([suggestion] if suggestion else [])]


def dump(value: Any, *, indent: int | None = None) -> str:
    """JSON that is safe to show: control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _TO_ESCAPE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def print_json(value: Any) -> None:
    """Print a value as one JSON document, indented on a terminal."""
    sys.stdout.write(dump(value, indent=2 if is_terminal() else None) + "\n")


def print_json_line(value: Any) -> None:
    """Print one element of a stream at once, as one line."""
    sys.stdout.write(dump(value) + "\n")
    sys.stdout.flush()


def cell(value: object) -> str:
    """A value as one word or line of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ",".join(str(item) for item in value)
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    return " ".join(clean(str(value)).split()) or "-"


def user_cell(uid: int | None) -> str:
    """A user in a list: the name on a terminal, the uid for programs; empty for none."""
    if uid is None:
        return ""
    return user_name(uid) if is_terminal() else str(uid)


def as_json(settings: Settings, found: Any) -> bool:
    """Print a value if JSON is wanted; returns whether it was, and the caller prints nothing else."""
    if settings.json:
        print_json(found)
    return settings.json


def listing(
    settings: Settings,
    found: Sequence[dict[str, Any]],
    columns: Columns,
    *,
    spare: Sequence[str] = (),
    empty: str = "",
) -> None:
    """Print objects, as JSON or as a `table`."""
    if as_json(settings, found):
        return
    rows = ([each[of] if isinstance(of, str) else of(each) for of in columns.values()] for each in found)
    table(tuple(columns), rows, spare=spare, empty=empty)


def told(settings: Settings, found: Any, sentence: str, *cells: object) -> None:
    """Report the result of a command: on a terminal with a sentence, in a pipe with cells, or as JSON."""
    if as_json(settings, found):
        return
    if is_terminal():
        say(sentence)
    elif cells:
        say("\t".join(str(each) for each in cells))


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    spare: Sequence[str] = (),
    empty: str = "",
) -> None:
    """Print rows; on a terminal aligned, with headings, and within the width of the terminal: a narrow one
    does not get the `spare` columns. `empty` is the sentence for a person when there are no rows.
    """
    for line in table_lines(headings, rows, spare=spare, empty=empty):
        say(line)


def table_lines(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, spare: Sequence[str] = (), empty: str = ""
) -> Iterator[str]:
    """The lines that `table` prints."""
    cells = [[cell(value) for value in row] for row in rows]
    if not is_terminal():
        yield from ("\t".join(row) for row in cells)
    elif not cells:
        yield empty or "There is nothing to list."
    else:
        layout = Layout(headings, cells, columns(), spare)
        yield style(layout.line(headings), BOLD)
        yield from (layout.line(row) for row in cells)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one object: a name and a value on each line."""
    shown = [(name, cell(value)) for name, value in pairs]
    if not is_terminal():
        for name, value in shown:
            say(f"{name.replace(' ', '_')}\t{value}")
        return
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        say(style(name.rjust(width), BOLD), "  ", value)
