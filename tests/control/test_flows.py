"""Runs of flows over the operations: whose they are, and what nobody gets with the run of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightagentd.control.authz import Authority, Caller
from lightagentd.control.grants import Grant
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import HistoryDamaged, InvalidArgument, NotFound, PermissionDenied
from lightagentd.events.history import Change
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from tests.agents.asking import lines
from tests.agents.flows.rig import add, allow, echo, ended, flow, over, question, running
from tests.agents.scripted import ME
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import say

OWNER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
OTHER = Caller(uid=54322, gid=OUTSIDERS_GID, pid=1)


class Only:
    """A decider that lets anybody prompt these agents alone."""

    def __init__(self, *agents: str) -> None:
        self._agents = agents

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool | None:
        return operation is Operation.INSPECT or (
            operation is Operation.PROMPT and agent in ("", *self._agents)
        )


class Hides:
    """A decider that lets anybody look at all agents but one."""

    def __init__(self, agent: str) -> None:
        self._agent = agent

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool | None:
        return operation is Operation.INSPECT and agent != self._agent


def let(daemon: Daemon, *agents: str) -> None:
    """From now on nobody but an administrator prompts other agents."""
    daemon.service.flows._access._authority = Authority(Only(*agents))


async def test_a_run_is_its_owners(paths: Paths) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"))
    async with running(paths) as daemon:
        let(daemon, "ops")
        of = daemon.service.flows
        run = (await of.run(OWNER, "flow")).id
        await over(daemon.flows.of_record(daemon.flows.record(run)))
        assert [one.id for one in await of.runs(OWNER)] == [run]
        assert await of.runs(OTHER) == []
        foreign = (of.get, of.show, of.draw, of.cancel, of.resume)
        for answer in (*(one(OTHER, run) for one in foreign), of.output(OTHER, run, "say")):
            with pytest.raises(NotFound):
                await answer
        for answer in (of.rerun(OTHER, run, "say"), of.run(OTHER, "flow", first="say", of=run)):
            with pytest.raises(NotFound):
                await answer
        with pytest.raises(NotFound):
            async for _ in of.follow(OTHER, run):
                pass


async def test_another_flow_does_not_open_the_run_of_one_that_the_caller_may_not_run(
    paths: Paths, tmp_path: Path
) -> None:
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "may", {"name": "say"} | echo("x"))
    flow(paths, "flow", {"name": "read"} | echo("x"), {"name": "add", "agent": "other"} | add(out))
    async with running(paths, other=[say("ok")]) as daemon:
        run = await over(await daemon.flows.run("flow", {}, OWNER.uid))
        assert lines(out) == ["ran"]
        of = daemon.service.flows
        narrow = replace(OWNER, grant=Grant(name="narrow", agents=frozenset({"ops"})))
        for seen in (of.show(narrow, run.record.id), of.output(narrow, run.record.id, "add")):
            with pytest.raises(PermissionDenied, match="does not cover the agent other"):
                await seen
        let(daemon, "ops")
        with pytest.raises(InvalidArgument, match="is one of flow"):
            await of.run(OWNER, "may", first="add", of=run.record.id)
        for answer in (of.rerun(OWNER, run.record.id, "add"), of.resume(OWNER, run.record.id)):
            with pytest.raises(PermissionDenied):
                await answer
        assert lines(out) == ["ran"]
        let(daemon, "ops", "other")
        await of.rerun(OWNER, run.record.id, "add")


async def test_runs_with_agents_that_the_caller_may_not_inspect_are_not_listed(paths: Paths) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"))
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, OWNER.uid)
        await over(run)
        daemon.service.flows._access._authority = Authority(Hides("ops"))
        assert await daemon.service.flows.runs(OWNER) == []


async def test_a_run_whose_definition_is_gone_hides_no_other_and_says_what_to_do(paths: Paths) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"))
    flow(paths, "other", {"name": "say"} | echo("y"))
    async with running(paths) as daemon:
        run, other = await ended(daemon), await ended(daemon, "other")
        gone = Change(state="flow_definitions", key=run.record.digest, value=None)
        await daemon.history.append(changes=[gone])
        daemon.flows.stored._definitions.clear()
        found = {one.id: one for one in await daemon.service.flows.runs(ME)}
        assert (found[other.record.id].steps, found[run.record.id].steps) == (1, 0)
        with pytest.raises(HistoryDamaged) as caught:
            await daemon.service.flows.resume(ME, run.record.id)
        assert "--new" in caught.value.suggestion
        await daemon.service.flows.rerun(ME, run.record.id, "say", new=True)


async def test_a_run_whose_definition_is_gone_can_be_cancelled(paths: Paths) -> None:
    flow(paths, "flow", {"name": "ask", "ask": "Go?"})
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "ask")
        gone = Change(state="flow_definitions", key=run.record.digest, value=None)
        await daemon.history.append(changes=[gone])
    async with running(paths) as daemon:
        assert run.record.id not in daemon.flows.runs
        assert (await daemon.service.flows.cancel(ME, run.record.id)).state == "cancelled"


async def test_a_flow_is_shown_to_who_may_look_at_its_agent(paths: Paths) -> None:
    flow(paths, "hidden", {"name": "say"} | echo("x"), agent="other")
    async with running(paths, other=[say("ok")]) as daemon:
        daemon.service.flows._access._authority = Authority(Hides("other"))
        of = daemon.service.flows
        for answer in (of.draw(OTHER, "hidden"), of.plan(OTHER, "hidden"), of.check(OTHER, "hidden")):
            with pytest.raises(PermissionDenied):
                await answer
