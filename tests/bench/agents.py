"""As many agents at once as there may be workers: the CPU of a step against that with one, and connections.

CPU is that of the daemon and its workers (`processes`), without the clients' and the model server's.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from typing import Any

from tests.bench.model_server import model_server
from tests.bench.processes import cpu_s
from tests.bench.rig import daemon_with, show
from tests.conftest import DaemonProcess

AGENTS, STEPS = 24, 20
"""Beyond `max_workers` agents take turns with workers: starting those is most of what a call costs then."""
TURNS_OF_ONE = 5
TARGET, TARGET_CONNECTIONS = 1.3, 0.05


def run(rounds: int) -> None:
    names = [f"busy-{number}" for number in range(AGENTS)]
    one: list[float] = []
    many: list[float] = []
    with model_server() as server, daemon_with({name: server.steps(STEPS) for name in names}) as daemon:
        _work(daemon, names)  # it starts the workers
        before = server.counts()
        for _ in range(rounds):
            one.append(_step_cpu_ms(daemon, names[:1], turns=TURNS_OF_ONE))
            many.append(_step_cpu_ms(daemon, names))
        after = server.counts()
    show("agents, CPU of a step with 1 busy agent", one, "ms")
    show(f"agents, CPU of a step with {AGENTS} busy agents", many, "ms")
    ratio = statistics.median(many) / statistics.median(one)
    print(f"agents, ratio: {ratio:.2f} (target: at most {TARGET})")
    connections = after["connections"] - before["connections"] - 1  # that of the second question
    calls = after["requests"] - before["requests"]
    print(
        f"agents, new connections a model call: {connections / calls:.4f}"
        f" ({connections} for {calls} calls; target: at most {TARGET_CONNECTIONS})"
    )


def _step_cpu_ms(daemon: DaemonProcess, names: Sequence[str], turns: int = 1) -> float:
    used = cpu_s(daemon.pid)
    for _ in range(turns):
        _work(daemon, names)
    return (cpu_s(daemon.pid) - used) / (len(names) * turns * (STEPS + 1)) * 1000


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
