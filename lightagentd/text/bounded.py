"""Bounds the time of regular expressions on texts from outside.

A pattern that looks harmless can take years on a text that is made for it, and nothing else of the program
runs meanwhile. After a stop the result is unknown, and the caller must fail closed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CPU_S = 0.1


class TakesTooLongError(Exception):
    """Matching has used up its time."""


@contextmanager
def bounded() -> Iterator[None]:
    """A block that is stopped after CPU_S with TakesTooLongError.

    Python's regular expressions check for signals while they match, but only in the main thread. In other
    threads nothing can be bounded, so nothing is matched.
    """
    if threading.current_thread() is not threading.main_thread():
        raise TakesTooLongError
    if signal.getsignal(signal.SIGVTALRM) is not _stop:
        signal.signal(signal.SIGVTALRM, _stop)  # and stays: without a handler a late one would end the daemon
    _alarm.armed = True
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        yield
    finally:
        _alarm.armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class _Alarm:
    """Whether a bounded block is running. Without a lock, because a signal handler may not wait for one."""

    armed = False


_alarm = _Alarm()


def _stop(_signal: int, _frame: FrameType | None) -> None:
    if _alarm.armed:
        _alarm.armed = False
        raise TakesTooLongError
