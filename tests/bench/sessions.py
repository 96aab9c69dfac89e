"""Many sessions prompting at once: no error, no reordering inside a session, steps a second.

Beside them is what bounds them: the CPU time of a step in the daemon, which has one thread, in its workers,
in the model server, and in the clients.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from tests.bench.processes import shares_s, used_ns
from tests.bench.rig import Rig, rig, show

SESSIONS = 200
STEPS = 2
PROMPTS = 2


TARGET = 200


def run(rounds: int) -> None:
    rates: list[float] = []
    used: dict[str, list[float]] = {"daemon": [], "workers": [], "model server": [], "clients": []}
    with rig(STEPS) as ready:
        for _ in range(rounds):
            before = _used_s(ready)
            rates.append(_round(ready))
            for name, one, other in zip(used, before, _used_s(ready), strict=True):
                used[name].append((other - one) / (SESSIONS * PROMPTS * (STEPS + 1)) * 1000)
    show(f"{SESSIONS} sessions at once (target: at least {TARGET})", rates, "steps/s")
    for name, values in used.items():
        show(f"{SESSIONS} sessions at once, CPU of a step, {name}", values, "ms")
    bound = 1000 / statistics.median(used["daemon"])
    print(f"{SESSIONS} sessions at once, bound by the daemon on one core: {bound:.0f} steps/s")
    print(f"{SESSIONS} sessions at once: 0 errors, 0 reordered")


def _used_s(ready: Rig) -> tuple[float, ...]:
    return (*shares_s(ready.daemon.pid), used_ns(ready.model_pid) / 1e9, time.process_time())


def _round(ready: Rig) -> float:
    problems: list[str] = []
    begin = threading.Barrier(SESSIONS + 1)

    def work(number: int) -> None:
        with ready.daemon.client() as client:
            session = client.call("org.lightagent1.Sessions.Create", agent="bench")["session"]["id"]
            begin.wait()
            for prompt in range(PROMPTS):
                last: dict[str, Any] = {}
                for reply in client.stream(
                    "org.lightagent1.Sessions.Prompt", session=session, text=f"prompt {prompt} of {number}"
                ):
                    last = reply["event"]
                if last["type"] != "done":
                    problems.append(str(last))
            problems.extend(_reordered(client, session, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    assert not problems, problems[:3]
    return SESSIONS * PROMPTS * (STEPS + 1) / elapsed


def _reordered(client: Any, session: str, number: int) -> list[str]:
    """What is wrong with the stored order of a session's messages."""
    stored = client.call("org.lightagent1.Sessions.Messages", session=session, limit=1000)["messages"]
    roles = [message["role"] for message in stored]
    prompts = [message["content"] for message in stored if message["role"] == "user"]
    one = ["user", *(["assistant", "tool"] * STEPS), "assistant"]
    wanted = [f"prompt {prompt} of {number}" for prompt in range(PROMPTS)]
    return [] if roles == one * PROMPTS and prompts == wanted else [f"{session}: {roles} {prompts}"]
