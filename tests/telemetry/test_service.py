"""lightagent-telemetry.service: from a turn to what a receiver gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client import pause
from lightagentd.config.service_problem import problem_file
from lightagentd.config.telemetry import Telemetry
from lightagentd.errors import ConfigError, StorageError
from lightagentd.host.paths import Paths
from lightagentd.telemetry import position
from lightagentd.telemetry.receiver import checked
from lightagentd.telemetry.service import Service
from tests.agents.scripted import Scripted, scripted, until
from tests.conftest import write
from tests.scripted_model import Answer, Fault, call, say
from tests.telemetry.receiver import OtlpReceiver, attributes, partly, refuses


@contextlib.asynccontextmanager
async def sending(paths: Paths, receiver: OtlpReceiver, **more: Any) -> AsyncIterator[Service]:
    """The service, once it follows the daemon."""
    keys: dict[str, Any] = {"endpoint": receiver.endpoint, "interval_s": 0.05, "timeout_s": 2.0, **more}
    telemetry = Telemetry(**keys)
    state = paths.state / "telemetry.json"
    told = write(problem_file(paths.runtime, "lightagent-telemetry"), "")
    service = Service(telemetry, state, control=paths.socket, told=told)
    task = asyncio.create_task(service.run())
    try:
        await until(state.exists)
        yield service
    finally:
        task.cancel()
        await asyncio.wait([task])


def tokens(receiver: OtlpReceiver) -> float:
    """All tokens that the receiver was told of."""
    return sum(float(point.sum) for point in receiver.points.get("gen_ai.client.token.usage", ()))


def all_is_taken(it: Scripted, state: Path) -> bool:
    """Whether the position is behind the newest turn; no other will be stored then."""
    last = it.stored(topic="session.turn")[-1].seq
    return position.read(state) == position.Position(traces=last, metrics=last)


def turns(receiver: OtlpReceiver) -> list[str]:
    """The spans of turns that the receiver took, by their ids."""
    return [span.span_id.hex() for span in receiver.spans if span.name == "invoke_agent test"]


async def test_a_turn_is_one_trace_with_its_calls(paths: Paths) -> None:
    script: list[Answer] = [
        Fault(status=503),
        call("plan_show", {}, call_id="c1"),
        call("nothing_at_all", {}, call_id="c2"),
        say("done"),
    ]
    async with OtlpReceiver() as receiver, scripted(paths, script) as it, sending(paths, receiver):
        session = await it.session()
        await it.prompt(session, "secret words")
        await until(lambda: any(span.name == "invoke_agent test" for span in receiver.spans))
        await until(lambda: tokens(receiver) == 3 * 15)
    assert receiver.faults == []
    spans = {span.name: span for span in receiver.spans}
    assert sorted(span.name for span in receiver.spans) == [
        *["chat openai/x"] * 4,
        "execute_tool nothing_at_all",
        "execute_tool plan.show",
        "invoke_agent test",
        "retry",
    ]
    turn = spans["invoke_agent test"]
    assert {span.trace_id for span in receiver.spans} == {turn.trace_id}
    assert {span.parent_span_id for span in receiver.spans if span is not turn} == {turn.span_id}
    assert len({span.span_id for span in receiver.spans}) == 8
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans)
    asked = attributes(spans["chat openai/x"])
    assert asked["gen_ai.request.model"] == "x"
    assert asked["gen_ai.provider.name"] == "openai"
    assert (asked["gen_ai.usage.input_tokens"], asked["gen_ai.usage.output_tokens"]) == (10, 5)
    assert asked["gen_ai.conversation.id"] == session.id
    assert attributes(spans["execute_tool nothing_at_all"])["error.type"] == "tool_not_found"
    steps = [attributes(span).get("lightagent.step") for span in receiver.spans if "chat" in span.name]
    assert steps == [None, 1, 2, 3]
    assert "secret words" not in str(receiver.traces)
    assert sum(point.as_int for point in receiver.points["lightagent.model.retries"]) == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(pause, "FIRST_S", 0.01)


async def test_what_is_not_taken_is_sent_again_with_the_same_ids_and_once(
    paths: Paths, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    replies = [
        refuses(500, "boom"),
        refuses(200, "<html>log in</html>"),
        refuses(429, **{"Retry-After": "0"}),
        refuses(503, **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        refuses(302, Location="http://127.0.0.1:9/"),
        refuses(401, "who are you?"),
        lambda: None,
    ]
    async with (
        OtlpReceiver(replies=replies) as receiver,
        scripted(paths, [say("ok")]) as it,
        sending(paths, receiver, timeout_s=0.3) as service,
    ):
        session = await it.session()
        await it.prompt(session)
        await it.prompt(session)  # while the receiver takes nothing
        await until(lambda: tokens(receiver) == 30 and len(turns(receiver)) == 2)
        await until(lambda: service.problem == "")
    told = ("500 (boom)", "no receiver of OTLP", "429", "503", "302", "401 (who are you?)", "within 0.3 s")
    assert [one for one in told if one not in caplog.text] == []
    assert (len(turns(receiver)), len({*turns(receiver)})) == (2, 2)
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans) == 4


async def test_what_is_refused_is_given_up_and_told(paths: Paths, quick: None) -> None:
    replies = [refuses(400, "no"), partly(rejectedSpans="1", errorMessage="too old")]
    async with (
        OtlpReceiver(replies=replies) as receiver,
        scripted(paths, [say("ok")]) as it,
        sending(paths, receiver, metrics=False) as service,
    ):
        session = await it.session()
        for said in ("status 400 (no)", "refused 1 of what was sent: too old"):
            await it.prompt(session)
            await until(lambda said=said: said in "".join(it.daemon.problems()))  # type: ignore[misc]
        await it.prompt(session)
        await until(lambda: service.problem == "" and not receiver.replies)
    assert receiver.metrics == []


async def test_it_goes_on_where_it_stopped(paths: Paths, quick: None) -> None:
    """Restarts of the sender, of the receiver and of the daemon."""
    state = paths.state / "telemetry.json"

    async with OtlpReceiver() as receiver:
        async with scripted(paths, [say("ok")]) as it:
            session = await it.session()
            async with sending(paths, receiver):
                await it.prompt(session)
                await until(lambda: tokens(receiver) == 15 and all_is_taken(it, state))
            before = position.read(state)
            await it.prompt(session)  # nobody follows
            assert position.read(state) == before
            async with sending(paths, receiver):
                await until(lambda: tokens(receiver) == 30 and all_is_taken(it, state))
        async with sending(paths, receiver), scripted(paths, [say("ok")]) as it:  # without a daemon at first
            await it.prompt(await it.session())
            await until(lambda: tokens(receiver) == 45 and len(turns(receiver)) == 3)
    assert (len(turns(receiver)), len({*turns(receiver)})) == (3, 3)


async def test_what_was_sent_before_a_crash_is_sent_again_with_the_same_ids(paths: Paths) -> None:
    state = paths.state / "telemetry.json"
    async with OtlpReceiver() as receiver, scripted(paths, [say("ok")]) as it:
        async with sending(paths, receiver):
            before = position.read(state)
            await it.prompt(await it.session())
            await until(lambda: tokens(receiver) == 15 and turns(receiver) and all_is_taken(it, state))
        assert before is not None
        sent = {span.span_id for span in receiver.spans}
        position.store(state, before.moved("metrics", it.daemon.history.head_seq))
        async with sending(paths, receiver):
            await until(lambda: len(turns(receiver)) == 2)
    assert {span.span_id for span in receiver.spans} == sent
    assert tokens(receiver) == 15


async def test_the_shape_of_langfuse_and_content_that_was_asked_for(paths: Paths) -> None:
    keys = write(paths.config / "keys", "Authorization: Basic cGs6c2s=\n")
    asked = call("plan_show", {}, call_id="c1")
    async with (
        OtlpReceiver(base="/api/public/otel") as receiver,
        scripted(paths, [asked, say("42")]) as it,
        sending(paths, receiver, content=True, headers_file=keys, metrics=False),
    ):
        await it.prompt(await it.session(), "how much?")
        await until(lambda: turns(receiver))
    assert {one["authorization"] for one in receiver.headers} == {"Basic cGs6c2s="}
    (turn,) = [attributes(span) for span in receiver.spans if span.name == "invoke_agent test"]
    assert "how much?" in turn["gen_ai.input.messages"]
    assert all(part in turn["gen_ai.output.messages"] for part in ("42", "plan_show", "tool_call_response"))


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no receiver"):
        checked(Telemetry())
    keys = write(tmp_path / "keys", "Authorization: Basic x\nsecret\n")
    with pytest.raises(ConfigError, match="the line 2 with text is no header") as told:
        checked(Telemetry(endpoint="http://localhost:4318", headers_file=keys))
    assert "secret" not in f"{told.value}"
    write(tmp_path / "state", "{")
    with pytest.raises(StorageError, match="is damaged"):
        position.read(tmp_path / "state")
