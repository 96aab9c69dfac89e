"""The screen without drawing: for a terminal that cannot move its cursor, a pipe or a file.

Lines are printed and read one after the other, without colours. Only the next line is read; later ones stay
in the input until they are wanted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

from lightagentd.cli import output
from lightagentd.cli.chatting.screen import Line, View
from lightagentd.cli.terminal import columns, is_terminal, rings
from lightagentd.errors import MessageTooLarge
from lightagentd.limits import MAX_MESSAGE_BYTES

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 16


class LineScreen:
    """Implements `screen.Screen`."""

    can_redraw = False
    colours = False

    def __init__(self) -> None:
        self.is_terminal = is_terminal()
        self._descriptor = -1 if sys.stdin is None else sys.stdin.fileno()
        self.can_ask = self.echoes = self.is_terminal and self._descriptor >= 0 and sys.stdin.isatty()
        self._view: View | None = None
        self._asked, self._words = "", ""
        self._at_prompt = False
        """Whether the prompt is all that stands on the line."""
        self._buffer = bytearray()

    @property
    def columns(self) -> int:
        return columns()

    async def typed(self, view: View) -> AsyncGenerator[Line, None]:
        self._view = view
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGINT, view.interrupted)
        try:
            while (line := await self._next()) is not None:
                yield line
        finally:
            self._leave_prompt()
            if before is not signal.SIG_IGN:
                loop.remove_signal_handler(signal.SIGINT)
                signal.signal(signal.SIGINT, before)

    def print(self, text: str = "") -> None:
        self._leave_prompt()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _leave_prompt(self) -> None:
        if self._at_prompt:
            self._at_prompt = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def warn(self, text: str, suggestion: str = "") -> None:
        self._leave_prompt()
        output.warn(text, suggestion)

    def refresh(self) -> None:
        """Nothing on this screen changes."""

    def ready(self) -> None:
        if self.can_ask and self._view is not None and not self._at_prompt:
            sys.stdout.write(self._words or self._view.prompt())
            sys.stdout.flush()
            self._at_prompt = True

    def ask(self, question: str, words: str) -> None:
        if question and question != self._asked:
            self._forget_what_was_typed()
            self._leave_prompt()
        self._asked, self._words = question, words
        if question:
            self.ready()

    def put_back(self, text: str) -> None:
        """The terminal still shows the text."""

    def clear(self) -> bool:
        """The terminal itself drops a line when it turns Ctrl-C into a signal."""
        self._at_prompt = False
        return False

    def wipe(self) -> None:
        """What is on such a screen stays."""

    def alert(self, took_s: float) -> None:
        if self.can_ask and rings(took_s, None):
            sys.stdout.write("\a")
            sys.stdout.flush()

    def copy(self, text: str) -> bool:  # noqa: ARG002 - the protocol's
        return False

    async def suspended(self, function: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(function)

    async def _next(self) -> Line | None:
        """The next typed line; None at the end. Raises MessageTooLarge."""
        lines: list[str] = []
        while True:
            line = await self._line()
            if line is None:
                return None
            self._at_prompt = False
            if self.can_ask and not self._asked and line.endswith("\\"):
                lines.append(line[:-1])
                continue
            return Line("\n".join([*lines, line]), self._asked)

    async def _line(self) -> str | None:
        ended = False
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found or (ended and line):
                self._buffer = rest
                return line.removesuffix(b"\r").decode("utf-8", "replace")
            if ended or self._descriptor < 0:
                return None
            if len(self._buffer) > MAX_MESSAGE_BYTES:
                raise MessageTooLarge(
                    f"A line of standard input is larger than {MAX_MESSAGE_BYTES} bytes.",
                    suggestion="Send less, or attach a file with /attach FILE.",
                )
            await self._readable()
            chunk = self._read()
            self._buffer += chunk
            ended = not chunk

    async def _readable(self) -> None:
        """Wait until there is something to read."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, ready.set)
        except PermissionError:  # a file, which epoll(7) does not take, can always be read
            return
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:  # EIO: the terminal is gone; EAGAIN: somebody else read what was there
            return b""

    def _forget_what_was_typed(self) -> None:
        """Drop a line that was typed before the question was shown; it is not an answer to it."""
        import termios

        self._buffer.clear()
        with suppress(termios.error):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
