"""What the turns of triggers may do, and that nobody gets more by them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from lightagentd.control.authz import Caller
from lightagentd.errors import PermissionDenied
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, lines, prepare
from tests.agents.scripted import ME
from tests.agents.team.rig import ask
from tests.agents.triggers.rig import (
    CHANGE,
    at_rest,
    changing,
    counts,
    happened,
    running,
    taken,
    trigger,
)
from tests.conftest import write
from tests.scripted_model import say


@pytest.mark.parametrize(
    ("effects", "ran", "rule"),
    [
        (["observe"], [], ""),
        (["observe", "change"], ["ran"], ""),
        (["observe", "change"], [], 'decision = "ask"\ntool = "probe"'),
        (["observe", "change"], [], 'decision = "deny"\ntrigger = "disk"'),
    ],
)
async def test_a_change_runs_without_a_person_only_where_the_file_says_so(
    paths: Paths, tmp_path: Path, effects: list[str], ran: list[str], rule: str
) -> None:
    prepare(paths)
    trigger(paths, effects=effects)
    if rule:
        write(paths.config / "policy.d" / "10.toml", f'[[rule]]\nname = "mine"\n{rule}\n')
    out = tmp_path / "out"
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert lines(out) == ran
        (answer,) = await taken(daemon.triggers)
        assert answer.refused == (() if ran else ("probe.add",))
        dispatched = [
            one for one in daemon.history.queries.range(1, 1000) if one.type in ("intent", "refused")
        ]
        (event,) = [one for one in dispatched if one.topic == "agent.tool_dispatch"]
        assert (event.data or {}).get("trigger") == "disk"


async def test_a_test_by_hand_and_a_prompt_of_the_owner_get_nothing_of_it(
    paths: Paths, tmp_path: Path
) -> None:
    """The grant is the trigger's: the owner's own unattended prompt, and mail from it, are asked about."""
    prepare(paths)
    trigger(paths, effects=["observe", "change"])
    out = tmp_path / "out"
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        agent = daemon.registry.get("ops")
        made = await daemon.service.sessions.create(ME, "ops", "")
        turn = await agent.prompt(agent.sessions[made.id], "go", unattended=True)
        await turn.over.wait()
        assert lines(out) == []
        turn = await daemon.triggers.run("disk", {"what": "x"})
        await turn.over.wait()
        assert lines(out) == []
        turn = await daemon.triggers.run("disk", {"what": "x"}, granted=True)
        await turn.over.wait()
        assert lines(out) == ["ran"]
        assert counts(daemon.triggers) == {}


async def test_an_owner_who_says_what_happened_gets_no_effects_by_that(paths: Paths, tmp_path: Path) -> None:
    prepare(paths)
    nobody = pwd.getpwnam("nobody")
    trigger(paths, owner="nobody", effects=["observe", "change"])
    toml = CHANGE + '[daemon]\nsocket_group = "nogroup"\n'
    out = tmp_path / "out"
    owner = Caller(uid=nobody.pw_uid, gid=nobody.pw_gid, pid=os.getpid(), groups=frozenset({nobody.pw_gid}))
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=toml) as (daemon, _):
        service = daemon.service.triggers
        events = [event async for event in service.run(owner, "disk", data={"what": "x"})]
        assert events[-1]["text"] == "done"
        assert lines(out) == []
        with pytest.raises(PermissionDenied):
            await anext(service.run(owner, "disk", data={"what": "x"}, agent="ops"))


async def test_only_the_tools_of_the_file_are_offered(paths: Paths) -> None:
    trigger(paths, tools=["file.read", "proc"])
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        offered = {one["function"]["name"] for one in model.requests[0].body["tools"]}
        assert {"file_read", "message_parent"} <= offered
        assert not any(name.startswith(("bash", "net_")) or name == "file_stat" for name in offered)


async def test_a_session_of_somebody_else_is_not_written_into(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        made = await daemon.service.sessions.create(ME, "ops", "mine")
        trigger(paths, owner="nobody", session=made.id)
        await daemon.reload()
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        (answer,) = await taken(daemon.triggers)
        assert (answer.code, "is not nobody's with the agent ops" in answer.text) == (
            "permission_denied",
            True,
        )
        assert daemon.registry.get("ops").sessions[made.id].record.turns == 0


@pytest.mark.parametrize("effects", [["observe"], ["observe", "change"]])
async def test_an_agent_that_is_asked_by_its_turn_has_what_it_has(
    paths: Paths, tmp_path: Path, effects: list[str]
) -> None:
    prepare(paths)
    trigger(paths, effects=effects)
    out = tmp_path / "out"
    scripts: dict[str, Any] = {"ops": [ask("dba"), say("ok")], "dba": changing(out)}
    toml = '[worker]\nchange_agents = ["ops", "dba"]\n'
    async with running(paths, scripts, fronts={"ops": FRONT, "dba": FRONT}, toml=toml) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert lines(out) == (["ran"] if "change" in effects else [])
