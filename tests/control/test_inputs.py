"""Questions to people on the control planes: who sees and answers them, through Varlink and D-Bus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
from collections.abc import AsyncIterator, Awaitable

import pytest

from lightagentd import api
from lightagentd.api import TurnEvent
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import LISTED_CHARS
from lightagentd.errors import InputClosed, InputNotFound, InvalidArgument, PermissionDenied
from lightagentd.events.history import Change
from lightagentd.events.journal.entry import journal_fields
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from lightagentd.policy.questions.inputs import ANSWER_MAX_BYTES, Input
from tests.agents.questions import QUESTION, ask, kinds, question
from tests.agents.scripted import ME, Scripted, scripted, until, watch
from tests.control.dbus.on_the_bus import GET_ALL, MANAGER, ROOT, TURN, serving
from tests.dbus_client import BusClient
from tests.other_user import OUTSIDERS_GID
from tests.raw_varlink import Raw, code
from tests.scripted_model import say

OWNER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
OTHER = Caller(uid=54322, gid=OUTSIDERS_GID, pid=1)
STRANGER = Caller(uid=54323, gid=54323, pid=1)
INPUTS = "org.lightagent1.Inputs"
MADE_UP = "inp_0123456789abcdef"


@contextlib.asynccontextmanager
async def asked_of(
    test: Scripted, owner: Caller
) -> AsyncIterator[tuple[Input, asyncio.Task[list[TurnEvent]]]]:
    """A question in a session of somebody's, and the events of its turn."""
    made = await test.daemon.service.sessions.create(owner, "test", "")
    turn = await test.agent.prompt(test.agent.sessions[made.id], "go")
    events = asyncio.create_task(watch(turn))
    try:
        yield await question(test), events
    finally:
        events.cancel()
        await asyncio.gather(events, return_exceptions=True)


async def words(refused: Awaitable[api.Input]) -> str:
    """What somebody reads who may not know of a question."""
    with pytest.raises(InputNotFound) as caught:
        await refused
    return f"{caught.value.message}|{caught.value.suggestion}|{caught.value.field}"


async def test_the_owner_sees_and_answers(paths: Paths) -> None:
    async with scripted(paths, [ask(choices=["sda", "sdb"]), say("ok")]) as test:
        service = test.daemon.service
        async with asked_of(test, OWNER) as (asked, events):
            (found,) = await service.inputs.listed(OWNER, all_=False)
            assert found == await service.inputs.get(OWNER, asked.id)
            assert (found.question, found.choices, found.state) == (QUESTION, ["sda", "sdb"], "waiting")
            assert found.expires_us > found.created_us
            session = await service.sessions.get(OWNER, asked.session)
            assert (session.state, session.waits_for) == ("waiting", asked.id)
            status = await service.manager.status(ME)
            assert (status.turns_running, status.turns_waiting) == (0, 1)
            answered = await service.inputs.answer(OWNER, asked.id, "1")
            assert (answered.state, answered.answer, answered.answered_by) == ("answered", "sda", OWNER.uid)
            assert answered.answered_us >= found.created_us
            assert (await events)[-1]["type"] == "done"
        assert await service.inputs.listed(OWNER, all_=False) == []
        assert await service.inputs.listed(OWNER, all_=True) == [answered]
        with pytest.raises(InputClosed, match="answered already"):
            await service.inputs.answer(OWNER, asked.id, "2")


async def test_to_others_it_does_not_exist(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        service = test.daemon.service
        async with asked_of(test, OWNER) as (asked, _):
            for every in (False, True):
                assert await service.inputs.listed(OTHER, all_=every) == []
            known = [
                await words(service.inputs.get(OTHER, asked.id)),
                await words(service.inputs.answer(OTHER, asked.id, "x")),
                await words(service.inputs.answer(OTHER, asked.id, "")),
            ]
            made_up = await words(service.inputs.get(OTHER, MADE_UP))
            assert [one.replace(asked.id, MADE_UP) for one in known] == [made_up] * 3
            for refused in (
                service.inputs.listed(STRANGER, all_=False),
                service.inputs.get(STRANGER, asked.id),
                service.inputs.answer(STRANGER, MADE_UP, "x"),
            ):
                with pytest.raises(PermissionDenied):
                    await refused
            assert kinds(test) == ["requested"]


async def test_an_administrator_may_answer_and_the_answer_names_him(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        service = test.daemon.service
        async with asked_of(test, OWNER) as (asked, events):
            assert [one.id for one in await service.inputs.listed(ME, all_=False)] == [asked.id]
            assert (await service.inputs.answer(ME, asked.id, "sda")).answered_by == ME.uid
            told = next(event for event in await events if event["type"] == "input_answered")
            assert told["answered_by"] == ME.uid


class InspectOnly:
    """Decides that everybody may look, and no more."""

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        return operation is Operation.INSPECT


async def test_who_may_not_prompt_the_agent_may_not_answer(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        service = test.daemon.service
        async with asked_of(test, OWNER) as (asked, _):
            monkeypatch.setattr(test.daemon.authority, "_deciders", (InspectOnly(),))
            assert (await service.inputs.get(OWNER, asked.id)).id == asked.id
            with pytest.raises(PermissionDenied, match="prompt"):
                await service.inputs.answer(OWNER, asked.id, "sda")
            assert kinds(test) == ["requested"]


@pytest.mark.parametrize("text", ["", "  \n", "a\0b", "ü" * (ANSWER_MAX_BYTES // 2 + 1)])
async def test_what_is_no_answer_answers_nothing(paths: Paths, text: str) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        service = test.daemon.service
        async with asked_of(test, OWNER) as (asked, events):
            with pytest.raises(InvalidArgument) as caught:
                await service.inputs.answer(OWNER, asked.id, text)
            assert caught.value.field == "text"
            assert kinds(test) == ["requested"]
            longest = "ü" * (ANSWER_MAX_BYTES // 2)
            assert (await service.inputs.answer(OWNER, asked.id, longest)).answer == longest
            await events


async def test_a_long_list_leaves_out_what_is_long(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        service = test.daemon.service
        async with asked_of(test, OWNER) as (asked, events):
            await service.inputs.answer(OWNER, asked.id, "sda")
            await events
        row = test.daemon.history.queries.state_of("inputs", asked.id) | {"answer": "x" * ANSWER_MAX_BYTES}
        names = [f"inp_{number:016x}" for number in range(LISTED_CHARS // ANSWER_MAX_BYTES + 10)]
        await test.daemon.history.append(
            changes=[Change(state="inputs", key=name, value={**row, "id": name}) for name in names]
        )
        listed = await service.inputs.listed(OWNER, all_=True)
        assert len(listed) == len(names) + 1
        assert len(json.dumps([one.question + one.answer for one in listed])) < LISTED_CHARS + (64 << 10)
        short = next(one for one in listed if one.question.startswith("(Left out"))
        assert (await service.inputs.get(OWNER, short.id)).answer == "x" * ANSWER_MAX_BYTES


async def test_the_journal_has_no_word_of_it(paths: Paths) -> None:
    asking = ask("marmot-question", choices=["marmot-one", "marmot-two"])
    async with scripted(paths, [asking, say("ok")]) as test:
        async with asked_of(test, OWNER) as (asked, events):
            await test.daemon.service.inputs.answer(OWNER, asked.id, "1")
            await events
        for event in test.stored():
            fields = journal_fields(event)
            assert "marmot" not in json.dumps(fields), event
            if event.topic == "input.answered":
                assert fields["MESSAGE"] == f"test: input {asked.id}: answered"
                assert fields["LIGHTAGENT_CALLER_UID"] == str(OWNER.uid)
        told = [
            event for event in test.stored() if "marmot" in json.dumps(journal_fields(event, content=True))
        ]
        assert {"input.requested", "input.answered", "agent.tool_dispatch"} <= {one.topic for one in told}


# Through Varlink


async def test_through_varlink(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test, Raw(paths.socket) as raw:
        assert (await raw.call("Inputs.List"))["parameters"] == {"inputs": []}
        async with asked_of(test, ME) as (asked, events):
            (listed,) = (await raw.call("Inputs.List"))["parameters"]["inputs"]
            got = (await raw.call("Inputs.Get", input=asked.id))["parameters"]["input"]
            assert got == listed
            assert got["question"] == QUESTION
            assert "answered_by" not in got or got["answered_by"] is None
            answered = await raw.call("Inputs.Answer", input=asked.id, text="sda")
            assert answered["parameters"]["input"]["state"] == "answered"
            await events
            assert code(await raw.call("Inputs.Answer", input=asked.id, text="sda")) == "input_closed"
            assert code(await raw.call("Inputs.Answer", input=MADE_UP, text="sda")) == "input_not_found"
            assert code(await raw.call("Inputs.Get", input="x" * 70_000)) == "input_not_found"
        assert len((await raw.call("Inputs.List", all=True))["parameters"]["inputs"]) == 1


# Through D-Bus


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
async def test_through_dbus(paths: Paths) -> None:
    nobody, somebody = 65534, pwd.getpwnam("daemon").pw_uid
    async with (
        serving(paths, [ask(), say("ok")]) as (daemon, address),
        BusClient(address, somebody) as owner,
        BusClient(address, nobody) as other,
    ):
        _, turn = await owner.call(ROOT, f"{MANAGER}.Prompt", "ssa{sv}", "talker", "go", {})
        await until(lambda: daemon.registry.get("talker").turns_waiting == 1)
        ((asked,),) = await owner.call(ROOT, f"{INPUTS}.List", "a{sv}", {})
        assert (asked["question"], asked["state"], asked["owner"]) == (QUESTION, "waiting", somebody)
        (shown,) = await owner.call(turn, GET_ALL, "s", TURN)
        assert (shown["State"], shown["Approval"]) == ("waiting", asked["id"])
        # To others there is no such question.
        assert await other.call(ROOT, f"{INPUTS}.List", "a{sv}", {"all": ["b", True]}) == [[]]
        refused = await other.call(ROOT, f"{INPUTS}.Answer", "ss", asked["id"], "no")
        made_up = await other.call(ROOT, f"{INPUTS}.Answer", "ss", MADE_UP, "no")
        assert refused["error"][0] == "org.lightagent1.Error.InputNotFound"
        assert str(refused).replace(asked["id"], MADE_UP) == str(made_up)
        (answered,) = await owner.call(ROOT, f"{INPUTS}.Answer", "ss", asked["id"], "sda")
        assert (answered["state"], answered["answer"], answered["answered_by"]) == (
            "answered",
            "sda",
            somebody,
        )
        again = await owner.call(ROOT, f"{INPUTS}.Answer", "ss", asked["id"], "sdb")
        assert again["error"][0] == "org.lightagent1.Error.InputClosed"
        await until(lambda: not daemon.history.queries.state("turns"))
