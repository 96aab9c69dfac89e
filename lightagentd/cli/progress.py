"""Tells a person at a terminal how far long work is: one line on standard error, which the next one replaces.

In a pipe, and for work that ends soon, nothing is told.
"""

from __future__ import annotations

import sys
import time

from lightagentd.cli.layout import cut
from lightagentd.cli.terminal import clean, columns, is_dumb

_SOON_S, _EACH_S = 1.0, 0.2


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
