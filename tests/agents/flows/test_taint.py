"""The session of a run is tainted by every output that may hold text from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.flows.rig import CHANGE, echo, ended, flow, question, running
from tests.agents.scripted import ME
from tests.agents.team.rig import by_agent, define_team
from tests.scripted_model import ScriptedModel, call, say


async def test_by_a_nested_run(paths: Paths) -> None:
    flow(paths, "below", {"name": "read"} | echo("from outside"))
    flow(paths, "flow", {"name": "nested", "flow": "below"})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert run.steps["nested"].output == "from outside"
        assert run.session.record.tainted
        kept = daemon.history.queries.state_of("sessions", run.session.id)
        assert kept["tainted"]


async def test_by_a_prompt_also_when_its_answer_is_read_back_after_a_kill(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(paths)
    flow(paths, "flow", {"name": "agent", "prompt": "read it"}, {"name": "ask", "ask": "Go on?"})
    script = {"ops": [call("probe_read", {"url": "evil"}), say("done")]}
    async with ScriptedModel(by_agent(script)) as model:
        define_team(paths, model, script, {"ops": FRONT}, CHANGE)
        async with Daemon(paths) as daemon:
            with copied(paths, monkeypatch, list[str]) as copies:
                run = await daemon.flows.run("flow", {}, ME.uid)
                await question(daemon, run, "ask")
            assert run.session.record.tainted
        for number in range(len(copies)):
            with killed_after(paths, number) as left:
                async with Daemon(left) as again:
                    for run in again.flows.runs.values():
                        await question(again, run, "ask")
                        assert run.session.record.tainted, number
