"""A short run of the kill loop with a fixed seed; the long one is `python -m tests.kill`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.faults.shim import can_build
from tests.kill.loop import Loop
from tests.kill.stage import Stage

KILLS = 8
MAX_BYTES = 1 << 20


@pytest.mark.skipif(not can_build(), reason="there is no cc to build the shim with")
def test_what_was_acknowledged_survives_kills_at_random_moments_and_writes() -> None:
    base = Path(tempfile.mkdtemp(prefix="la-kill-"))  # kept when something is found
    with Stage(base, max_bytes=MAX_BYTES) as stage:
        loop = Loop(stage, "suite", say=print)
        problems = loop.run(range(1, KILLS + 1))
        assert not problems, f"{problems}\nseed suite/{loop.round}, kept in {base}"
    loop.remove()
