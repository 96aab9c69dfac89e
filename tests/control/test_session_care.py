"""What one does with sessions beside prompting, over the control socket, and what other users get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.agents.sessions import copying
from lightagentd.agents.sessions.session import Session, SessionRecord, new_record
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.events.history import History, NewEvent
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from tests.agents.asking import asked, lines
from tests.agents.scripted import ME, Scripted, check_conversation, scripted
from tests.control.caring import ask, caring, conversation, get, make, out_of, texts
from tests.control.test_authz import NOBODY, needs_root
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import say

OTHER = Caller(uid=NOBODY, gid=OUTSIDERS_GID, pid=1)
STRANGE = ("ses_0000000000000000", "", "x" * 600, "\0", "ses_\ud800")


@pytest.fixture
async def test(paths: Paths) -> AsyncIterator[Scripted]:
    async with caring(paths) as running:
        yield running


@pytest.fixture
async def client(test: Scripted) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as connected:
        yield connected


# The model


async def test_a_session_asks_the_model_that_was_chosen_for_it(paths: Paths) -> None:
    toml = '[models]\nfallback = ["runbook"]\n'
    async with scripted(paths, [say("from the model"), say("again")], toml=toml) as test:
        async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as client:
            made = await make(client)
            assert made["model"] == ""

            async def answers(model: str, words: str) -> None:
                chosen = await client.call("Sessions.SetModel", session=made["id"], model=model)
                assert chosen["session"]["model"] == model
                answer = await client.call("Manager.Ask", agent="test", text="check disk space", new=False)
                assert words in answer["answer"]["text"]

            await answers("runbook", "file system")
            fork = (await client.call("Sessions.Fork", session=made["id"]))["session"]
            assert fork["model"] == "runbook"
            await client.call("Sessions.Switch", session=made["id"])
            await answers("", "from the model")
            await answers("openai/x", "again")
            for wrong in ("openai/y", "x" * 1000):
                with pytest.raises(errors.InvalidArgument, match="has no model") as caught:
                    await client.call("Sessions.SetModel", session=made["id"], model=wrong)
                assert "It has: openai/x, runbook." in caught.value.suggestion
        events = test.stored(topic="session.model")
        assert [event.data and event.data["model"] for event in events] == ["runbook", "", "openai/x"]
        kept = test.agent.sessions[made["id"]].record
        assert SessionRecord.from_dict(kept.to_dict()) == kept


# A part of the list


async def test_the_list_is_found_by_title_and_given_in_parts(client: AsyncClient) -> None:
    made = [await make(client, title) for title in ("The Disk", "memory", "disks of old")]

    async def listed(**options: Any) -> list[str]:
        found = (await client.call("Sessions.List", **options))["sessions"]
        return [one["id"] for one in found]

    newest = [one["id"] for one in reversed(made)]
    assert await listed() == newest
    assert await listed(limit=2) == newest[:2]
    assert await listed(first=2, limit=2) == newest[2:]
    assert await listed(first=3, limit=2) == []
    assert await listed(title="DISK") == [newest[0], newest[2]]
    assert await listed(title="disk", first=1) == [newest[2]]
    assert await listed(title=made[1]["id"][:12]) == [newest[1]]
    with pytest.raises(errors.InvalidArgument):
        await listed(limit=0)


# The current session


async def test_prompts_without_a_session_go_to_the_one_that_was_chosen_last(client: AsyncClient) -> None:
    first = await make(client, "one")
    second = await make(client)
    assert second["current"]
    assert not (await get(client, first["id"]))["current"]
    assert (await ask(client, "two"))["session"] == second["id"]
    assert (await client.call("Sessions.Switch", session=first["id"]))["session"]["current"]
    assert not (await get(client, second["id"]))["current"]
    assert (await ask(client, "three"))["session"] == first["id"]
    await ask(client, "four", session=second["id"])
    assert (await ask(client, "five"))["session"] == second["id"]
    listed = (await client.call("Sessions.List"))["sessions"]
    assert [one["id"] for one in listed if one["current"]] == [second["id"]]


async def test_a_prompt_that_is_refused_and_one_that_nobody_waits_for_choose_no_session(
    test: Scripted, client: AsyncClient
) -> None:
    first, second = await make(client), await make(client)
    await client.call("Sessions.Pause", session=first["id"])
    with pytest.raises(errors.SessionPaused):
        await ask(client, "no", session=first["id"])
    assert (await get(client, second["id"]))["current"]
    prompt = test.daemon.service.conversations.prompt(
        ME, agent="test", text="x", session="", new=True, correlation_id="", unattended=True
    )
    async with aclosing(prompt) as events:
        assert [event["type"] async for event in events][-1] == "done"
    assert (await get(client, second["id"]))["current"]


@needs_root
async def test_each_user_has_a_current_session_of_his_own(test: Scripted, client: AsyncClient) -> None:
    service = test.daemon.service
    mine = await make(client, "one")
    theirs = await service.sessions.create(OTHER, "test", "")
    assert theirs.current
    assert (await get(client, mine["id"]))["current"]
    await ask(client, "an administrator looks in", session=theirs.id)
    assert (await get(client, mine["id"]))["current"]


async def test_where_no_session_was_chosen_yet_the_latest_is_the_current_one(
    test: Scripted, client: AsyncClient
) -> None:
    first, _ = await make(client, "one"), await make(client, "two")
    await ask(client, "three", session=first["id"])
    for session in test.agent.sessions.values():
        session.is_current = False  # as a store has it that an older version made
    assert (await ask(client, "four"))["session"] == first["id"]


# Renaming


async def test_a_session_gets_another_title(client: AsyncClient) -> None:
    made = await make(client, "one")
    renamed = await client.call("Sessions.Rename", session=made["id"], title="  naïve Größe 🙂 ")
    assert renamed["session"]["title"] == "naïve Größe 🙂"
    for bad in ("", "  ", "two\nlines", "x" * 201, "\x1b[31m", "a\0b", "\u202eback"):
        with pytest.raises(errors.InvalidArgument) as caught:
            await client.call("Sessions.Rename", session=made["id"], title=bad)
        assert caught.value.field == "title"
    assert (await get(client, made["id"]))["title"] == "naïve Größe 🙂"


# Pause and resume


async def test_a_paused_session_refuses_prompts_and_keeps_its_queue(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    running = await test.agent.prompt(session, "ask")
    queued = await test.agent.prompt(session, "later")
    approval = await asked(test)
    assert (await client.call("Sessions.Pause", session=session.id))["session"]["paused"]
    assert (await client.call("Sessions.Pause", session=session.id))["session"]["paused"]
    for where in ({"session": session.id}, {}):
        with pytest.raises(errors.SessionPaused) as caught:
            await ask(client, "no", **where)
        assert caught.value.suggestion == f"Run: lactl sessions resume {session.id}"
        assert caught.value.exit_status == 73
    await test.daemon.service.approvals.approve(ME, approval.id, "")
    await running.over.wait()
    assert (running.failure, running.answer) == (None, "re: ask")
    await session.until_at_rest()
    assert ((await get(client, session.id))["state"], len(session.queue)) == ("idle", 1)
    assert not queued.over.is_set()
    assert not (await client.call("Sessions.Resume", session=session.id))["session"]["paused"]
    await queued.over.wait()
    assert queued.answer == "re: later"
    assert len(lines(out_of(test))) == 1


async def test_resuming_what_is_not_paused_is_refused(client: AsyncClient) -> None:
    made = await make(client)
    with pytest.raises(errors.SessionNotPaused) as caught:
        await client.call("Sessions.Resume", session=made["id"])
    assert (caught.value.code, caught.value.exit_status) == ("session_not_paused", 73)
    await client.call("Sessions.Pause", session=made["id"])
    await client.call("Sessions.Resume", session=made["id"])
    with pytest.raises(errors.SessionNotPaused):
        await client.call("Sessions.Resume", session=made["id"])


async def test_the_queue_of_a_paused_session_can_be_cancelled(test: Scripted, client: AsyncClient) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    await client.call("Sessions.Pause", session=session.id)
    session.record = type(session.record)(**{**session.record.to_dict(), "paused": False, "hosts": ()})
    test.agent.supervision._draining = True  # nothing begins meanwhile
    queued = [await test.agent.prompt(session, text) for text in ("one", "two")]
    session.record = type(session.record)(**{**session.record.to_dict(), "paused": True, "hosts": ()})
    test.agent.supervision._draining = False
    assert (await client.call("Sessions.Cancel", session=session.id))["cancelled"] == 2
    for turn in queued:
        await turn.over.wait()
        assert isinstance(turn.failure, errors.Cancelled)
    assert test.daemon.history.queries.state("turns") == {}


# Forking


async def test_a_fork_has_the_conversation_and_goes_its_own_way(test: Scripted, client: AsyncClient) -> None:
    source = await make(client, "one", "two", title="Disks")
    fork = (await client.call("Sessions.Fork", session=source["id"]))["session"]
    assert (fork["forked_from"], fork["title"], fork["current"]) == (source["id"], "Disks (fork)", True)
    before, after = await conversation(client, source["id"]), await conversation(client, fork["id"])
    assert texts(after) == texts(before) == ["one", "re: one", "two", "re: two"]
    assert (await ask(client, "three"))["session"] == fork["id"]
    sent = test.model.requests[-1].body["messages"]
    assert [one["content"] for one in sent[1:]] == ["one", "re: one", "two", "re: two", "three"]
    assert len(await conversation(client, source["id"])) == 4
    part = await client.call(
        "Sessions.Fork", session=source["id"], up_to_seq=before[1]["seq"], title="The first part"
    )
    assert texts(await conversation(client, part["session"]["id"])) == ["one", "re: one"]
    stored = test.daemon.history.queries.messages(part["session"]["id"])
    assert [(event.data or {})["copied_from"] for event in stored] == [before[0]["seq"], before[1]["seq"]]
    for bad in (0, before[0]["seq"] - 1, after[0]["seq"], 1 << 40):
        with pytest.raises(errors.InvalidArgument) as caught:
            await client.call("Sessions.Fork", session=source["id"], up_to_seq=bad)
        assert caught.value.field == "up_to_seq"
    assert len((await client.call("Sessions.List"))["sessions"]) == 3


async def test_a_fork_of_a_running_session_is_whole_and_as_tainted(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    await test.agent.prompt(session, "ask", outside=True)
    await asked(test)
    fork = (await client.call("Sessions.Fork", session=session.id))["session"]
    messages = test.conversation(test.agent.sessions[fork["id"]])
    check_conversation(messages)
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert "not run" in messages[-1].content
    assert (fork["tainted"], fork["tainted_by"]) == (True, session.record.tainted_by)
    assert (fork["state"], fork["queued"], fork["mode"]) == ("idle", 0, "normal")
    assert lines(out_of(test)) == []
    assert (await client.call("Sessions.Cancel", session=session.id))["cancelled"] == 1


async def test_what_taints_a_session_while_it_is_forked_taints_the_fork(
    test: Scripted, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await make(client)
    session, loop = test.agent.sessions[made["id"]], asyncio.get_running_loop()
    forked = copying._forked  # what comes in between is stored before it is read

    def late(history: History, source: str, up_to_seq: int | None) -> list[NewEvent]:
        prompt = test.agent.prompt(session, "from outside", outside=True)
        turn = asyncio.run_coroutine_threadsafe(prompt, loop).result(60)
        asyncio.run_coroutine_threadsafe(turn.over.wait(), loop).result(60)
        return forked(history, source, up_to_seq)

    monkeypatch.setattr(copying, "_forked", late)
    fork = (await client.call("Sessions.Fork", session=session.id))["session"]
    assert "from outside" in texts(await conversation(client, fork["id"]))
    assert (fork["tainted"], fork["tainted_by"]) == (True, session.record.tainted_by)


@needs_root
async def test_a_fork_of_another_users_session_has_text_from_outside(
    test: Scripted, client: AsyncClient
) -> None:
    session = test.agent.adopt(Session(new_record("test", NOBODY, "theirs"), test.daemon.history))
    await test.prompt(session, "always say yes")
    session.after_call("call_1", taints=False, host="example.org")
    fork = (await client.call("Sessions.Fork", session=session.id))["session"]
    made = test.agent.sessions[fork["id"]].record
    assert (made.owner, made.tainted, made.tainted_by, made.hosts) == (os.getuid(), True, session.id, ())
    assert not session.record.tainted


# Other users


@needs_root
async def test_another_users_session_does_not_exist_for_any_of_this(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client, "mine")
    service = test.daemon.service

    def attempts(session: str) -> list[Any]:
        return [
            service.sessions.switch(OTHER, session),
            service.sessions.rename(OTHER, session, "theirs"),
            service.sessions.pause(OTHER, session),
            service.sessions.resume(OTHER, session),
            service.sessions.fork(OTHER, session, "", None),
            service.sessions.delete(OTHER, session, confirmed=True),
            service.sessions.delete(OTHER, session, confirmed=False),
            service.sessions.export(OTHER, session, "jsonl"),
            service.conversations.wait(OTHER, session, None),
            anext(service.conversations.watch(OTHER, session)),
        ]

    async def said(session: str) -> list[tuple[str, str, str, str]]:
        found = []
        for attempt in attempts(session):
            with pytest.raises(errors.SessionNotFound) as caught:
                await attempt
            err = caught.value
            found.append((err.code, err.message.replace(session[:60], "ID"), err.suggestion, err.field))
        return found

    before = test.daemon.history.head_seq
    assert await said(made["id"]) == await said("ses_0123456789abcdef")
    assert test.daemon.history.head_seq == before
    assert (await get(client, made["id"]))["current"]


async def test_what_no_session_can_be_called_is_not_found(test: Scripted) -> None:
    service = test.daemon.service
    for session in STRANGE:
        for attempt in (
            service.sessions.switch(ME, session),
            service.sessions.delete(ME, session, confirmed=True),
            service.sessions.export(ME, session, "markdown"),
            service.conversations.wait(ME, session, 1.0),
            anext(service.conversations.watch(ME, session)),
        ):
            with pytest.raises(errors.SessionNotFound):
                await attempt


# Several clients, and limits


async def test_two_clients_that_prompt_one_session_at_once_are_both_answered_in_order(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)

    async def prompt(number: int) -> str:
        async with AsyncClient(test.daemon.paths.socket) as own:
            return str((await ask(own, f"p{number}", session=made["id"]))["text"])

    answers = await asyncio.gather(*(prompt(number) for number in range(8)))
    assert answers == [f"re: p{number}" for number in range(8)]
    said = texts(await conversation(client, made["id"]))
    assert said[1::2] == [f"re: {text}" for text in said[::2]]
    order = [(event.data or {})["text"] for event in test.stored(topic="agent.prompt")]
    assert said[::2] == order


async def test_prompts_that_wait_may_not_fill_the_memory(paths: Paths) -> None:
    toml = "[limits]\nmax_prompt_bytes = 1000\nmax_queue = 100\n"
    async with caring(paths, toml) as test:
        sessions = [await test.session() for _ in range(6)]
        for session in sessions:
            await test.agent.prompt(session, "ask")
        await asked(test, len(sessions))
        await test.agent.prompt(sessions[0], "ü" * 500)
        await test.agent.prompt(sessions[0], "x" * 1000)
        with pytest.raises(errors.QueueFull, match="in this session"):
            await test.agent.prompt(sessions[0], "x")
        for session in sessions[1:4]:
            for _ in range(2):
                await test.agent.prompt(session, "x" * 1000)
        with pytest.raises(errors.QueueFull, match=f"of {called(os.getuid())} that wait"):
            await test.agent.prompt(sessions[4], "x" * 1000)
        assert test.agent.cancel(sessions[3]) == 3
        await sessions[3].until_at_rest()
        await test.agent.prompt(sessions[4], "x" * 1000)
