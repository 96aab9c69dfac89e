"""What flows cost: calls as steps, beside the same calls alone; runs at once; and to show a run."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.client.aio import AsyncClient
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME
from tests.agents.team.rig import by_agent, define_team
from tests.bench.rig import show
from tests.conftest import write
from tests.scripted_model import ScriptedModel, say

STEPS, AT_ONCE = 1000, 200
COST, SHOWN_MS = 1.2, 200
_ARGS = {"path": "/proc/self/status"}
_CALL = 'call = "file.read"\nargs = { path = "/proc/self/status" }\n'


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), rounds))


async def _run(folder: Path, rounds: int) -> None:
    paths = Paths(config=folder / "etc", state=folder / "state", runtime=folder / "run")
    alone: list[float] = []
    steps: list[float] = []
    at_once: list[float] = []
    shown: list[float] = []
    scripts: dict[str, Any] = {"ops": [say("ok")]}
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {})
        _flow(paths, "long", STEPS)
        _flow(paths, "short", 5)
        async with Daemon(paths) as daemon:
            for number in range(rounds + 1):
                measured = (
                    await _alone(daemon),
                    await _steps(daemon),
                    await _many(daemon),
                    await _shown(daemon),
                )
                for figures, value in zip((alone, steps, at_once, shown), measured, strict=True):
                    if number:  # the first round warms all of them up
                        figures.append(value * 1000)
    show(f"{STEPS} calls alone", alone, "ms")
    show(f"a flow of {STEPS} steps with these calls", steps, "ms")
    ratios = [one / other for one, other in zip(steps, alone, strict=True)]
    print(f"flow, ratio: {statistics.median(ratios):.2f} (target: at most {COST})")
    show(f"{AT_ONCE} runs of 5 steps at once, none stuck", at_once, "ms")
    show(f"Flows.Show of {STEPS} steps (target: at most {SHOWN_MS} ms)", shown, "ms")


def _flow(paths: Paths, name: str, count: int) -> None:
    lines = [f'description = "{count} calls"\nagent = "ops"\n']
    for number in range(count):
        after = f'depends_on = ["s{number - 1}"]\n' if number else ""
        lines.append(f'[[step]]\nname = "s{number}"\n{after}{_CALL}')
    write(paths.config / "flows" / f"{name}.toml", "".join(lines))


async def _alone(daemon: Daemon) -> float:
    agent = daemon.registry.get("ops")
    started = time.perf_counter()
    for _ in range(STEPS):
        async for event in call_as_person(agent, ME.uid, "file", "read", _ARGS):
            assert event["type"] != "error", event
    return time.perf_counter() - started


async def _steps(daemon: Daemon) -> float:
    started = time.perf_counter()
    run = await daemon.flows.run("long", {}, ME.uid)
    await run.ended.wait()
    assert run.record.state == "success", run.record.message
    return time.perf_counter() - started


async def _many(daemon: Daemon) -> float:
    started = time.perf_counter()
    runs = await asyncio.gather(*(daemon.flows.run("short", {}, ME.uid) for _ in range(AT_ONCE)))
    await asyncio.gather(*(run.ended.wait() for run in runs))
    assert {run.record.state for run in runs} == {"success"}
    return time.perf_counter() - started


async def _shown(daemon: Daemon) -> float:
    run = next(one for one in reversed(daemon.flows.stored.records()) if one.flow == "long")
    async with AsyncClient(daemon.paths.socket) as client:
        started = time.perf_counter()
        found = await client.flows_show(run=run.id)
        took_s = time.perf_counter() - started
    assert len(found["shown"]["steps"]) == STEPS
    return took_s


if __name__ == "__main__":
    run(5)
