"""What a child costs: an agent that is asked by another one, beside the same turn asked by a person; and
children at once, beside one, with a model that waits before each answer.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lightagentd.agents.agent import Agent
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, watch
from tests.agents.team.rig import by_agent, define_team, results
from tests.bench.rig import show
from tests.scripted_model import Answer, ScriptedModel, Stream, call, calls, say

STEPS = 10
COST, AT_ONCE = 1.3, 1.5
CHILDREN = 8
_PAUSE_S = 0.2
_TOML = f"[limits]\nchildren_at_once = {CHILDREN}\n"
_READ = {"path": "/proc/self/status"}


def _worker(body: dict[str, Any]) -> Answer:
    return say("done") if len(results(body)) >= STEPS else call("file_read", _READ, call_id="r")


def _asks(body: dict[str, Any]) -> Answer:
    """One ask, or as many starts as the prompt says, and then a wait."""
    prompt = next(one["content"] for one in reversed(body["messages"]) if one["role"] == "user")
    done, count = len(results(body)), int(prompt)
    if done > count or (done and not count):
        return say("done")
    if not count:
        return call("agent_ask", {"agent": "worker", "text": "go"}, call_id="a")
    if done == count:
        return call("agent_wait", {}, call_id="w")
    wanted = {"agent": "slow", "text": "go"}
    return calls(*(("agent_start", wanted, f"s{number}") for number in range(count)))


_SCRIPTS: dict[str, Any] = {
    "asks": _asks,
    "worker": _worker,
    "slow": lambda _: Stream(pieces=say("done").pieces, pause_s=_PAUSE_S),
}


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), rounds))


async def _run(folder: Path, rounds: int) -> None:
    paths = Paths(config=folder / "etc", state=folder / "state", runtime=folder / "run")
    plain: list[float] = []
    child: list[float] = []
    one: list[float] = []
    many: list[float] = []
    async with ScriptedModel(by_agent(_SCRIPTS)) as model:
        define_team(paths, model, _SCRIPTS, {}, _TOML)
        async with Daemon(paths) as daemon:
            for number in range(rounds + 1):
                measured = (
                    await _turn(daemon, "worker", "go"),
                    await _asked(daemon),
                    await _turn(daemon, "asks", "1"),
                    await _turn(daemon, "asks", str(CHILDREN)),
                )
                for figures, value in zip((plain, child, one, many), measured, strict=True):
                    if number:  # the first round warms all of them up
                        figures.append(value * 1000)
    show(f"a turn of {STEPS} steps with a call", plain, "ms")
    show("the same as a child", child, "ms")
    _ratio("child, ratio", child, plain, COST)
    show("one child whose model waits", one, "ms")
    show(f"{CHILDREN} such children at once", many, "ms")
    _ratio(f"{CHILDREN} children at once, ratio", many, one, AT_ONCE)


def _ratio(what: str, values: list[float], beside: list[float], target: float) -> None:
    ratios = [value / other for value, other in zip(values, beside, strict=True)]
    print(f"{what}: {statistics.median(ratios):.2f} (target: at most {target})")


async def _prompt(daemon: Daemon, name: str, text: str) -> tuple[float, list[Any]]:
    caller: Caller = ME
    made = await daemon.service.sessions.create(caller, name, "")
    agent: Agent = daemon.registry.get(name)
    started = time.perf_counter()
    events = await watch(await agent.prompt(agent.sessions[made.id], text))
    assert events[-1]["type"] == "done", events[-1]
    return time.perf_counter() - started, events


async def _turn(daemon: Daemon, name: str, text: str) -> float:
    return (await _prompt(daemon, name, text))[0]


async def _asked(daemon: Daemon) -> float:
    """How long the call lasts that asks, in seconds."""
    _, events = await _prompt(daemon, "asks", "0")
    (told,) = [event for event in events if event["type"] == "tool_result"]
    return float(told["duration_ms"]) / 1000
