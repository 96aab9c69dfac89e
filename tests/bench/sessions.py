"""Many sessions prompting at once: no error, no reordering inside a session, steps a second."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.bench.rig import Rig, rig, show

SESSIONS = 200
STEPS = 2
PROMPTS = 2


def run(rounds: int) -> None:
    with rig(STEPS) as ready:
        rates = [_round(ready) for _ in range(rounds)]
    show(f"{SESSIONS} sessions at once", rates, "steps/s")
    print(f"{SESSIONS} sessions at once: 0 errors, 0 reordered")


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
