"""What lactl runs asynchronously outlives those that it writes to."""

from __future__ import annotations

import os
import signal

import pytest

from lightagentd.cli.asynchronous import run


def test_who_reads_no_more_does_not_end_lactl() -> None:
    async def write() -> None:
        theirs, ours = os.pipe()
        os.close(theirs)
        try:
            os.write(ours, b"97")
        finally:
            os.close(ours)

    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in lactl
    try:
        with pytest.raises(BrokenPipeError):
            run(write())
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPIPE, before)
