"""What a worker may say of a call, and what is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.agents.tool_calls.worker_replies import asked_of, event_of, result_of
from lightagentd.errors import InputInvalid, OutcomeUnknown, ToolError
from lightagentd.events.model import within
from lightagentd.tool import Effect
from lightagentd.worker.call import Call


def wanted(tool: str = "x") -> Call:
    return Call(
        call_id="call_1",
        tool=tool,
        action="do",
        args={},
        agent="ops",
        session="ses_1",
        effect=Effect.OBSERVE,
        timeout_s=1,
    )


def test_a_result_is_a_text_and_an_object() -> None:
    assert result_of(wanted(), {"kind": "result", "output": "o", "metadata": {"a": 1}}) == ("o", {"a": 1})


@pytest.mark.parametrize(
    "event", [{}, {"output": "o"}, {"output": 5, "metadata": {}}, {"output": "o", "metadata": [1]}]
)
def test_what_is_no_result_leaves_the_outcome_unknown(event: dict[str, Any]) -> None:
    with pytest.raises(OutcomeUnknown, match=r"x\.do is no result"):
        result_of(wanted(), event)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"question": "q"},
        {"question": ["q"], "choices": []},
        {"question": "q", "choices": "ab"},
        {"question": "q", "choices": [str(number) for number in range(10_000)]},
        {"question": "q", "choices": [], "state": "x" * (64 << 10)},
        {"question": "q", "choices": [], "state": {"x": float("nan")}},
    ],
)
def test_what_a_worker_says_that_a_call_asks_is_checked_again(event: dict[str, Any]) -> None:
    with pytest.raises(InputInvalid, match=r"x\.do asked a person something that cannot be asked: "):
        asked_of(wanted(), event)


def test_an_event_of_a_tool_has_its_call_and_the_context_of_the_turn() -> None:
    with within(agent="ops", caller=7):
        found = event_of(
            wanted(), {"topic": "tool.x.seen", "type": "t", "data": {"call_id": "other", "a": 1}}
        )
    assert (found.topic, found.source, found.context.caller) == ("tool.x.seen", "tool", 7)
    assert found.data == {"call_id": "call_1", "a": 1}


@pytest.mark.parametrize(
    ("tool", "event"),
    [
        ("x", {}),
        ("x", {"topic": "tool.x", "type": "t", "data": []}),
        ("x", {"topic": 5, "type": "t", "data": {}}),
        ("x", {"topic": "tool.x", "type": None, "data": {}}),
        ("x", {"topic": "tool.y", "type": "t", "data": {}}),
        ("x", {"topic": "tool.xy", "type": "t", "data": {}}),
        ("x", {"topic": "agent.message", "type": "message", "data": {}}),
        ("x", {"topic": "tool.x", "type": "invocation", "data": {}}),
        ("x", {"topic": "tool.x.UPPER", "type": "t", "data": {}}),
        ("x", {"topic": "tool.x." + "y" * 200, "type": "t", "data": {}}),
        ("inotify", {"topic": "tool.inotify", "type": "watch_started", "data": {}}),
        ("inotify", {"topic": "tool.inotify.event", "type": "fs_event", "data": {}}),
    ],
)
def test_what_a_tool_may_not_say_fails_its_call(tool: str, event: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match=f"The tool {tool} emitted an event"):
        event_of(wanted(tool), event)
