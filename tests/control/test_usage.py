"""Who may see what was used: his own always, an agent's with the agent, everybody's as an administrator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from lightagentd import api
from lightagentd.agents.model_calls.metering.ledger import today
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.errors import InvalidArgument, LightagentError, NotFound, PermissionDenied, SessionNotFound
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from tests.agents.scripted import ME, Scripted, scripted
from tests.conftest import DaemonProcess
from tests.scripted_model import say

OTHER = Caller(uid=os.getuid() + 4711, gid=1, pid=1)
THIRD = Caller(uid=os.getuid() + 4712, gid=1, pid=1)
TOML = """
[budgets.owner_day]
tokens = 1000
[budgets.day]
cost = 5.0
[budgets.session]
wall_s = 60
[budgets.turn]
steps = 3
"""


class Rules:
    """Everybody may inspect and prompt, but not the agents in `hidden`."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        del caller, ask
        return operation in (Operation.INSPECT, Operation.PROMPT) and agent not in self.hidden


@pytest.fixture
async def used(paths: Paths) -> AsyncIterator[tuple[Scripted, Rules, str, str]]:
    """A daemon where ME and OTHER have had one turn each, and their sessions."""
    async with scripted(paths, [say("one")], toml=TOML) as test:
        rules = Rules()
        test.daemon.authority._deciders = (rules,)
        mine, others = [await _turn(test, caller) for caller in (ME, OTHER)]
        yield test, rules, mine, others


async def _turn(test: Scripted, caller: Caller) -> str:
    session = await test.daemon.service.sessions.create(caller, "test", "")
    answer = await test.daemon.service.conversations.ask(
        caller, agent="", text="go", session=session.id, new=False, timeout_s=None
    )
    return answer.session


async def names(test: Scripted, caller: Caller, scope: str, name: str = "") -> list[str]:
    return [row.name for row in await test.daemon.service.usage.get(caller, scope, name)]


async def test_a_user_sees_what_he_used_and_nobody_elses(used: tuple[Scripted, Rules, str, str]) -> None:
    test, _, mine, others = used
    assert await names(test, OTHER, "session") == [others]
    assert await names(test, OTHER, "session", others) == [others]
    assert await names(test, OTHER, "owner") == [str(OTHER.uid)]
    assert await names(test, OTHER, "owner_day") == [f"{today()}/{OTHER.uid}"]
    assert await names(test, OTHER, "owner_day", today()) == [f"{today()}/{OTHER.uid}"]
    [turn] = await names(test, OTHER, "turn")
    assert await names(test, OTHER, "turn", turn) == [turn]
    assert await names(test, OTHER, "turn", others) == [turn], "the turns of a session"
    [hidden] = await names(test, ME, "turn", mine)
    for scope, name in (("turn", hidden), ("turn", mine), ("session", mine), ("owner", str(ME.uid))):
        with pytest.raises((NotFound, SessionNotFound)) as error:
            await test.daemon.service.usage.get(OTHER, scope, name)
        with pytest.raises((NotFound, SessionNotFound)) as nothing:
            await test.daemon.service.usage.get(OTHER, scope, "nothing")
        assert error.value.message == nothing.value.message.replace("nothing", name)
        assert type(error.value) is type(nothing.value)


async def test_an_administrator_sees_everybodys(used: tuple[Scripted, Rules, str, str]) -> None:
    test, _, mine, others = used
    assert set(await names(test, ME, "session")) == {mine, others}
    assert set(await names(test, ME, "owner")) == {str(ME.uid), str(OTHER.uid)}
    assert len(await names(test, ME, "turn")) == 2
    assert await names(test, ME, "day") == [today()]
    [everything] = await test.daemon.service.usage.get(ME, "all", "")
    assert (everything.turns, everything.total_tokens) == (2, 30)
    for scope in ("day", "all"):
        with pytest.raises(PermissionDenied):
            await test.daemon.service.usage.get(OTHER, scope, "")


async def test_an_agent_that_may_not_be_looked_at_is_in_no_answer(
    used: tuple[Scripted, Rules, str, str],
) -> None:
    test, rules, _, others = used
    assert "test" in await names(test, OTHER, "agent")
    for caller, turns in ((ME, 2), (OTHER, 1), (THIRD, 0)):  # of an agent, users see their own part
        for name in ("test", ""):
            rows = await test.daemon.service.usage.get(caller, "agent", name)
            assert [row.turns for row in rows if row.name == "test"] == [turns]
    rules.hidden = {"test"}
    for scope in ("agent", "session", "turn"):
        assert await names(test, OTHER, scope) == []
    for scope, name in (("agent", "test"), ("session", others)):
        with pytest.raises(LightagentError):
            await test.daemon.service.usage.get(OTHER, scope, name)


async def test_who_used_nothing_yet_has_used_nothing(used: tuple[Scripted, Rules, str, str]) -> None:
    test, _, _, _ = used
    for name in (str(THIRD.uid),):
        [row] = await test.daemon.service.usage.get(THIRD, "owner", name)
        assert row == api.Usage(
            scope="owner",
            name=name,
            turns=0,
            steps=0,
            steps_without_usage=0,
            steps_without_price=0,
            calls=0,
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            total_tokens=0,
            cost=0.0,
            wall_ms=0,
        )
    assert await names(test, THIRD, "session") == []
    with pytest.raises(InvalidArgument, match="There is no scope 'week'"):
        await test.daemon.service.usage.get(ME, "week", "")


async def test_the_budgets_that_apply_and_how_much_is_used(used: tuple[Scripted, Rules, str, str]) -> None:
    test, _, mine, others = used
    found = await test.daemon.service.usage.budgets(OTHER, others)
    assert [(one.scope, one.name, one.what, one.limit) for one in found] == [
        ("turn", "", "steps", 3.0),
        ("session", others, "wall_s", 60.0),
        ("owner_day", f"{today()}/{OTHER.uid}", "tokens", 1000.0),
    ]
    assert found[2].used == 15
    [day] = [one for one in await test.daemon.service.usage.budgets(ME, "") if one.scope == "day"]
    assert (day.what, day.limit, day.name) == ("cost", 5.0, today())
    with pytest.raises(SessionNotFound):
        await test.daemon.service.usage.budgets(OTHER, mine)


async def test_it_is_there_on_the_socket(paths: Paths, daemon_process: DaemonProcess) -> None:
    await asyncio.to_thread(daemon_process.start)
    done = await asyncio.to_thread(daemon_process.lactl, "prompt", "ops", "check memory")
    assert done.returncode == 0, done.stderr
    async with AsyncClient(paths.socket) as client:
        [row] = (await client.call("Usage.Get", scope="owner"))["usage"]
        assert row["steps"] >= 1
        assert row["steps_without_usage"] == 0, "the embedded model counts, and takes nothing"
        assert (await client.call("Usage.Budgets"))["budgets"] == []
