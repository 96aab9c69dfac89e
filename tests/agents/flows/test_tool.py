"""The tool `flows`: agents that have flows run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, lines, prepare
from tests.agents.flows.rig import CHANGE, add, allow, echo, flow
from tests.agents.scripted import ME
from tests.agents.team.rig import functions, results, team
from tests.scripted_model import Answer, call, say

NAMED = f"{FRONT}\nflows: [flow]"


def _script(*seen: list[Any]) -> Any:
    def answer(body: dict[str, Any]) -> Answer:
        seen[0].append(functions(body))
        seen[1].extend(results(body))
        if results(body):
            return say("told")
        return call("flows_run", {"name": "flow", "inputs": {"what": "it"}})

    return answer


async def test_an_agent_whose_definition_names_a_flow_has_it_run(paths: Paths) -> None:
    prepare(paths)
    flow(paths, "flow", {"name": "say"} | echo("was {inputs.what}"), agent="test", inputs={"what": {}})
    offered: list[list[str]] = []
    said: list[str] = []
    async with team(paths, {"test": _script(offered, said)}, fronts={"test": NAMED}, toml=CHANGE) as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        await turn.over.wait()
        (record,) = test.daemon.flows.stored.records()
        assert said[0].endswith(f"\nThe run {record.id} is done.\nwas it")
        assert (record.owner, record.state, record.sent_by[0]["agent"]) == (ME.uid, "success", "test")
        assert "flows_run" in offered[0]
        assert turn.session.record.tainted


async def test_its_steps_can_do_no_more_than_the_agent(paths: Paths, tmp_path: Path) -> None:
    prepare(paths)
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "add"} | add(out), agent="other", inputs={"what": {}})
    said: list[str] = []
    fronts = {"test": "effects: [observe]\nflows: [flow]", "other": FRONT}
    toml = '[worker]\nchange_agents = ["other"]\n'
    async with team(
        paths, {"test": _script([], said), "other": [say("ok")]}, fronts=fronts, toml=toml
    ) as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        await turn.over.wait()
        assert "failed" in said[0]
        assert lines(out) == []
        run = await test.daemon.flows.run("flow", {"what": "x"}, ME.uid)
        await run.ended.wait()
        assert lines(out) == ["ran"]


async def test_an_agent_that_names_none_is_not_offered_the_tool(paths: Paths) -> None:
    prepare(paths)
    flow(paths, "flow", {"name": "say"} | echo("x"), agent="test", inputs={"what": {}})
    offered: list[list[str]] = []
    said: list[str] = []
    async with team(paths, {"test": _script(offered, said)}, fronts={"test": FRONT}, toml=CHANGE) as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        await turn.over.wait()
        assert "flows_run" not in offered[0]
        assert "may not use flows.run" in said[0]
        assert test.daemon.flows.stored.records() == []
