"""Tells a person at a terminal how far long work is: one line on standard error, which the next one replaces.

In a pipe, and for work that ends soon, nothing is told.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator

from lightagentd.cli.layout import cut
from lightagentd.cli.terminal import clean, columns, is_dumb

_SOON_S, _EACH_S = 1.0, 0.2
_WAITS_S = 2.0
"""After so long a person is told that an answer is waited for."""


class Progress:
    """The line of one piece of work. End it with `close`."""

    def __init__(self) -> None:
        self._tells = sys.stderr.isatty() and not is_dumb()
        self._next_s = time.monotonic() + _SOON_S

    def tell(self, text: str) -> None:
        """Show how far it is, now and then."""
        if self._tells and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _EACH_S
            self._write(cut(clean(text), columns() - 1))

    def close(self) -> None:
        """Take the line away."""
        if self._tells:
            self._write("")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


@contextlib.contextmanager
def waiting(shows: Callable[[], bool]) -> Iterator[None]:
    """Tell for how long the block takes, once a second, while `shows` says so."""
    began_s, work = time.monotonic(), Progress()

    def tell(*_: object) -> None:
        if shows():
            work.tell(f"The daemon works on it, for {time.monotonic() - began_s:.0f} s …")
        else:
            work.close()

    try:
        before = signal.signal(signal.SIGALRM, tell)
    except ValueError:  # not in the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, _WAITS_S, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if time.monotonic() - began_s >= _WAITS_S:
            work.close()
