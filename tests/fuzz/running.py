"""One target after the other, one input after the other, each from a seed; the first that fails is told."""

from __future__ import annotations

import contextlib
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from tests.fuzz.daemon_targets import DAEMON_TARGETS
from tests.fuzz.targets import TARGETS, Target

ALL: dict[str, Callable[[], Target]] = {**TARGETS, **DAEMON_TARGETS}
HANGS_S = 60
"""An input that takes so long has hung its reader."""


class Hang(Exception):
    """A reader did not come to an end."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An input on which a target failed."""

    target: str
    seed: str
    number: int
    trace: str


def run(
    name: str, seed: str, *, inputs: int = 0, seconds: float = 0.0, first: int = 1
) -> tuple[int, Failure | None]:
    """Feed a target so many inputs, or for so long; gives how many it took, and what failed."""
    target = ALL[name]()
    ends = time.monotonic() + seconds
    number = first
    try:
        while number < first + inputs or (seconds and time.monotonic() < ends):
            try:
                with _alarm():
                    target.once(random.Random(f"{seed}/{name}/{number}"))
            except Exception:  # noqa: BLE001 - whatever it raises is the finding
                return number, Failure(target=name, seed=seed, number=number, trace=traceback.format_exc())
            number += 1
    finally:
        target.close()
    return number - first, None


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise Hang(f"nothing came of it within {HANGS_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
