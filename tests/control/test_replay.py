"""Requests that are made again from the history: they equal what the model's endpoint really got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd import api
from lightagentd.agents.model_calls.compaction.window import SHORTENED
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    BudgetExceeded,
    InvalidArgument,
    LightagentError,
    ModelError,
    NotFound,
    PermissionDenied,
    SessionNotFound,
)
from lightagentd.events.store import retention
from lightagentd.host.paths import Paths
from tests.agents.asking import add, asking
from tests.agents.model_calls.test_compaction import fill, model, question, requests, uncounted, window, yes
from tests.agents.scripted import ME, Scripted, define, scripted
from tests.agents.team.rig import results, team
from tests.agents.team.test_transfer import hand
from tests.control.test_authz import NOBODY
from tests.events.store.test_retention import prune
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import Answer, Fault, ScriptedModel, call, calls, say

FRONT = "tools: [proc, bash]"
OTHER = Caller(uid=NOBODY, gid=OUTSIDERS_GID, pid=1)
INFO = ("proc_info", {"pid": 1})
KEY = "sk-proj-Zx81kQm2Pp0vNn47RtUuWq39LlBbCc55"


async def replay(
    daemon: Daemon, session: str, *, to: int | None = None, model: str = "", caller: Caller = ME
) -> list[api.SessionRequest]:
    found = daemon.service.replays.replay(caller, session, to=to, model=model)
    return [one async for one in found]


async def check_equal(
    daemon: Daemon, session: str, endpoint: ScriptedModel, sent: list[dict[str, Any]]
) -> None:
    """All requests of the session, sent again, are to the byte what the endpoint got before."""
    before, stored = len(endpoint.requests), daemon.history.queries.messages(session)
    again = await replay(daemon, session, model="openai/x")
    bodies = [json.dumps(one.body) for one in endpoint.requests[before:]]
    assert bodies == [json.dumps(body) for body in sent]
    assert [one.same for one in again] == [True] * len(sent)
    assert [one.error for one in again] == [""] * len(sent)
    assert [one.number for one in again] == [*range(1, len(sent) + 1)]
    assert daemon.history.queries.messages(session) == stored


def step_by_step(body: dict[str, Any]) -> Answer:
    """Two calls at once, one that fails, then the answer."""
    done = len(results(body))
    if done == 0:
        return calls((*INFO, "c1"), ("proc_list", {}, "c2"), text="Let me look.")
    wrong = {"x": [1, {"ü": None}], "key": KEY}
    return call("nosuch_tool", wrong, call_id="c3", text=KEY) if done == 2 else say("It is ", "well.")


async def test_requests_with_calls_are_the_same_after_a_restart(paths: Paths) -> None:
    async with ScriptedModel(step_by_step) as endpoint:
        define(paths, endpoint, front=FRONT)
        async with Daemon(paths) as daemon:
            test = Scripted(daemon=daemon, model=endpoint)
            session = (await test.session()).id
            for text in ("how is it?", f"naïve größe 🙂\n\n{KEY} [removed: "):
                await test.prompt(test.agent.sessions[session], text)
            sent = [one.body for one in endpoint.requests]
            await check_equal(daemon, session, endpoint, sent)
        async with Daemon(paths) as daemon:
            await check_equal(daemon, session, endpoint, sent)
            listed = await replay(daemon, session)
            assert [(one.turn, one.message_count) for one in listed] == [
                *[(1, 1), (1, 4), (1, 6)],
                *[(2, 8), (2, 11), (2, 13)],
            ]
            assert [one.name for one in _calls(listed[0])] == ["proc_info", "proc_list"]
            assert (listed[2].stored.text, listed[2].stored.model) == ("It is well.", "openai/x")
            assert (listed[2].stored.prompt_tokens, listed[2].stored.completion_tokens) == (10, 5)
            assert all(one.request is None and one.again is None for one in listed)
            [shown] = await replay(daemon, session, to=5)
            assert shown.request is not None
            assert "Be brief." in shown.request.system
            assert shown.request.functions == [tool["function"]["name"] for tool in sent[4]["tools"]]
            assert [one["content"] for one in shown.request.messages if one["role"] == "user"] == [
                one["content"] for one in sent[4]["messages"] if one["role"] == "user"
            ]
            assert shown.notes == ["The stored answer calls what is not offered now: nosuch_tool."]
            fork = await daemon.service.sessions.fork(ME, session)
            test, before = Scripted(daemon=daemon, model=endpoint), len(endpoint.requests)
            await test.prompt(test.agent.sessions[fork.id], "and now?")
            sent = [one.body for one in endpoint.requests[before:]]
            assert KEY not in str(sent)
            await check_equal(daemon, fork.id, endpoint, sent)


def _calls(one: api.SessionRequest) -> list[Any]:
    return [type("Call", (), call) for call in one.stored.tool_calls]


async def test_requests_are_those_of_before_and_after_each_compaction(paths: Paths) -> None:
    script = model(summary=say("The person asked many things."), turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        session = await test.session()
        await fill(test, session)
        first = len(requests(test))
        for number in range(6):
            await test.prompt(session, question(number))
        assert len(test.stored(topic="session.compacted")) > 1
        await check_equal(test.daemon, session.id, test.model, requests(test))
        assert "written by openai/x" in str(test.model.requests[-1].body)
        counts = [one.message_count or 0 for one in await replay(test.daemon, session.id)]
        assert counts[: first - 1] == [2 * number + 1 for number in range(first - 1)]
        assert counts[first - 1] < counts[first - 2]


async def test_requests_are_those_of_the_agent_that_had_the_conversation(paths: Paths) -> None:
    def front(body: dict[str, Any]) -> Answer:
        return say("front") if results(body) or "last" in str(body["messages"][-1]) else hand("dba")

    def dba(body: dict[str, Any]) -> Answer:
        return hand("test", "t2") if body["messages"][-1]["content"] == "back" else say("7 rows")

    async with team(paths, {"test": front, "dba": dba}) as test:
        session = await test.begin()
        for text in ("count", "more", "back", "last"):
            await test.prompt(session, text)
        sent = [one.body for one in test.model.requests]
        await check_equal(test.daemon, session.id, test.model, sent)
        listed = await replay(test.daemon, session.id)
        assert [one.agent for one in listed] == ["test", "dba", "dba", "dba", "test", "test"]


async def test_another_answer_is_compared_and_no_call_runs(paths: Paths) -> None:
    lines = paths.state.parent / "out" / "lines"
    wanted = add(lines)
    answers: list[Answer] = [
        call("proc_info", {"pid": 1}),
        Fault(),
        say("done"),
        call("probe_add", wanted, text="I change it."),
        say("not done"),
        call("proc_info", '{ "pid":1 }', text="Other words."),
        say("done "),
    ]
    async with asking(paths, answers) as test:
        session = await test.session()
        await test.prompt(session)
        events, head = test.stored(), test.daemon.history.head_seq
        [first, second] = await replay(test.daemon, session.id, model="openai/x")
        assert (first.same, second.same) == (False, False)
        assert first.again is not None
        assert [(one["name"], json.loads(one["arguments"])) for one in first.again.tool_calls] == [
            ("probe_add", wanted)
        ]
        assert second.again is not None
        assert (second.again.text, second.again.prompt_tokens, second.again.counted) == ("not done", 10, True)
        again = await replay(test.daemon, session.id, model="openai/x")
        assert [one.same for one in again] == [True, True], "words beside calls do not count, nor do spaces"
        assert not lines.exists()
        new = [event for event in test.stored() if event.seq > head]
        assert {event.topic for event in new} == {"agent.llm_response"}
        assert {(event.session, event.trace_id, event.caller) for event in new} == {("", "", ME.uid)}
        assert [event for event in test.stored() if event.seq <= head] == events
        queries = test.daemon.history.queries
        assert queries.state_of("usage", f"session/{session.id}")["steps"] == 3
        assert queries.state_of("usage", f"owner/{ME.uid}")["steps"] == 7


async def test_a_request_without_an_answer_can_be_sent_to_another_model(paths: Paths) -> None:
    refused = Fault(status=400, body=b'{"error": {"message": "no"}}')
    cut = Fault(status=200, body=bytes(say("half of").pieces[1]), cut=True)
    async with scripted(paths, [cut, say("whole"), refused], front=FRONT) as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["type"] == "error"
        [listed] = await replay(test.daemon, session.id)
        assert (listed.stored.finish_reason, listed.stored.text, listed.message_count) == ("failed", "", 1)
        [sent] = await replay(test.daemon, session.id, model="openai/x")
        assert sent.again is not None
        assert (sent.again.text, sent.same) == ("whole", False)
        [failed] = await replay(test.daemon, session.id, model="openai/x")
        assert failed.error
        assert (failed.again, failed.same) == (None, None)
        with pytest.raises(ModelError):
            await replay(test.daemon, session.id, to=1, model="openai/x")
        test.model.script = [say("now")]
        await test.prompt(session, "and now?")
        body = test.model.requests[-1].body
        assert "half of" in str(body), "what was said until then"
        [shown] = await replay(test.daemon, session.id, to=2, model="openai/x")
        assert shown.same
        assert json.dumps(test.model.requests[-1].body) == json.dumps(body)


async def test_the_runbook_model_gets_the_question_alone_and_that_is_said(paths: Paths) -> None:
    toml = '[models]\nfallback = ["runbook"]\n'
    script = [call("skill_run", {"name": "memory-check", "args": {}, "effect": "observe"}), say("enough")]
    async with scripted(paths, script, toml=toml) as test:
        session = await test.session()
        await test.prompt(session, "check memory")
        [first, last] = await replay(test.daemon, session.id, model="runbook")
        assert first.same, first
        assert first.again is not None
        assert first.again.model == "runbook"
        assert last.same is False
        assert [note for note in last.notes if "Its call or its report is compared" in note]


async def test_what_retention_took_away_is_said_and_nothing_is_guessed(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "NEWEST", 0)
    script = model(summary=say("The person asked many things."), turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        plain, session = await test.session(), await test.session()
        await test.prompt(plain, "one")
        await fill(test, session)
        sent = requests(test)
        [compacted] = test.stored(topic="session.compacted")
        await prune(test.daemon.history, compacted.seq - 1)
        early, *_, last = await replay(test.daemon, session.id)
        assert (early.stored.model, early.stored.prompt_tokens, early.stored.text) == ("", None, "yes")
        assert (early.message_count, last.stored.model) == (1, "openai/x")
        [note] = early.notes
        assert "is pruned: the model, its time and its tokens are not known" in note
        assert last.notes == []
        await check_equal(test.daemon, session.id, test.model, sent[1:])

        await test.prompt(session, question(99))
        sent = [*sent, requests(test)[-1]]
        await prune(test.daemon.history, test.daemon.history.head_seq - 6)
        early, *_, last = await replay(test.daemon, session.id)
        assert early.message_count is None
        assert "whether a summary stood for older messages then is not known" in early.notes[1]
        assert (last.notes, last.message_count) == ([], 12), "the summary, and 11 since"
        before = len(test.model.requests)
        *unknown, again = await replay(test.daemon, session.id, model="openai/x")
        assert json.dumps(test.model.requests[-1].body) == json.dumps(sent[-1])
        assert len(test.model.requests) == before + 1, "what is not known is not sent"
        assert (again.same, {one.same for one in unknown}) == (True, {None})
        assert all("not known" in one.error for one in unknown)
        with pytest.raises(NotFound, match="request 1 is not known"):
            await replay(test.daemon, session.id, to=1, model="openai/x")
        [one] = await replay(test.daemon, plain.id, model="openai/x")
        assert (one.same, one.error) == (True, ""), "it never had a summary"


async def test_results_that_may_have_been_shortened_are_told_of(paths: Paths) -> None:
    big = ("bash_exec", {"command": "seq 1 2000", "effect": "observe"})

    def turn(body: dict[str, Any]) -> Answer:
        done = sum(message["role"] == "tool" for message in body["messages"])
        return uncounted(call(*big, call_id=f"call_{done}")) if done < 5 else yes(body)

    async with scripted(paths, model(summary=Fault(), turn=turn), front=FRONT, toml=window(5500)) as test:
        session = await test.session()
        await test.prompt(session, "look")
        assert SHORTENED.strip() in str(requests(test)[-1])
        found = [(await replay(test.daemon, session.id, to=number))[0].notes for number in (1, 6)]
        assert ["may have been shortened" in str(notes) for notes in found] == [False, True]
        [*_, last] = await replay(test.daemon, session.id, model="openai/x")
        assert "and the window of openai/x has 5,500" in last.error


async def test_a_budget_ends_a_replay(paths: Paths) -> None:
    async with scripted(paths, [say("yes")], toml="[budgets.owner]\nsteps = 3\n", front=FRONT) as test:
        session = await test.session()
        for _ in range(2):
            await test.prompt(session)
        with pytest.raises(BudgetExceeded):
            await replay(test.daemon, session.id, model="openai/x")
        assert len(test.model.requests) == 3, "the first one was sent"


async def test_what_changed_since_and_what_the_turn_chose_is_said(paths: Paths) -> None:
    async with scripted(paths, [say('{"a": 1}')], front=FRONT) as test:
        session = await test.session()
        events = test.daemon.service.conversations.prompt(
            ME, text="go", session=session.id, tools=["proc.info"], schema={"type": "object"}
        )
        assert [event async for event in events][-1]["type"] == "done"
        [shown] = await replay(test.daemon, session.id, to=1)
        assert shown.request is not None
        assert shown.request.functions == ["proc_info"]
        assert [note for note in shown.notes if "JSON Schema" in note] == shown.notes
        path = Path(paths.config / "agent" / "test" / "AGENT.md")
        path.write_text(path.read_text().replace("Be brief.", "Be long."))
        await test.daemon.service.manager.reload(ME)
        [shown] = await replay(test.daemon, session.id, to=1)
        assert shown.request is not None
        assert "Be long." in shown.request.system
        assert any(note == "Changed since: the definition of test." for note in shown.notes)
        assert any("read its agents, skills and tools again" in note for note in shown.notes)


async def test_bad_input_is_an_error_and_sends_nothing(paths: Paths) -> None:
    async with scripted(paths, [say("yes")], front=FRONT) as test:
        session, empty = await test.session(), await test.session()
        await test.prompt(session)
        for to in (0, -1, 2, 1 << 60):
            with pytest.raises(InvalidArgument, match="has 1 request, and none with the number") as caught:
                await replay(test.daemon, session.id, to=to)
            assert caught.value.field == "to"
        with pytest.raises(InvalidArgument, match="has no requests"):
            await replay(test.daemon, empty.id, to=1)
        assert (
            await replay(test.daemon, empty.id) == await replay(test.daemon, empty.id, model="openai/x") == []
        )
        for where in (session.id, empty.id):
            with pytest.raises(InvalidArgument, match="has no model 'openai/y'") as caught:
                await replay(test.daemon, where, model="openai/y")
            assert "It has: openai/x" in caught.value.suggestion
        for strange in ("ses_0000000000000000", "", "\0"):
            with pytest.raises(SessionNotFound):
                await replay(test.daemon, strange)
        for model in ("", "openai/x"):
            with pytest.raises(LightagentError) as refused:
                await replay(test.daemon, session.id, model=model, caller=OTHER)
            assert isinstance(refused.value, SessionNotFound | PermissionDenied)
        await test.daemon.service.sessions.delete(ME, session.id, confirmed=True)
        with pytest.raises(SessionNotFound):
            await replay(test.daemon, session.id)
        assert len(test.model.requests) == 1
