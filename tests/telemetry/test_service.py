"""lightagent-telemetry.service: from a turn to what a receiver gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from lightagentd.config.telemetry import Telemetry
from lightagentd.host.paths import Paths
from lightagentd.telemetry.service import Service
from tests.agents.scripted import scripted, until
from tests.scripted_model import Fault, call, say
from tests.telemetry.receiver import OtlpReceiver, attributes


@contextlib.asynccontextmanager
async def sending(paths: Paths, receiver: OtlpReceiver, **more: Any) -> AsyncIterator[Service]:
    """The service, once it follows the daemon."""
    telemetry = Telemetry(**{"endpoint": receiver.endpoint, "interval_s": 0.05, "timeout_s": 2.0} | more)
    state = paths.state / "telemetry.json"
    service = Service(telemetry, state, control=paths.socket)
    task = asyncio.create_task(service.run())
    try:
        await until(state.exists)
        yield service
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_turn_is_one_trace_with_its_calls(paths: Paths) -> None:
    script = [
        Fault(status=503),
        call("memory_search", {"query": "disks"}, call_id="c1"),
        call("nothing_at_all", {}, call_id="c2"),
        say("done"),
    ]
    async with OtlpReceiver() as receiver, scripted(paths, script) as it, sending(paths, receiver):
        session = await it.session()
        await it.prompt(session, "secret words")
        await until(lambda: any(span.name == "invoke_agent test" for span in receiver.spans))
        await until(lambda: "gen_ai.client.operation.duration" in receiver.points)
    assert receiver.faults == []
    spans = {span.name: span for span in receiver.spans}
    assert sorted(span.name for span in receiver.spans) == [
        *["chat openai/x"] * 4,
        "execute_tool memory.search",
        "execute_tool nothing_at_all",
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
    tokens = receiver.points["gen_ai.client.token.usage"]
    assert sum(point.sum for point in tokens) == 3 * 15
    assert sum(point.as_int for point in receiver.points["lightagent.model.retries"]) == 1
