"""Triggers that have flows run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.unattended import check
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import ConfigError, InvalidArgument, NotFound, PermissionDenied
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, lines, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.flows.rig import CHANGE, add, answer, echo, flow, question, running
from tests.agents.scripted import ME, until
from tests.agents.team.rig import by_agent, define_team
from tests.agents.triggers.rig import at_rest, counts, happened, taken, trigger
from tests.conftest import write
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import ScriptedModel, say

SOMEBODY = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
AGENT = {"agent": None, "prompt": None}


def _trigger(paths: Paths, **more: object) -> None:
    trigger(paths, **AGENT, flow="flow", inputs={"what": "{what}"}, **more)  # type: ignore[arg-type]


async def test_what_happened_runs_a_flow_whose_output_is_the_answer(paths: Paths, tmp_path: Path) -> None:
    out = tmp_path / "out"
    inputs: dict[str, object] = {"what": {}}
    flow(
        paths,
        "flow",
        {"name": "add"} | add(out, "{inputs.what}"),
        {"name": "say"} | echo("was {inputs.what}"),
        inputs=inputs,
    )
    _trigger(paths, effects=["observe", "change"])
    async with running(paths) as daemon:
        await daemon.triggers.fire("disk", [happened("full")])
        await at_rest(daemon.triggers)
        (found,) = await taken(daemon.triggers)
        assert (found.text, found.code) == ("was full", "")
        assert lines(out) == ["full"]
        (record,) = daemon.flows.stored.records()
        assert (record.trigger, record.unattended, record.session) == ("disk", True, found.session)
        assert daemon.registry.session(record.session)[1].record.tainted
        (shown,) = [one for one in await daemon.service.triggers.listed(ME) if one.name == "disk"]
        assert (shown.flow, shown.agent) == ("flow", "ops")


async def test_without_the_effect_its_change_waits_for_a_person(paths: Paths, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "add"} | add(out), inputs={"what": {}})
    _trigger(paths)
    async with running(paths) as daemon:
        await daemon.triggers.fire("disk", [happened("full")])
        await until(lambda: daemon.flows.runs)
        (run,) = daemon.flows.runs.values()
        await question(daemon, run, "add")
    async with running(paths) as daemon:
        (run,) = daemon.flows.runs.values()
        await answer(daemon, run, "add")
        await at_rest(daemon.triggers)
        (found,) = await taken(daemon.triggers)
        assert found.code == ""
        assert lines(out) == ["ran"]


async def test_a_flow_that_is_gone_is_told_as_the_answer(paths: Paths) -> None:
    _trigger(paths)
    async with running(paths) as daemon:
        await daemon.triggers.fire("disk", [happened("full")])
        await at_rest(daemon.triggers)
        (found,) = await taken(daemon.triggers)
        assert found.code == "not_found"


async def test_a_kill_anywhere_runs_the_flow_once(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(paths)
    flow(paths, "flow", {"name": "one"} | echo("1"), {"name": "two"} | echo("2"), inputs={"what": {}})
    _trigger(paths, rate_limit=100)
    script = {"ops": [say("ok")]}
    async with ScriptedModel(by_agent(script)) as model:
        define_team(paths, model, script, {"ops": FRONT}, CHANGE)
        async with Daemon(paths) as daemon:
            with copied(paths, monkeypatch, lambda: 0) as copies:
                await daemon.triggers.fire("disk", [happened("it")], "1")
                await at_rest(daemon.triggers)
        for number, _ in enumerate(copies):
            with killed_after(paths, number) as left:
                async with Daemon(left) as again:
                    if not again.triggers.standing("disk").position:
                        await again.triggers.fire("disk", [happened("it")], "1")
                    await at_rest(again.triggers)
                    assert counts(again.triggers) == {"fired": 1}, number
                    (found,) = await taken(again.triggers)
                    assert (found.text, len(again.flows.stored.records())) == ("2", 1), number


async def test_a_flow_by_its_short_name_is_one_of_its_agent(paths: Paths) -> None:
    text = 'description = "x"\n[[step]]\nname = "say"\ncall = "probe.read"\nargs = { url = "x" }\n'
    write(paths.config / "agent" / "ops" / "flows" / "mine.toml", text)
    trigger(paths, agent=None, prompt=None, flow="mine")
    async with running(paths) as daemon:
        found = {one.name: one for one in await daemon.service.triggers.listed(ME)}
        assert found["disk"].agent == "ops"


async def _asked(daemon: Daemon, name: str, caller: Caller = ME, **how: Any) -> list[dict[str, Any]]:
    return [dict(event) async for event in daemon.service.triggers.run(caller, name, **how)]


@pytest.mark.parametrize("takes", [True, False])
async def test_triage_has_a_flow_run_for_an_administrator_alone(paths: Paths, takes: bool) -> None:
    inputs: dict[str, object] = {"unit": {}} if takes else {}
    flow(
        paths,
        "flow",
        {"name": "say"} | echo("{inputs.unit} failed" if takes else "a unit failed"),
        inputs=inputs,
    )
    data = {"unit": "web.service"}
    async with running(paths) as daemon:
        last = (await _asked(daemon, "triage", data=data, flow="flow"))[-1]
        assert (last["type"], last["text"]) == ("done", "web.service failed" if takes else "a unit failed")
        (record,) = daemon.flows.stored.records()
        assert (record.owner, record.trigger, record.unattended) == (ME.uid, "", True)
        with pytest.raises(PermissionDenied):
            await _asked(daemon, "triage", SOMEBODY, data=data, flow="flow")
        with pytest.raises(InvalidArgument, match="is for triage"):
            await _asked(daemon, "prompt@health", flow="flow")
        with pytest.raises(NotFound):
            await _asked(daemon, "triage", data=data, flow="nosuch")


async def test_a_prompt_of_a_unit_may_be_a_flow(paths: Paths) -> None:
    flow(paths, "flow", {"name": "say"} | echo("{inputs.what}"), inputs={"what": {}})
    text = 'flow = "flow"\nowner = "root"\ninputs = { what = "{as it is}" }\n'
    path = write(paths.config / "prompts" / "nightly.toml", text)
    async with running(paths) as daemon:
        last = (await _asked(daemon, "prompt@nightly"))[-1]
        assert (last["type"], last["text"]) == ("done", "{as it is}")
        (shown,) = [one for one in await daemon.service.triggers.listed(ME) if one.name == "prompt@nightly"]
        assert (shown.flow, shown.agent, shown.prompt) == ("flow", "ops", "")
    write(path, f'{text}prompt = "check disk"\n')
    with pytest.raises(ConfigError, match="prompt does not go with flow"):
        check(path)
    write(path, 'agent = "ops"\nowner = "root"\n')
    with pytest.raises(ConfigError, match="the key 'prompt' is missing"):
        check(path)
