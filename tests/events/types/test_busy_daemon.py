"""What a daemon stores that is used in many ways: every event is as declared, and as the schema says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from lightagentd.control.authz import Caller
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.types.registry import check, type_of
from lightagentd.events.types.schema import json_schema
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, add, asked, prepare
from tests.agents.planning import TWO
from tests.agents.questions import ask, question
from tests.agents.scripted import ME, Scripted, scripted, until
from tests.conftest import write
from tests.events.types.validity import valid
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import Answer, Fault, call, say

OTHER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
EXPECTED = {
    *("Prompted", "ModelAnswered", "CallIntended", "CallRefused", "Said", "TurnFailed", "CallEnded"),
    *("SessionCreated", "SessionRenamed", "SessionPaused", "SessionResumed", "SessionForked"),
    *("SessionImported", "SessionSwitched", "SessionDeleted", "TurnStarted", "TurnDone"),
    *("PlanBegun", "PlanReady", "PlanApplying", "PlanTask", "PlanCompleted", "PlanEnded"),
    *("ApprovalRequested", "ApprovalGranted", "ApprovalDenied", "ApprovalUsed", "ApprovalLapsed"),
    *("InputRequested", "InputAnswered", "InputLapsed"),
    *("MemoryRemembered", "MemoryForgotten", "ProfileSet", "ProfileRemoved"),
    *("RulesLoaded", "RulesBroken", "DaemonStarting", "DaemonReady", "DaemonReloaded", "DaemonStopped"),
    *("SandboxChosen", "Panicked", "PanicEnded", "AgentStarted", "AgentStopped", "CheckpointSigned"),
}


async def turn(
    test: Scripted, session: str, meanwhile: Callable[[], Any] | None = None, caller: Caller = ME
) -> None:
    """A prompt to its end, over which something else happens."""

    async def run(events: AsyncGenerator[Any, None]) -> None:
        async with contextlib.aclosing(events):
            async for _ in events:
                pass

    service = test.daemon.service
    prompted = service.conversations.prompt(
        caller, agent="", text="go", session=session, new=False, correlation_id="c"
    )
    task = asyncio.create_task(run(prompted))
    if meanwhile is not None:
        await meanwhile()
    await task


async def live(test: Scripted) -> None:
    """One thing after the other, in the order of the script."""
    service = test.daemon.service
    mine = (await service.sessions.create(ME, "test", "")).id
    other = (await service.sessions.create(OTHER, "test", "")).id

    async def answer_question() -> None:
        await service.inputs.answer(ME, (await question(test)).id, "sda")

    async def approve() -> None:
        await service.approvals.approve(ME, (await asked(test)).id, "go on")

    async def deny() -> None:
        await service.approvals.deny(ME, (await asked(test)).id, "no")

    async def cancel_waiting() -> None:
        await asked(test)
        await service.conversations.cancel(ME, other)

    async def cancel_asking() -> None:
        await question(test)
        await service.conversations.cancel(ME, other)

    await turn(test, mine)
    await turn(test, mine, answer_question)
    for meanwhile in (approve, deny, cancel_waiting, cancel_asking):
        await turn(test, other, meanwhile, OTHER)
    await turn(test, mine)  # its model fails
    await service.plans.begin(ME, mine)
    await service.plans.set(ME, mine, TWO)
    await service.plans.apply(ME, mine, "", "")
    await until(lambda: test.agent.sessions[mine].at_rest)
    await service.plans.end(ME, mine)
    await service.sessions.rename(ME, mine, "a name")
    await service.sessions.pause(ME, mine)
    await service.sessions.resume(ME, mine)
    fork = (await service.sessions.fork(ME, mine, title="", up_to_seq=None)).id
    export = await service.sessions.export(ME, mine, "jsonl")
    await service.sessions.import_(ME, "test", export.text, "")
    await service.sessions.switch(ME, mine)
    await service.sessions.delete(ME, fork, confirmed=True)
    kept = await service.memory.remember(ME, text="tea", agent="", tags=[], confidence=1.0, expires_us=0)
    await service.memory.forget(ME, kept.id)
    await service.memory.set_profile(ME, "brief answers")
    await service.memory.set_profile(ME, "")
    write(test.daemon.paths.config / "policy.d" / "10-x.toml", "broken")
    await service.manager.reload(ME)
    await service.agents.stop(ME, "test")
    await service.safety.panic(ME, "enough")
    await service.safety.end_panic(ME)


def everything(paths: Paths) -> list[Event]:
    with contextlib.closing(StoredHistory(paths.history)) as stored:
        return stored.queries.select(Filter(), limit=100_000)


async def test_all_that_a_busy_daemon_stored_is_as_declared(paths: Paths) -> None:
    out = prepare(paths)
    script: list[Answer] = [
        *(call("proc_list", {"limit": 2}), call("no_such", {}), say("done")),
        *(ask(), say("thanks")),
        *(call("probe_add", add(out)), say("added")),
        *(call("probe_add", add(out)), say("not added")),
        call("probe_add", add(out)),
        ask(),
        Fault(status=400),
        *(say("did a"), say("did b")),
    ]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        await live(test)
    events = everything(paths)
    assert len(events) > 100
    for event in events:
        check(event)
    schema = json_schema()
    assert [one.to_dict() for one in events if not valid(one.to_dict(), schema, schema)] == []
    found = {declared.__name__ for event in events if (declared := type_of(event)) is not None}
    assert EXPECTED - found == set()
