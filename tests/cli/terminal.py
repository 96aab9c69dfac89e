"""A terminal for tests: a real pseudo-terminal with lactl on it, and a model of what is seen.

    with Terminal(["chat", "ops"], env=…, columns=80) as terminal:
        terminal.until("ops> ")
        terminal.send("check disk\\r")

The model knows what prompt-toolkit and rich send: it moves the cursor, erases, scrolls, and keeps what
scrolled out. It answers nothing, as a terminal may. A sequence that it does not know fails the test, and so
does one that would set a title or make a link, because nothing of ours sends such. It keeps account of bells
and of what is put into the clipboard.

It reads one byte at a time: a test that waits for a word and then looks for what follows it fails each
time, and not now and then.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
"""Only there to end a test that fails."""
_SEQUENCE = re.compile(r"\x1b\[([?>]?)([0-9;]*)([A-Za-z@`])")
_CLIPBOARD = re.compile(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x1b\\")
_OPEN = re.compile(r"\x1b(\[[?>]?[0-9;]*|\](?:5(?:2(?:;(?:c(?:;[A-Za-z0-9+/=]*(?:\x1b)?)?)?)?)?)?)?\Z")


class Screen:
    """Rows of characters, a cursor, and what scrolled out at the top."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []
        self.bells = 0
        self.clipboard = ""
        self._cells = [[" "] * columns for _ in range(rows)]
        self._lines: list[str | None] = [None] * rows
        self._text: str | None = None
        self._x = self._y = 0
        self._pending = ""

    def feed(self, text: str) -> None:
        text = self._pending + text
        opening = _OPEN.search(text)
        self._pending = text[opening.start() :] if opening else ""
        text = text[: opening.start()] if opening else text
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            if copied := _CLIPBOARD.match(text, at):
                self.clipboard = base64.b64decode(copied[1]).decode()
                at = copied.end()
                continue
            match = _SEQUENCE.match(text, at)
            assert match, f"an unknown sequence: {text[at : at + 20]!r}"
            at = match.end()
            if not match[1]:
                self._act(match[3], [int(number or 0) for number in match[2].split(";")])
            else:
                assert match[3] in "hlm", match[0]

    def lines(self) -> list[str]:
        """All that was ever on the screen and still is there, or above it."""
        for number, line in enumerate(self._lines):
            if line is None:
                self._lines[number] = "".join(self._cells[number]).rstrip()
        return [*self.scrolled, *(line or "" for line in self._lines)]

    @property
    def text(self) -> str:
        """The lines without the empty ones at the end; the same object until something is written."""
        if self._text is None:
            self._text = "\n".join(self.lines()).rstrip()
        return self._text

    def resize(self, columns: int, rows: int) -> None:
        while self.rows > rows:
            if self._y == self.rows - 1:
                self.scrolled.append("".join(self._cells.pop(0)).rstrip())
                self._y -= 1
            else:
                self._cells.pop()
            self.rows -= 1
        self._cells = [(row + [" "] * columns)[:columns] for row in self._cells]
        self._cells += [[" "] * columns for _ in range(rows - self.rows)]
        self.columns, self.rows, self._x = columns, rows, min(self._x, columns - 1)
        self._lines, self._text = [None] * rows, None

    def _put(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\n":
            self._down()
        elif char == "\a":
            self.bells += 1
        elif char == "\b":
            self._x = max(0, self._x - 1)
        else:
            assert char >= " ", f"a control character: {char!r}"
            assert not "\x7f" <= char < "\xa0", f"a control character: {char!r}"
            if self._x >= self.columns:
                self._x = 0
                self._down()
            self._cells[self._y][self._x] = char
            self._lines[self._y] = self._text = None
            self._x += 1

    def _down(self) -> None:
        if self._y + 1 < self.rows:
            self._y += 1
            return
        self.scrolled.append("".join(self._cells.pop(0)).rstrip())
        self._cells.append([" "] * self.columns)
        self._lines = [*self._lines[1:], None]
        self._text = None

    def _act(self, what: str, numbers: list[int]) -> None:
        count = max(1, numbers[0])
        match what:
            case "A":
                self._y = max(0, self._y - count)
            case "B":
                self._y = min(self.rows - 1, self._y + count)
            case "C":
                self._x = min(self.columns - 1, self._x + count)
            case "D":
                self._x = max(0, min(self._x, self.columns - 1) - count)
            case "G":
                self._x = count - 1
            case "H":
                self._y, self._x = count - 1, max(1, numbers[-1] if len(numbers) > 1 else 1) - 1
            case "J" if numbers[0] == 0:
                self._erase(self._y, self._x)
                for row in range(self._y + 1, self.rows):
                    self._erase(row, 0)
            case "J" if numbers[0] == 2:
                for row in range(self.rows):
                    self._erase(row, 0)
            case "K" if numbers[0] == 0:
                self._erase(self._y, self._x)
            case "m":
                pass
            case _:
                raise AssertionError(f"an unknown sequence: {numbers} {what}")

    def _erase(self, row: int, column: int) -> None:
        self._cells[row][column:] = [" "] * (self.columns - column)
        self._lines[row] = self._text = None


def without_status(text: str) -> str:
    """What is seen of a chat without its last line, the status below what is typed."""
    above, _, last = text.rpartition("\n")
    return above.rstrip("\n") if re.match(r"\w+ · ", last) else text


class Program(Protocol):
    """What runs on the terminal, as `subprocess.Popen` and `tests.prepared.Forked` have it."""

    pid: int
    returncode: Any

    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def kill(self) -> None: ...


def start(arguments: Sequence[str], env: dict[str, str], terminal: int) -> Program:
    """Start lactl on a terminal, with an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lightagentd.cli.main", *arguments],
        cwd=REPOSITORY,
        env=env,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )


class Terminal:
    """lactl on a pseudo-terminal, from entering to leaving; `raw` is every byte that it sent."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: dict[str, str],
        columns: int = 80,
        rows: int = 40,
        start: Callable[[Sequence[str], dict[str, str], int], Program] = start,
    ) -> None:
        self._start = start
        self._arguments = arguments
        self._env = {"TERM": "xterm", "LANG": "C.UTF-8", "HOME": "/nonexistent", **env}
        self.screen = Screen(columns, rows)
        self.raw = bytearray()
        self._ours = -1
        self._process: Program

    def __enter__(self) -> Self:
        self._ours, theirs = pty.openpty()
        size = struct.pack("4H", self.screen.rows, self.screen.columns, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        self._process = self._start(self._arguments, self._env, theirs)
        os.close(theirs)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        os.close(self._ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, as xterm does: what does not fit any more is cut off."""
        self.screen.resize(columns, rows)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def until(self, wanted: str | Callable[[str], bool]) -> str:
        """Read on until a text is seen, or something holds of all that is seen; gives that."""
        deadline = time.monotonic() + LIMIT_S
        holds = (lambda text: wanted in text) if isinstance(wanted, str) else wanted
        looked_at = None
        while looked_at is self.screen.text or not holds(self.screen.text):
            looked_at = self.screen.text
            assert time.monotonic() < deadline, f"{wanted!r} is not seen in:\n{self.screen.text}"
            if not self._read(0.5) and (status := self._process.poll()) is not None and not self._read(0.1):
                ended = f"lactl ended with {status}"
                raise AssertionError(f"{ended}, and {wanted!r} is not seen in:\n{self.screen.text}")
        return self.screen.text

    def finished(self) -> int:
        """Read to the end; gives the exit status."""
        deadline = time.monotonic() + LIMIT_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.screen.text}"
            self._read(0.1)
        while self._read(0.05):
            pass
        return int(self._process.returncode)

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            chunk = os.read(self._ours, 1)
            self.raw += chunk
            self.screen.feed(self._decoded(chunk))
            return bool(chunk)
        return False

    def _decoded(self, chunk: bytes) -> str:
        data = self._undecoded + chunk
        for cut in range(4):  # a character may come in two reads
            with contextlib.suppress(UnicodeDecodeError):
                text = data[: len(data) - cut].decode()
                self._undecoded = data[len(data) - cut :]
                return text
        raise AssertionError(f"not UTF-8: {data!r}")

    _undecoded = b""
