"""What a step costs late in a long turn: at 60 tool calls, against that at 2.

One turn, so the conversation that each request carries grows with each step. The time of a step is that
from one result to the next as a watcher of the turn hears of them.
"""

from __future__ import annotations

import statistics
import time

from tests.bench.model_server import model_server
from tests.bench.rig import daemon_with, show

EARLY, LATE = 2, 60
SPAN = 3
"""How many steps around each are taken together, since one takes few milliseconds."""
TARGET = 1.5


def run(rounds: int) -> None:
    early: list[float] = []
    late: list[float] = []
    with (
        model_server() as server,
        daemon_with({"growth": server.steps(LATE + SPAN)}) as daemon,
        daemon.client() as client,
    ):
        for number in range(rounds + 1):
            told: list[float] = []
            for reply in client.stream("Sessions.Prompt", agent="growth", text="go", new=True):
                if reply["event"]["type"] == "tool_result":
                    told.append(time.perf_counter())
            assert len(told) == LATE + SPAN, reply
            if number:  # the first turn warms up
                early.append(_step_ms(told, EARLY))
                late.append(_step_ms(told, LATE))
    show(f"growth, a step at {EARLY} calls", early, "ms")
    show(f"growth, a step at {LATE} calls", late, "ms")
    ratio = statistics.median(late) / statistics.median(early)
    print(f"growth, ratio: {ratio:.2f} (target: at most {TARGET})")


def _step_ms(told: list[float], calls: int) -> float:
    """What each of the SPAN steps took that began with so many calls done, and after it."""
    return (told[calls - 1 + SPAN] - told[calls - 1]) / SPAN * 1000
