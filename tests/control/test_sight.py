"""An agent that somebody may not look at is in none of his answers: neither plane, list, query nor stream."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from lightagentd.control import sight
from lightagentd.control.authz import INTERACTION, Authority, Caller
from lightagentd.control.dbus import watchers
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import AuthorizationRequired, PermissionDenied
from lightagentd.events.model import within
from lightagentd.events.queries import Filter
from lightagentd.events.types.tool import CallEnded, emitted
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from tests.agents.asking import FRONT, PROBE, add
from tests.agents.scripted import until
from tests.conftest import write
from tests.control.dbus.on_the_bus import GET_ALL, MANAGED, MANAGER, ROOT, serving
from tests.control.test_authz import NOBODY, needs_root
from tests.dbus_client import BusClient
from tests.scripted_model import call, say

SECRET = "marmot-4711"
HIDDEN = "talker"
ME = Caller(uid=NOBODY, gid=NOBODY, pid=1)
ROOTS = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())


class Rules:
    """All may inspect and prompt, but not the agents in `hidden`, and those in `asked` with a password."""

    def __init__(self, *hidden: str) -> None:
        self.hidden = set(hidden)
        self.asked: set[str] = set()
        self.questions: list[str] = []
        self.held: asyncio.Event | None = None

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        self.questions.append(agent)
        if self.held is not None:
            await self.held.wait()
        if agent in self.asked:
            if not ask or INTERACTION.get():
                return ask
            raise AuthorizationRequired("A password is needed.")
        return operation in (Operation.INSPECT, Operation.PROMPT) and agent not in self.hidden


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
async def bus(paths: Paths, rules: Rules) -> AsyncIterator[tuple[Daemon, str]]:
    """A daemon with a turn of nobody's that waits for an approval; then the agent is hidden from him."""
    write(paths.config / "tools" / "probe.py", PROBE)
    script = [call("probe_add", add(paths.state.parent / SECRET)), say(SECRET)]
    toml = '[worker]\nchange_agents = ["talker"]\n'
    async with serving(paths, script, toml=toml, extra=f"{FRONT}\n") as (daemon, address):
        daemon.authority._deciders = (rules,)
        prompt = daemon.service.conversations.prompt(
            ME, agent=HIDDEN, text=f"know {SECRET}", session="", new=True, correlation_id=""
        )
        async with aclosing(prompt) as events:
            async for event in events:
                if event["type"] == "approval_requested":
                    break
        await stored_change(daemon)
        rules.hidden = {HIDDEN}
        yield daemon, address


@pytest.fixture
def daemon(bus: tuple[Daemon, str]) -> Daemon:
    return bus[0]


async def stored_change(daemon: Daemon) -> None:
    """The event of a file that the agent changed."""
    ended = CallEnded(
        call_id="call_1",
        tool="file",
        action="write",
        effect="change",
        result="ok",
        duration_ms=1,
        output_chars=0,
        taints=False,
        metadata={"previous_kept": True, "path": f"/{SECRET}"},
    )
    with within(agent=HIDDEN, owner=NOBODY):
        await daemon.history.append(ended.event())


@needs_root
async def test_answers_about_several_agents_leave_out_the_hidden_one(daemon: Daemon, rules: Rules) -> None:
    service = daemon.service

    async def answers() -> list[object]:
        past = service.events.subscribe(ME, Filter(), 1, follow=False)
        return [
            await service.agents.listed(ME),
            await service.sessions.listed(ME, ""),
            await service.approvals.listed(ME, all_=True),
            await service.undo.listed(ME, ""),
            [one async for one in past if (event := one["event"]) is None or event.agent or event.session],
            [
                event
                for event in await service.history.query(ME, Filter(), 1000)
                if event.agent or event.session
            ],
        ]

    hidden = await answers()
    assert HIDDEN not in str(hidden)
    assert SECRET not in str(hidden)
    assert "ops" in str(hidden[0])
    status = await service.manager.status(ME)
    assert status.sessions == 0
    assert HIDDEN not in str(status.workers)
    rules.hidden.clear()
    for answer in await answers():
        assert HIDDEN in str(answer)


@needs_root
async def test_answers_about_the_hidden_agent_are_refused(daemon: Daemon) -> None:
    service = daemon.service
    [session] = await service.sessions.listed(ROOTS, HIDDEN)
    [approval] = await service.approvals.listed(ROOTS, all_=False)
    explain = service.policy.explain(
        ME, agent=HIDDEN, tool="file", action="read", args={}, trigger="person", tainted=False
    )
    for asking in (
        service.agents.get(ME, HIDDEN),
        service.sessions.listed(ME, HIDDEN),
        service.sessions.get(ME, session.id),
        service.sessions.messages(ME, session.id, 10),
        service.approvals.get(ME, approval.id),
        service.approvals.deny(ME, approval.id, ""),
        service.undo.listed(ME, HIDDEN),
        service.history.query(ME, Filter(agent=HIDDEN), 10),
        anext(service.events.subscribe(ME, Filter(agent=HIDDEN), 1, follow=False)),
        anext(service.undo.run(ME, "", HIDDEN)),
        explain,
    ):
        with pytest.raises(PermissionDenied):
            await asking
    assert await service.history.query(ME, Filter(session=session.id), 10) == []
    assert await service.history.query(ROOTS, Filter(session=session.id), 10)


@needs_root
async def test_a_stream_leaves_out_what_is_hidden_meanwhile_and_ends_with_the_rights(
    daemon: Daemon, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "RIGHTS_S", 0.0)
    rules.hidden.clear()
    stream = daemon.service.events.subscribe(ME, Filter(topic="tool.test"), None, follow=True)
    async with aclosing(stream) as events:

        async def next_after(*agents: str) -> str:
            waiting = asyncio.ensure_future(anext(events))
            await until(lambda: daemon.feed.followers)
            for agent in agents:
                with within(agent=agent):
                    await daemon.history.append(emitted("tool.test", "done", {}))
            event = (await waiting)["event"]
            assert event is not None
            return event.agent

        assert await next_after(HIDDEN) == HIDDEN
        rules.hidden = {HIDDEN}
        assert await next_after(HIDDEN, "ops") == "ops"
        rules.hidden = {""}
        with pytest.raises(PermissionDenied, match="any more"):
            await next_after("ops")


@needs_root
async def test_on_the_bus_the_hidden_agent_is_in_no_list_and_no_signal(
    bus: tuple[Daemon, str], rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "RIGHTS_S", 0.0)
    _, address = bus
    async with BusClient(address, NOBODY) as nobody, BusClient(address, 0) as root:
        [seen] = await nobody.call(ROOT, MANAGED)
        assert list(seen) == [f"{ROOT}/agents/ops"]
        refused = await nobody.call(f"{ROOT}/agents/{HIDDEN}", GET_ALL, "s", "")
        assert refused["error"][0] == "org.lightagent1.Error.PermissionDenied"
        await root.call(ROOT, f"{MANAGER}.Subscribe")
        for agent in (HIDDEN, "ops"):
            await root.call(ROOT, "org.lightagent1.Agents.Stop", "s", agent)
        told = await nobody.do("wait", "PropertiesChanged", f"{ROOT}/agents/ops", 1)
        await root.do("wait", "PropertiesChanged", f"{ROOT}/agents/{HIDDEN}", 1)
        assert HIDDEN not in json.dumps(told)
        rules.hidden.clear()
        await root.call(ROOT, "org.lightagent1.Agents.Start", "s", HIDDEN)
        await nobody.do("wait", "PropertiesChanged", f"{ROOT}/agents/{HIDDEN}", 1)


async def test_all_agents_are_asked_about_at_once_and_root_about_none(rules: Rules) -> None:
    authority = Authority(rules)
    agents = {f"agent-{number}" for number in range(20)}
    assert await authority.inspectable(ROOTS, agents) == agents
    assert rules.questions == []
    rules.held = asyncio.Event()
    asking = asyncio.create_task(authority.inspectable(ME, agents))
    await until(lambda: len(rules.questions) == 20)
    rules.held.set()
    assert await asking == agents


async def test_who_authenticated_sees_what_needs_it_and_nobody_is_asked_twice(rules: Rules) -> None:
    authority = Authority(rules)
    rules.asked, rules.hidden = {"", "ops"}, {"web"}
    INTERACTION.set(True)
    await authority.admit(ME, Operation.INSPECT)
    assert await authority.inspectable(ME, ["ops", "web", "free"]) == {"ops", "free"}
    assert INTERACTION.get()
    rules.asked = {"ops"}  # he did not authenticate, and this one would need it
    assert await authority.inspectable(ME, ["ops", "web", "free"]) == {"free"}


async def test_the_agents_of_the_history_are_found(daemon: Daemon) -> None:
    for agent in ("a", "a-b", "ab", "é"):
        with within(agent=agent):
            for _ in range(3):
                await daemon.history.append(emitted("tool.test", "done", {}))
    found = daemon.history.queries.agents()
    assert len(found) == len(set(found))
    assert {"a", "a-b", "ab", "é", HIDDEN} <= set(found)
