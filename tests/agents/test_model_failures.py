"""A model that fails: tried again, then another one, and always said; and what may not be tried again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from lightagentd.agents.sessions.session import Session
from lightagentd.api import TurnEvent
from lightagentd.host.paths import Paths
from lightagentd.llm import circuit
from tests.agents.endpoints import NOWHERE, asking_providers
from tests.agents.scripted import ME, Scripted, check_conversation, types, until, watch
from tests.model_server import faults
from tests.model_server.said import Said, call, say
from tests.model_server.server import Asked, ModelServer
from tests.model_server.wire import Answer

INFO = ("proc_info", {"pid": 1})
BUSY = faults.FAULTS["status_503"]


def notices(events: list[TurnEvent]) -> list[TurnEvent]:
    return [event for event in events if event["type"] == "notice"]


def table(server: ModelServer, **more: Any) -> dict[str, Any]:
    return {"base_url": server.base_url, **more}


# Trying again


async def test_a_call_that_failed_is_made_again_and_that_is_told_and_stored(paths: Paths) -> None:
    async with (
        ModelServer([BUSY(), faults.FAULTS["reset_in_body"](), say("here")]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        turn = await test.agent.prompt(session, "hello")
        events = await watch(turn)
        assert events[-1]["text"] == "here", "no word of the model that answered at last"
        assert [event["code"] for event in notices(events)] == ["model_overloaded", "model_cut_off"]
        assert "(1 of 4)" in notices(events)[0]["message"]
        assert "(2 of 4)" in notices(events)[1]["message"]
        retried = test.stored(turn.trace_id, "agent.retry")
        assert [event.data and event.data["tries"] for event in retried] == [1, 2]
        assert test.stored(turn.trace_id, "agent.error") == []
        answers = test.stored(turn.trace_id, "agent.llm_response")
        assert [event.type for event in answers] == ["failed", "failed", "response"]
        assert server.requests == 3


async def test_no_try_is_made_once_text_was_said(paths: Paths) -> None:
    async with (
        ModelServer([faults.error_in_stream(say("The disk ", "is"))]) as server,
        asking_providers(paths, {"main": table(server)}, models=["main/x", "runbook"]) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "check disk")
        assert events[-1]["code"] == "model_overloaded"
        assert server.requests == 1
        assert "text_delta" in types(events)
        check_conversation(test.conversation(session))


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "anthropic"])
async def test_what_was_said_before_the_end_is_stored_with_the_error_and_goes_back(
    paths: Paths, kind: str
) -> None:
    cut = faults.unfinished(say("The disk ", "is"), pieces=3)
    toml = "[models]\nfallback = []\n"
    hung = faults.silence(say("Memory", *[" is"] * 500), after=20_000)
    async with (
        ModelServer([cut, hung, BUSY(), say("Yes.")]) as server,
        asking_providers(paths, {"main": table(server, kind=kind, max_retries=0)}, toml=toml) as test,
    ):
        session = await test.session()
        assert (await test.prompt(session, "check disk"))[-1]["code"] == "model_cut_off"
        turn = await test.agent.prompt(session, "check memory")
        async for event in turn.stream.watch().events():
            if event["type"] == "text_delta":
                test.agent.cancel(session)
            last = event
        assert last["code"] == "cancelled"
        assert (await test.prompt(session, "check net"))[-1]["type"] == "error"
        found = [each for each in await test.daemon.service.sessions.messages(ME, session.id) if each.cut_off]
        assert [found[0].content[:8], found[2].content] == ["The disk", ""]
        assert found[1].content.startswith("Memory is")
        assert [each.cut_off.partition(":")[0] for each in found] == [
            "Error (model_cut_off)",
            "Error (cancelled)",
            "Error (model_overloaded)",
        ]
        assert (await test.prompt(session, "well?"))[-1]["text"] == "Yes."
        sent = json.dumps(server.asked[-1].body)
        assert sent.count("[The answer ended here. Error (") == 3, "and no words of an endpoint"
        assert "scripted failure" not in sent
        assert "The disk" in sent
        check_conversation(test.conversation(session))
        exported = (await test.daemon.service.sessions.export(ME, session.id, "markdown")).text
        assert "[The answer ended here. Error (cancelled): " in exported


async def test_a_call_in_words_that_broke_off_is_not_stored(paths: Paths) -> None:
    begun = faults.error_in_stream(say('{"tool": "crypto", ', '"action": "hmac", "args": {"key": "s'))
    async with (
        ModelServer([begun]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        await test.prompt(session, "go")
        assert [message.content for message in test.conversation(session)] == ["go", ""]


async def test_a_call_may_be_made_again_after_thoughts_and_pieces_of_calls(paths: Paths) -> None:
    begun = call("proc_info", {"pid": 1}, thinking=("hm, ", "well"))
    script: list[Answer | Said] = [faults.unfinished(begun, pieces=3), begun, say("done")]
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        events = await test.prompt(await test.session(), "hello")
        assert events[-1]["text"] == "done"
        assert types(events).count("tool_call") == 1
        assert server.requests == 3


async def test_max_retries_0_means_one_try(paths: Paths) -> None:
    async with (
        ModelServer([BUSY()]) as server,
        asking_providers(paths, {"main": table(server, max_retries=0)}) as test,
    ):
        events = await test.prompt(await test.session(), "hello")
        assert events[-1]["code"] == "model_overloaded"
        assert "tried" not in events[-1]["message"]
        assert server.requests == 1


async def test_a_cancel_ends_the_wait_at_once(paths: Paths) -> None:
    later = faults.status(503, retry_after="3000")
    async with (
        ModelServer([later, say("here")]) as server,
        asking_providers(paths, {"main": table(server, max_retry_s=4000.0)}) as test,
    ):
        session = await test.session()
        turn = await test.agent.prompt(session, "hello")
        watcher = turn.stream.watch().events()
        async for event in watcher:
            if event["type"] == "notice":
                assert "in 3000.0 s" in event["message"]
                test.agent.cancel(session)
            last = event
        assert last["code"] == "cancelled"
        assert server.requests == 1
        assert (await test.prompt(session, "again"))[-1]["text"] == "here"


async def test_a_cancel_of_a_retry_closes_its_connection(paths: Paths) -> None:
    script: list[Answer | Said] = [BUSY(), faults.silence(say("never"), after=30), say("here")]
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        turn = await test.agent.prompt(session, "hello")
        await until(lambda: server.requests == 2)
        test.agent.cancel(session)
        assert (await watch(turn))[-1]["code"] == "cancelled"
        await until(lambda: not server.open_connections)
        assert (await test.prompt(session, "again"))[-1]["text"] == "here"


async def test_nothing_waits_beyond_the_turns_own_time(paths: Paths) -> None:
    front = "limits: {turn_timeout_s: 60}"
    later = faults.status(503, retry_after="100")
    async with (
        ModelServer([later]) as server,
        asking_providers(paths, {"main": table(server, max_retry_s=4000.0)}, front=front) as test,
    ):
        events = await test.prompt(await test.session(), "hello")
        assert events[-1]["code"] == "model_overloaded"
        assert "turn's time" in events[-1]["message"]
        assert server.requests == 1


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "anthropic"])
async def test_garbled_answers_are_asked_for_again_until_one_was_read(paths: Paths, kind: str) -> None:
    no_json = Answer(body=(b"data: {oh\n\n",))
    said: list[Answer | Said] = [faults.garbage(), no_json, faults.gzip_garbage(), say("here")]
    said.append(Answer(said=say("The ", "disk"), drop=3, body=no_json.body))
    async with (
        ModelServer(said) as server,
        asking_providers(paths, {"main": table(server, kind=kind)}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        assert events[-1]["text"] == "here"
        assert [event["code"] for event in notices(events)] == ["model_garbled"] * 3
        assert server.requests == 4
        assert (await test.prompt(session, "and now?"))[-1]["code"] == "model_garbled"
        assert server.requests == 5, "somebody has read its beginning"


async def test_what_a_cut_answer_used_is_told(paths: Paths) -> None:
    async with (
        ModelServer([faults.unfinished(say("The disk ", "is"), pieces=3)]) as server,
        asking_providers(paths, {"main": table(server, kind="anthropic", max_retries=0)}) as test,
    ):
        events = await test.prompt(await test.session(), "hello")
        assert types(events)[-3:] == ["text_delta", "usage", "error"]
        assert next(event for event in events if event["type"] == "usage")["prompt_tokens"] == 10


async def test_a_request_that_is_too_long_and_cannot_be_shorter_goes_out_once(paths: Paths) -> None:
    too_long = faults.status(400, message="Too long.", code="context_length_exceeded")
    async with (
        ModelServer([too_long]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        assert (await test.prompt(await test.session(), "hello"))[-1]["code"] == "context_full"
        assert server.requests == 1


# Other models


async def test_a_notice_tells_of_another_model_and_the_answer_stays_what_that_wrote(paths: Paths) -> None:
    async with (
        ModelServer([faults.FAULTS["status_401"]()]) as server,
        ModelServer([call(*INFO), say('{"all": "well"}'), say("Yes.")]) as spare,
    ):
        providers = {"main": table(server), "spare": table(spare)}
        async with asking_providers(paths, providers, models=["main/x", "spare/y"]) as test:
            session = await test.session()
            events = await test.prompt(session, "hello")
            assert (server.requests, spare.requests) == (1, 2)
            [told] = notices(events)
            assert told["code"] == "model_key_refused"
            assert told["message"].endswith("The turn goes on with spare/y.")
            assert events[-1]["text"] == test.conversation(session)[-1].content == '{"all": "well"}'
            assert (
                "".join(event["text"] for event in events if event["type"] == "text_delta")
                == events[-1]["text"]
            )
            assert [event.type for event in test.stored(topic="agent.error")] == ["fallback"]
            await test.prompt(session, "really?")
            assert "main/x" not in str(spare.asked[-1].body["messages"])


async def test_the_runbook_takes_over_for_a_dead_endpoint_where_it_knows_what_to_do(paths: Paths) -> None:
    async with asking_providers(paths, {"main": {"base_url": NOWHERE}}) as test:
        session = await test.session()
        events = await test.prompt(session, "check disk")
        assert events[-1]["type"] == "done", events[-1]
        assert "skill_run" in {m.name for m in test.conversation(session)}
        assert notices(events)[-1]["message"].endswith("The turn goes on with runbook.")
        check_conversation(test.conversation(session))
        events = await test.prompt(session, "write me a poem about the sea")
        assert events[-1]["code"] == "model_unreachable"
        assert "goes on with" not in str(events)


@pytest.mark.parametrize("fault", ["status_401", "status_404", "status_400", "html", "captive_portal"])
async def test_the_runbook_does_not_hide_what_an_administrator_has_to_mend(paths: Paths, fault: str) -> None:
    async with (
        ModelServer([faults.FAULTS[fault]()]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        events = await test.prompt(await test.session(), "check disk")
        assert events[-1]["type"] == "error"
        assert server.requests == 1


async def test_a_fallback_with_a_small_window_hides_neither_the_error_nor_the_last_resort(
    paths: Paths,
) -> None:
    async with ModelServer([say("never")]) as spare:
        providers = {"main": {"base_url": NOWHERE}, "spare": {**table(spare), "context_tokens": 1024}}
        async with asking_providers(paths, providers, models=["main/x", "spare/y"]) as test:
            session = await test.session()
            events = await test.prompt(session, "write me a poem about this: " + "sea " * 9000)
            assert events[-1]["code"] == "model_unreachable"
            events = await test.prompt(session, "check disk")
            assert events[-1]["type"] == "done", events[-1]
            assert "skill_run" in {message.name for message in test.conversation(session)}


async def test_without_a_last_resort_the_turn_ends_with_the_error(paths: Paths) -> None:
    toml = "[models]\nfallback = []\n"
    async with asking_providers(paths, {"main": {"base_url": NOWHERE}}, toml=toml) as test:
        events = await test.prompt(await test.session(), "check disk")
        assert events[-1]["code"] == "model_unreachable"


async def test_a_last_resort_may_be_another_endpoint(paths: Paths) -> None:
    async with ModelServer([say("from the spare one")]) as spare:
        providers = {"main": {"base_url": NOWHERE}, "spare": table(spare)}
        toml = '[models]\nfallback = ["runbook", "spare/y"]\n'
        async with asking_providers(paths, providers, toml=toml) as test:
            events = await test.prompt(await test.session(), "write me a poem about the sea")
            assert events[-1]["text"] == "from the spare one"


async def test_a_runbook_in_the_middle_of_a_turn_answers_the_prompt(paths: Paths) -> None:
    """The endpoint dies after its first step: the result of that step is not the answer."""

    def script(asked: Asked) -> Answer | Said:
        return call(*INFO) if asked.number == 0 else BUSY()

    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "check disk")
        assert events[-1]["type"] == "done", events[-1]
        names = [message.name for message in test.conversation(session) if message.role == "tool"]
        assert names == ["proc_info", "skill_run"]
        report = test.conversation(session)[-2].content
        assert events[-1]["text"].startswith(report.strip()[:40])
        check_conversation(test.conversation(session))
        assert server.requests == 6


# Answers that are not whole


@pytest.mark.parametrize(("finish", "code"), [("length", "answer_cut"), ("content_filter", "model_filtered")])
async def test_an_answer_that_was_cut_says_so(paths: Paths, finish: Any, code: str) -> None:
    async with (
        ModelServer([say("The three steps are: one, tw", finish=finish)]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        assert [event["code"] for event in notices(events)] == [code]
        assert events[-1]["text"] == test.conversation(session)[-1].content == "The three steps are: one, tw"
        assert server.requests == 1


async def test_an_answer_with_nothing_is_asked_for_once_more(paths: Paths) -> None:
    async with (
        ModelServer([say(" \n"), say("here")]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        turn = await test.agent.prompt(session, "hello")
        events = await watch(turn)
        assert events[-1]["text"] == "here"
        assert "(1 of 1)" in notices(events)[0]["message"]
        kinds = [event.type for event in test.stored(turn.trace_id, "agent.llm_response")]
        assert kinds == ["failed", "response"], "each is counted"
        assert server.requests == 2


# Many at a dead endpoint


async def turns_at_once(test: Scripted, sessions: list[Session], text: str) -> list[TurnEvent]:
    turns = await asyncio.gather(*(test.prompt(session, text) for session in sessions))
    return [events[-1] for events in turns]


async def test_many_turns_at_a_dead_endpoint_make_no_storm(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "OPEN_S", 3600.0)  # longer than the slowest machine takes
    count = 24
    async with (
        ModelServer([BUSY()]) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        sessions = [await test.session() for _ in range(count)]
        last = await turns_at_once(test, sessions, "write me a poem about the sea")
        assert {event["type"] for event in last} == {"error"}
        first = server.requests
        assert first < 2 * count, "most of them were on their way when the circuit opened"
        [opened] = test.stored(topic="daemon.model")
        assert (opened.type, opened.session, opened.owner) == ("circuit_opened", "", None)
        assert any("left alone" in problem for problem in test.daemon.registry.problems())
        last = await turns_at_once(test, sessions, "write me a poem about the sea")
        assert {event.get("code") for event in last} == {"model_circuit_open"}
        assert all("until" in event["message"] for event in last)
        assert server.requests == first
        [done] = await turns_at_once(test, sessions[:1], "check disk")
        assert done["type"] == "done"
        assert server.requests == first


async def test_one_user_alone_gets_all_his_tries_and_is_not_locked_out(paths: Paths) -> None:
    script = [BUSY()] * 5 + [say("here")]
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": table(server)}) as test,
    ):
        session = await test.session()
        assert (await test.prompt(session, "hello"))[-1]["code"] == "model_overloaded"
        assert server.requests == 5
        assert (await test.prompt(session, "hello"))[-1]["text"] == "here"
