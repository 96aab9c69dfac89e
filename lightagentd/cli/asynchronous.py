"""Runs what lactl does asynchronously."""

from __future__ import annotations

import signal
from collections.abc import Coroutine
from typing import TypeVar

_T = TypeVar("_T")


def run(work: Coroutine[object, object, _T]) -> _T:
    """As asyncio.run. To write to a process or a daemon that reads no more is an error meanwhile, as asyncio
    expects it: SIGPIPE, which ends lactl when the reader of its output leaves, would end it there too.
    """
    import asyncio  # most commands need none of it

    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        return asyncio.run(work)
    finally:
        signal.signal(signal.SIGPIPE, before)
