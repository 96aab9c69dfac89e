"""A daemon with flows, whose steps call a probe that shows what ran, and ask a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.flows.records import RunRecord, StepRecord
from lightagentd.agents.flows.run import Run
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import StorageError
from lightagentd.events.history import Event, History, NewEvent
from lightagentd.host.paths import Paths
from lightagentd.policy.questions.question import State
from tests.agents.asking import FRONT, prepare
from tests.agents.scripted import ME, until
from tests.agents.team.rig import Says, by_agent, define_team
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, say

CHANGE = '[worker]\nchange_agents = ["ops", "other"]\n'
ALLOW = '[[rule]]\nname = "probe"\ntool = "probe"\ndecision = "allow"\neven_if_tainted = true\n'


def echo(text: str) -> dict[str, Any]:
    """The keys of a step that observes, and whose output is a text."""
    return {"call": "probe.read", "args": {"url": text}}


def add(out: Path, line: str = "ran") -> dict[str, Any]:
    """The keys of a step that adds a line to a file."""
    return {"call": "probe.add", "args": {"path": str(out), "line": line}}


def flow(paths: Paths, name: str, *steps: dict[str, Any], **keys: Any) -> None:
    """Write a flow whose steps come one after the other, unless they say otherwise."""
    lines = []
    before: list[str] = []
    for key, value in ({"description": "A test", "agent": "ops"} | keys).items():
        if key != "inputs":
            lines.append(f"{key} = {_toml(value)}")
    for key, value in keys.get("inputs", {}).items():
        lines += [f"[inputs.{key}]", *(f"{one} = {_toml(each)}" for one, each in value.items())]
    for step in steps:
        lines += [
            "[[step]]",
            *(f"{key} = {_toml(one)}" for key, one in ({"depends_on": before} | step).items()),
        ]
        before = [step["name"]]
    write(paths.config / "flows" / f"{name}.toml", "\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(one)}' for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def allow(paths: Paths) -> None:
    """Let the probe change things without a person."""
    write(paths.config / "policy.d" / "probe.toml", ALLOW)


@contextlib.asynccontextmanager
async def running(
    paths: Paths, script: Sequence[Answer] | Says = (), **agents: Sequence[Answer] | Says
) -> AsyncIterator[Daemon]:
    """A daemon with the agent ops, which may change things, and others; the flows were written before."""
    prepare(paths)
    scripts: Mapping[str, Sequence[Answer] | Says] = {"ops": script or [say("ok")], **agents}
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, dict.fromkeys(scripts, FRONT), CHANGE)
        async with Daemon(paths) as daemon:
            yield daemon


async def ended(daemon: Daemon, name: str = "flow", **inputs: Any) -> Run:
    """Have a flow run to its end."""
    return await over(await daemon.flows.run(name, inputs, ME.uid))


async def over(run: Run) -> Run:
    """Wait until a run is over."""
    await until(run.ended.is_set)
    assert run.record.state != "running"
    return run


def states(run: Run) -> dict[str, str]:
    return {name: one.state for name, one in run.steps.items()}


def stored(daemon: Daemon, run: Run | RunRecord) -> dict[str, StepRecord]:
    """The steps of a run, as they are on the disk."""
    record = run.record if isinstance(run, Run) else run
    return {one.name: one for one in daemon.flows.stored.steps(record)}


async def question(daemon: Daemon, run: Run, step: str) -> str:
    """Wait until a step waits for a person; gives the id of the question."""
    await until(lambda: step in run.steps and run.steps[step].waits_for)
    asked, found = daemon.registry.shared.asked, run.steps[step].waits_for
    store = asked.inputs.questions if found.startswith("inp_") else asked.approvals.questions
    await until(lambda: store.find(found) is not None and store.get(found).state is State.WAITING)
    await until(lambda: store.is_stored(found))
    return found


async def answer(daemon: Daemon, run: Run, step: str, text: str = "yes") -> None:
    """Answer what a step asks: an input with the text, an approval with yes or no."""
    found = await question(daemon, run, step)
    asked = daemon.registry.shared.asked
    if found.startswith("inp_"):
        await asked.inputs.answer(found, text, uid=0)
    else:
        await asked.approvals.answer(found, grant=text == "yes", uid=0)


def disk_full(monkeypatch: pytest.MonkeyPatch, step: str, times: int = 1) -> list[int]:
    """Let the disk take nothing of a step so many times; gives how often it still does not."""
    append, left = History.append, [times]

    def full(self: History, *events: NewEvent, **more: Any) -> asyncio.Future[list[Event]]:
        if left[0] and any(e.topic == "flow.step" and e.data.get("step") == step for e in events):
            left[0] -= 1
            failed: asyncio.Future[list[Event]] = asyncio.get_running_loop().create_future()
            failed.set_exception(StorageError("The disk is full."))
            return failed
        return append(self, *events, **more)

    monkeypatch.setattr(History, "append", full)
    return left
