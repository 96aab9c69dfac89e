"""128 agents that work at once, and as many as there may be workers: the CPU of a step against that with one
of them, calls a second, and their connections.

Beyond `max_workers`, agents of one person take turns with their workers.

CPU is all that the machine used, without the clients' and the model server's: workers that ended count, too.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.model_server import ModelServer, model_server
from tests.bench.processes import used_ns
from tests.bench.rig import daemon_with, show
from tests.conftest import DaemonProcess

AGENTS, STEPS = 128, 20
WORKERS = 24
"""The default of `max_workers`."""
TURNS_OF_ONE = 5
TARGET, TARGET_CONNECTIONS = 1.3, 0.05


def run(rounds: int) -> None:
    names = [f"busy-{number}" for number in range(AGENTS)]
    with model_server() as server, daemon_with({name: server.steps(STEPS) for name in names}) as daemon:
        _work(daemon, names)
        before = server.counts()
        for number in (WORKERS, AGENTS):
            _compare(daemon, server, names[:number], rounds)
        after = server.counts()
    connections = after["connections"] - before["connections"] - 1  # that of the second question
    calls = after["requests"] - before["requests"]
    print(
        f"agents, new connections a model call: {connections / calls:.4f}"
        f" ({connections} for {calls} calls; target: at most {TARGET_CONNECTIONS})"
    )


def _compare(daemon: DaemonProcess, server: ModelServer, names: Sequence[str], rounds: int) -> None:
    """Rounds of one agent and of all these, in turns."""
    one: list[float] = []
    many: list[float] = []
    rates: list[float] = []
    for _ in range(rounds):
        one.append(_step_cpu_ms(daemon, server, names[:1], turns=TURNS_OF_ONE))
        started = time.monotonic()
        many.append(_step_cpu_ms(daemon, server, names))
        rates.append(len(names) * STEPS / (time.monotonic() - started))
    show(f"agents, CPU of a step with 1 busy agent, beside {len(names)}", one, "ms")
    show(f"agents, CPU of a step with {len(names)} busy agents", many, "ms")
    ratio = statistics.median(many) / statistics.median(one)
    print(f"agents, ratio with {len(names)}: {ratio:.2f} (target: at most {TARGET})")
    show(f"agents, tool calls of {len(names)} busy agents", rates, "calls/s")


def _step_cpu_ms(daemon: DaemonProcess, server: ModelServer, names: Sequence[str], turns: int = 1) -> float:
    used = _used_s(server)
    for _ in range(turns):
        _work(daemon, names)
    return (_used_s(server) - used) / (len(names) * turns * (STEPS + 1)) * 1000


def _used_s(server: ModelServer) -> float:
    """The CPU time that the machine has used (proc_stat(5)), without this process and the model server."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    ticks = user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK") - used_ns(server.pid) / 1e9 - time.process_time()


def _work(daemon: DaemonProcess, names: Sequence[str]) -> None:
    """A turn of each agent, all at once."""
    problems: list[dict[str, Any]] = []
    failed: list[str] = []

    def turn(name: str) -> None:
        last: dict[str, Any] = {"type": "nothing"}
        with daemon.client() as client:
            for reply in client.stream("Sessions.Prompt", agent=name, text="go", new=True):
                last = reply["event"]
                if last["type"] == "tool_result" and last["result"] != "ok":
                    failed.append(last["text"])
        if last["type"] != "done" or last["steps"] != STEPS + 1:
            problems.append(last)

    threads = [threading.Thread(target=turn, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, (problems[:1], failed[:3])
