"""Runs every benchmark and prints one line for each figure: `python -m tests.bench [NAME…]`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench import (
    agents,
    asides,
    calls,
    chat,
    children,
    conversations,
    diagnosis,
    flows,
    footprint,
    gateway,
    growth,
    guard,
    guards,
    history,
    hooks,
    latency,
    matching,
    mcp,
    peers,
    planes,
    selection,
    sessions,
    siege,
    start,
    step,
    telemetry,
    verifying,
    watching,
)

BENCHMARKS = {
    "step": step.run,
    "telemetry": telemetry.run,
    "calls": calls.run,
    "chat": chat.run,
    "children": children.run,
    "asides": asides.run,
    "flows": flows.run,
    "planes": planes.run,
    "sessions": sessions.run,
    "conversations": conversations.run,
    "history": history.run,
    "footprint": footprint.run,
    "watching": watching.run,
    "siege": siege.run,
    "start": start.run,
    "selection": selection.run,
    "match": matching.run,
    "verifying": verifying.run,
    "guards": guards.run,
    "hooks": hooks.run,
    "gateway": gateway.run,
    "mcp": mcp.run,
    "peers": peers.run,
    "growth": growth.run,
    "agents": agents.run,
    "latency": latency.run,
    "diagnosis": diagnosis.run,
}
ON_REQUEST = {"guard": guard.run}
"""They repeat a part of the others."""


def machine() -> str:
    """What the figures were measured on."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, *ON_REQUEST, []], metavar="NAME")
    parser.add_argument(
        "--rounds", type=int, default=7, help="how often each figure is measured (at least 5)"
    )
    parser.add_argument(
        "--events", type=int, default=history.EVENTS_STORED, help="how many the large store of 'history' has"
    )
    parser.add_argument(
        "--where", choices=["here", "container"], default="here", help="container: here and in Debian 13"
    )
    options = parser.parse_args()
    if options.where == "container":
        from tests.bench import container

        numbers = [f"--rounds={options.rounds}", f"--events={options.events}"]
        sys.exit(container.run(numbers, options.names or list(BENCHMARKS)))
    benchmarks: dict[str, Callable[[int], None]] = {
        **BENCHMARKS,
        **ON_REQUEST,
        "history": partial(history.run, events=options.events),
    }
    print(f"machine: {machine()}")
    for name in options.names or BENCHMARKS:
        benchmarks[name](max(5, options.rounds))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
