"""The operations on memories and profiles, as two users: each has his own, and there is no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lightagentd import api, errors
from lightagentd.client.blocking import Client
from lightagentd.control.authz import Caller
from lightagentd.host.paths import Paths
from lightagentd.memory.entries import MACHINE
from lightagentd.memory.memories import Wanted
from lightagentd.memory.profiles import MAX_CHARS
from tests.agents.scripted import ME, Scripted, scripted
from tests.control.test_undo import ADMINISTRATOR, STRANGER
from tests.scripted_model import say

OUTSIDER = Caller(uid=12346, gid=12346, pid=1)
"""In no group that may do anything."""
MISSING = "mem_0000000000000000"


@pytest.fixture
async def rig(paths: Paths) -> AsyncIterator[Scripted]:
    async with scripted(paths, [say("hello")]) as running:
        yield running


async def add(rig: Scripted, caller: Caller, text: str, **more: Any) -> api.Memory:
    fields = {"agent": "", "tags": [], "confidence": 1.0, "expires_us": 0, **more}
    return await rig.daemon.service.memory.remember(caller, text=text, **fields)


async def propose(rig: Scripted, caller: Caller, text: str) -> str:
    """What a tainted session of the agent `test` would have proposed."""
    wanted = Wanted(owner=caller.uid, agent="test", text=text, by_agent=True, candidate=True)
    return (await rig.daemon.registry.shared.memories.remember(wanted)).id


async def texts(rig: Scripted, caller: Caller, state: str = "kept", agent: str = "") -> list[str]:
    found = await rig.daemon.service.memory.listed(caller, agent=agent, state=state, limit=100)
    return [each.text for each in found]


async def test_each_user_has_his_own_and_administrators_have_no_others(rig: Scripted) -> None:
    service = rig.daemon.service
    for caller in (ME, STRANGER, ADMINISTRATOR):
        await add(rig, caller, f"backup of {caller.uid}")
        await service.memory.set_profile(caller, f"profile of {caller.uid}")
    for caller in (ME, STRANGER, ADMINISTRATOR):
        assert await texts(rig, caller, "all") == [f"backup of {caller.uid}"]
        found = await service.memory.search(caller, query="backup", agent="", limit=10)
        assert [each.owner for each in found] == [caller.uid]
        exported = [json.loads(line) for line in (await service.memory.export(caller)).splitlines()]
        assert [each["owner"] for each in exported] == [caller.uid]
        assert await service.memory.get_profile(caller) == f"profile of {caller.uid}"


async def test_another_users_memory_is_one_that_does_not_exist(rig: Scripted) -> None:
    service = rig.daemon.service
    kept, proposed = (await add(rig, ME, "mine")).id, await propose(rig, ME, "a candidate")
    for change in (service.memory.promote, service.memory.reject, service.memory.forget):
        said = set()
        for memory in (kept, proposed, MISSING):
            with pytest.raises(errors.MemoryNotFound) as caught:
                await change(STRANGER, memory)
            said.add(json.dumps(caught.value.to_dict()).replace(memory, MISSING))
        assert len(said) == 1
    assert await texts(rig, ME, "all") == ["a candidate", "mine"]


async def test_who_may_do_nothing_learns_nothing(rig: Scripted) -> None:
    service, kept = rig.daemon.service, await add(rig, ME, "mine")
    for wanted in (
        service.memory.listed(OUTSIDER, agent="", state="kept", limit=1),
        service.memory.search(OUTSIDER, query="x", agent="", limit=1),
        service.memory.get(OUTSIDER, kept.id),
        add(rig, OUTSIDER, "x"),
        service.memory.promote(OUTSIDER, kept.id),
        service.memory.reject(OUTSIDER, MISSING),
        service.memory.forget(OUTSIDER, kept.id),
        service.memory.export(OUTSIDER),
        service.memory.get_profile(OUTSIDER),
        service.memory.set_profile(OUTSIDER, "x"),
    ):
        with pytest.raises(errors.PermissionDenied):
            await wanted


async def test_candidates_are_promoted_rejected_and_forgotten(rig: Scripted) -> None:
    service = rig.daemon.service
    first, second, third = [await propose(rig, ME, f"candidate {n}") for n in range(3)]
    promoted = await service.memory.promote(ME, first)
    assert (promoted.state, promoted.text, promoted.source) == ("kept", "candidate 0", "agent")
    rejected = await service.memory.reject(ME, second)
    assert (rejected.state, rejected.text) == ("rejected", "")
    await service.memory.forget(ME, third)
    assert await texts(rig, ME) == ["candidate 0"]
    assert await texts(rig, ME, "rejected") == [""]
    assert await texts(rig, ME, "candidate") == []
    with pytest.raises(errors.Conflict):
        await service.memory.promote(ME, first)
    with pytest.raises(errors.MemoryNotFound):
        await service.memory.forget(ME, third)


async def test_what_a_person_adds_says_so(rig: Scripted) -> None:
    found = await add(rig, ME, " two\nlines ", agent="test", tags=["a"], confidence=0.5, expires_us=1 << 60)
    expected = replace(
        found, text="two lines", agent="test", tags=["a"], confidence=0.5, source="person", state="kept"
    )
    assert found == expected
    assert (found.session, found.owner, found.expires_us) == ("", ME.uid, 1 << 60)
    assert await texts(rig, ME, agent="test") == ["two lines"]
    assert await texts(rig, ME, agent="ops") == []
    with pytest.raises(errors.AgentNotFound):
        await add(rig, ME, "x", agent="nobody")


@pytest.mark.parametrize(
    "fields",
    [
        {"text": ""},
        {"text": "x" * 2001},
        {"text": "sk-abcdefghijklmnopqrstuvwx"},
        {"tags": ["Not a tag"]},
        {"confidence": 1.5},
        {"confidence": float("nan")},
        {"expires_us": 1},
        {"expires_us": -1},
    ],
)
async def test_bad_input_is_refused(rig: Scripted, fields: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        await add(rig, ME, **{"text": "x", **fields})
    assert await texts(rig, ME, "all") == []


async def test_bad_questions_are_refused(rig: Scripted) -> None:
    service = rig.daemon.service
    for limit in (0, -1, 1001):
        with pytest.raises(errors.InvalidArgument):
            await service.memory.listed(ME, agent="", state="kept", limit=limit)
        with pytest.raises(errors.InvalidArgument):
            await service.memory.search(ME, query="x", agent="", limit=limit)
    with pytest.raises(errors.InvalidArgument):
        await service.memory.listed(ME, agent="", state="no such", limit=1)


async def test_a_profile_is_set_and_taken_away(rig: Scripted) -> None:
    service = rig.daemon.service
    assert await service.memory.get_profile(ME) == ""
    await service.memory.set_profile(ME, "# Me\n\nI like tea.\n")
    assert await service.memory.get_profile(ME) == "# Me\n\nI like tea."
    for bad in ("x" * (MAX_CHARS + 1), "a\0b", "my key: sk-abcdefghijklmnopqrstuvwx"):
        with pytest.raises(errors.InvalidArgument):
            await service.memory.set_profile(ME, bad)
    await service.memory.set_profile(ME, "")
    assert await service.memory.get_profile(ME) == ""
    assert rig.daemon.history.queries.state("profiles") == {}
    kinds = [event.type for event in rig.stored(topic="memory.profile")]
    assert kinds == ["set", "removed"]


async def test_deleting_a_session_keeps_what_was_remembered_in_it(rig: Scripted) -> None:
    session = await rig.session()
    wanted = Wanted(owner=ME.uid, agent="test", text="kept", by_agent=True, session=session.id)
    for each in (wanted, replace(wanted, text="only here", scope="session")):
        await rig.daemon.registry.shared.memories.remember(each)
    await rig.daemon.service.sessions.delete(ME, session.id, confirmed=True)
    (found,) = await rig.daemon.service.memory.listed(ME, agent="", state="kept", limit=10)
    assert (found.text, found.session) == ("kept", session.id)


async def test_the_machine_is_read_by_all_and_written_by_administrators(rig: Scripted) -> None:
    service = rig.daemon.service.memory
    with pytest.raises(errors.PermissionDenied):
        await add(rig, STRANGER, "The disk is old", scope="machine")
    fact = await add(rig, ADMINISTRATOR, "The disk is old", scope="machine")
    assert (fact.said_by, fact.owner) == (ADMINISTRATOR.uid, MACHINE)
    for caller in (ME, STRANGER, ADMINISTRATOR):
        assert await texts(rig, caller) == ["The disk is old"]
        assert await service.get(caller, fact.id) == fact
        assert await service.export(caller) == ""
    for change in (service.forget, service.reject, service.promote):
        with pytest.raises((errors.PermissionDenied, errors.MemoryNotFound)):
            await change(STRANGER, fact.id)
    wanted = Wanted(owner=STRANGER.uid, agent="", from_agent="test", text="x", by_agent=True, scope="machine")
    proposed = await rig.daemon.registry.shared.memories.remember(wanted)
    with pytest.raises(errors.PermissionDenied):
        await service.promote_because(STRANGER, proposed.id, "I want all to read it")
    assert (await service.get(STRANGER, proposed.id)).state == "candidate"
    with pytest.raises(errors.MemoryNotFound):
        await service.get(ADMINISTRATOR, proposed.id)
    await service.forget(ADMINISTRATOR, fact.id)
    assert await texts(rig, ME) == []


@pytest.mark.parametrize(
    "fields",
    [{"scope": "world"}, {"scope": "team", "agent": "test"}, {"scope": "agent"}, {"scope": "session"}],
)
async def test_a_scope_and_an_agent_have_to_fit(rig: Scripted, fields: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        await add(rig, ME, "x", **fields)
    with pytest.raises(errors.InvalidArgument):
        await rig.daemon.service.memory.listed(ME, scope="world")


async def test_it_goes_over_varlink(rig: Scripted) -> None:
    def talk() -> tuple[Any, ...]:
        with Client(rig.daemon.paths.socket) as client:
            kept = client.call("Memory.Remember", text="over Varlink", tags=["x"])["memory"]
            listed = client.call("Memory.List")["memories"]
            found = client.call("Memory.Search", query="varlink")["memories"]
            client.call("Memory.SetProfile", text="me")
            profile = client.call("Memory.GetProfile")["text"]
            client.call("Memory.Forget", memory=kept["id"])
            with pytest.raises(errors.MemoryNotFound):
                client.call("Memory.Forget", memory=kept["id"])
            return kept, listed, found, profile, client.call("Memory.Export")["text"]

    kept, listed, found, profile, exported = await asyncio.to_thread(talk)
    assert listed == found == [kept]
    assert (kept["source"], kept["owner"], profile, exported) == ("person", ME.uid, "me", "")
