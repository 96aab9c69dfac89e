"""The report that each script prints: Markdown with the cause first, what to do next, then the evidence.

The scripts find this module through a path that they insert themselves, because they run as `python3 -I
SCRIPT`. It needs Python 3.9 and nothing else. A report is printed once, at the end; nothing here keeps a
resource.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence

_LINES = 25
"""How long a report is, unless all of it is asked for."""
_LINE_CHARS = 2000
"""Names and messages are as long as who makes them up likes."""
NOTHING_FOUND = 4
"""The exit status of a report on something named that is not there: no such unit, nothing on that port."""


class Report:
    """The cause in one sentence, what to do next, then the evidence in the order in which it was added."""

    full = False
    """Whether all of it was asked for (`--full`)."""

    def __init__(self) -> None:
        self.finding = ""
        self.next = ""
        """One command, such as what `checks.prompt` gives."""
        self.found_nothing = False
        """Whether what was asked about by name is not there; then the script ends with NOTHING_FOUND."""
        self._parts: list[tuple[str, list[str], str]] = []
        """Each part's title, its lines, and the header that stands before them."""
        self._notes: list[str] = []

    def table(
        self, title: str, header: Sequence[str], rows: Iterable[Sequence[object]], empty: str = ""
    ) -> None:
        """A section with a table. Without rows it is the sentence `empty`, or nothing at all."""
        lines = [_row(cells) for cells in rows]
        if lines:
            self._parts.append((clean(title), lines, f"{_row(header)}\n{_row(['---'] * len(header))}\n"))
        elif empty:
            self.text(title, empty)

    def text(self, title: str, *lines: str) -> None:
        self._parts.append((clean(title), [_shown(line) for line in lines], ""))

    def lines(self, title: str, lines: Sequence[str]) -> None:
        """A section with literal text, such as lines of a log."""
        if lines:
            self._parts.append((clean(title), ["    " + shorten(line, _LINE_CHARS) for line in lines], ""))

    def note(self, sentence: str) -> None:
        """Note an omission of the report, with its reason; printed once, at the end."""
        if sentence and sentence not in self._notes:
            self._notes.append(sentence)

    @property
    def has_notes(self) -> bool:
        """Whether anything has been omitted so far."""
        return bool(self._notes)

    def render(self) -> str:
        """The report as Markdown."""
        text = f"**{_shown(self.finding)}**\n"
        if self.next:
            mark = "``" if "`" in self.next else "`"
            text += f"\nNext: {mark}{clean(self.next)}{mark}\n"
        notes = "".join(f"- {_shown(note)}\n" for note in self._notes)
        if notes:
            notes = f"\n## What this report could not see\n\n{notes}"
        room = _LINES - text.count("\n") - notes.count("\n") - 2
        left_out = []
        for number, (title, lines, header) in enumerate(self._parts, start=1):
            head = f"\n## {title}\n\n{header}"
            share = room if number == len(self._parts) else room // 2 + 2  # those behind it get the rest
            fits = len(lines) if self.full else max(0, share - head.count("\n"))
            if fits < min(len(lines), 2):
                left_out.append(title)
                continue
            kept = lines if fits >= len(lines) else lines[: fits - 1]
            text += head + "\n".join(kept) + "\n"
            if len(kept) < len(lines):
                left_out.append(f'{len(lines) - len(kept)} more under "{title}"')
            room -= head.count("\n") + len(kept)
        if left_out:
            text += f"\nLeft out: {'; '.join(left_out)}. Ask again with --full for all of it.\n"
        return text + notes


def option_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the option that all scripts have."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--full", action="store_true", help="all of the report, however long")
    return parser


def options(description: str, **arguments: str) -> argparse.Namespace:
    """The arguments of the command line: each keyword is one option and its help."""
    parser = option_parser(description)
    for name, words in arguments.items():
        parser.add_argument(f"--{name}", help=words)
    found = parser.parse_args()
    Report.full = found.full
    return found


def run(make: Callable[[Report], None]) -> None:
    """Make the report and print it; an error becomes a sentence in it, never a traceback."""
    report = Report()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        make(report)
    except Exception as err:
        report.note(f"The report stopped early: {type(err).__name__}: {clean(str(err))}.")
        report.finding = report.finding or "This could not be found out; the reason is at the end."
    sys.stdout.write(report.render())
    if report.found_nothing:
        raise SystemExit(NOTHING_FOUND)


def refuse(sentence: str) -> None:
    """End because of a bad argument, with exit status 2 as argparse does."""
    sys.stderr.write(sentence + "\n")
    raise SystemExit(2)


def clean(text: str) -> str:
    """Text on one line without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def human(size_bytes: float) -> str:
    """`1.5 GiB`; binary units, as `df -h` and `free -h` count."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


def span(seconds: float) -> str:
    """`3 days 4 h`, `12 min`, `8 s`: the two greatest units."""
    total = int(max(0, seconds))
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} day{'s' if days != 1 else ''}" + (f" {hours} h" if hours and days < 14 else "")
    if hours:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{minutes} min" if minutes else f"{secs} s"


def plural(count: int, noun: str) -> str:
    """`1 unit`, `3 units`, `2 processes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}es" if noun.endswith(("s", "x")) else f"{count} {noun}s"


def shorten(text: str, limit: int = 120) -> str:
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _shown(text: str) -> str:
    """A line of Markdown in which names of the machine make no line of their own, and no link or picture."""
    return shorten(text, _LINE_CHARS).replace("](", "] (")


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(_shown(str(cell)).replace("|", "\\|") for cell in cells) + " |"
