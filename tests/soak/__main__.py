"""The soak: `python -m tests.soak --turns 10000 --sessions 50 --faults 0.1 --seed 1`.

One daemon, agents on all dialects, people who prompt, leave and cancel, and models of whose answers a part is
broken. Each turn has to end exactly once, as told and as stored; no task, socket or descriptor may be left,
and the daemon's memory has to stay within 5% from turn 2,000 on.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.soak.measures import WARM_TURNS
from tests.soak.running import Report, soak


def show(report: Report) -> None:
    """Print the figures, and what is wrong."""
    rate = report.counted / report.seconds
    print(f"{report.counted} turns counted in {report.seconds:.0f} s, {rate:.0f} a second")
    print(
        "ended as: " + ", ".join(f"{name} {count}" for name, count in report.books.outcomes().most_common())
    )
    print(f"model calls that failed in the middle: {report.books.failed_calls}")
    print(f"memory at rest in MiB by turns: {report.memory.curve()}")
    growth = report.memory.growth()
    if growth is not None:
        print(f"memory from turn {WARM_TURNS} to the end: {growth:+.1%}")
    print(f"tasks at rest: {sum(report.after.tasks.values())}, before: {sum(report.before.tasks.values())}")
    held, held_before = report.after.descriptors.total(), report.before.descriptors.total()
    print(f"descriptors at rest: {held}, before: {held_before}")
    print("\n".join(f"PROBLEM: {problem}" for problem in report.problems) or "nothing is wrong")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=10_000, metavar="N")
    parser.add_argument("--sessions", type=int, default=50, metavar="N")
    parser.add_argument("--faults", type=float, default=0.1, metavar="PART", help="of the model calls")
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="la-soak-") as name:
        base = Path(name)
        base.chmod(0o755)
        report = asyncio.run(
            soak(
                base,
                turns=options.turns,
                sessions=options.sessions,
                rate=options.faults,
                seed=options.seed,
                say=lambda text: print(text, flush=True),
            )
        )
    show(report)
    return bool(report.problems)


if __name__ == "__main__":
    sys.exit(main())
