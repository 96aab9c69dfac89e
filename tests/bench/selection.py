"""How long it takes to choose functions for a prompt among 2,000, and how often the right one is found.

Every prompt of the shipped sets is ranked in each round; the figure is the median of the rounds' medians.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lightagentd.agents.tool_calls.toolbox import toolbox_of
from lightagentd.agents.tool_choice.choice import choose
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.tool_choice.toolset import functions_in, many
from tests.bench.rig import show

FUNCTIONS = 2000
TARGET_MS, TARGET_RATE = 20, 0.95


def run(rounds: int) -> None:
    described = many(asyncio.run(_described()), FUNCTIONS)
    builds: list[float] = []
    for _ in range(rounds):
        toolbox = toolbox_of(described)
        started = time.perf_counter()
        index = toolbox.index
        builds.append((time.perf_counter() - started) * 1000)
    show(f"selection, index of {FUNCTIONS} functions, made once", builds, "ms")
    names = frozenset(toolbox.functions)
    sets = {name: functions_in(name) for name in ("prompts.txt", "held_out.txt")}
    medians: list[float] = []
    longest: list[float] = []
    for _ in range(rounds):
        times = []
        for _, prompt in (one for prompts in sets.values() for one in prompts):
            started = time.perf_counter()
            choose(index.rank(prompt, among=names), names, max_tools=64)
            times.append((time.perf_counter() - started) * 1000)
        medians.append(statistics.median(times))
        longest.append(max(times))
    show(f"selection among {FUNCTIONS} functions, each prompt (target: at most {TARGET_MS})", medians, "ms")
    show(f"selection among {FUNCTIONS} functions, longest of a round", longest, "ms")
    for name, prompts in sets.items():
        first = {number: _rate(index, prompts, number) for number in (1, 5, 10)}
        said = ", ".join(f"first {number}: {rate:.1%}" for number, rate in first.items())
        print(
            f"selection, {name}, {len(prompts)} prompts: {said} (target: first 10 at least {TARGET_RATE:.0%})"
        )


async def _described() -> list[dict[str, Any]]:
    """This checkout's tools, as the worker and the daemon describe them."""
    with tempfile.TemporaryDirectory(prefix="la-bench-") as name:
        base = Path(name)
        base.chmod(0o755)
        async with Daemon(Paths(config=base / "etc", state=base / "state", runtime=base / "run")) as daemon:
            return [*await daemon.pool.describe(), *daemon.registry.shared.builtins.described()]


def _rate(index: Any, prompts: list[tuple[frozenset[str], str]], first: int) -> float:
    hits = sum(any(hit.function in right for hit in index.rank(p, limit=first)) for right, p in prompts)
    return hits / len(prompts)
