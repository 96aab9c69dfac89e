"""What an event type is: declared once, made with what there is to say, and the only way to an event."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.events.model import GENESIS, Event, EventContext, NewEvent, encode, within
from lightagentd.events.types.agent import CallIntended, CallRefused, Prompted, Said, TurnFailed
from lightagentd.events.types.event_type import TYPES, EventType
from lightagentd.events.types.registry import all_types, check, type_of
from lightagentd.events.types.session import SessionDeleted, TurnStarted
from lightagentd.events.types.tool import CallEnded, ChangesLost, Emitted, WatchStarted, emitted
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.redaction import Redactor
from tests.conftest import REPOSITORY

CALL: dict[str, Any] = {
    "call_id": "call_1",
    "function": "proc_list",
    "tool": "proc",
    "action": "list",
    "effect": "observe",
}
ENDED = CallEnded(
    call_id="call_1",
    tool="proc",
    action="list",
    effect="observe",
    result="ok",
    duration_ms=3,
    output_chars=10,
    taints=False,
    metadata={"count": 2},
)


def stored(event: NewEvent) -> Event:
    return encode(event, 1, GENESIS, Redactor())[1]


def test_an_event_has_the_fields_that_were_given_in_the_order_of_the_declaration() -> None:
    intent = CallIntended(rule="r", decision="allow", args={"limit": 5}, **CALL).event()
    assert (intent.topic, intent.type, intent.source) == ("agent.tool_dispatch", "intent", "agent")
    assert list(intent.data) == [*CALL, "args", "decision", "rule"]
    more = CallIntended(rule="", decision="ask", args={}, trigger="unattended", tainted=True, **CALL)
    assert list(more.data())[:3] == ["call_id", "function", "trigger"]
    assert more.data()["rule"] == ""
    assert TurnStarted().event().data == {}


def test_a_null_that_was_given_is_kept_and_one_that_was_not_is_not_there() -> None:
    failed: dict[str, Any] = {"code": "timeout", "message": "m", "steps": 1, "duration_ms": 2}
    assert "cost" not in TurnFailed(**failed).data()
    assert TurnFailed(**failed, cost=None).data()["cost"] is None


def test_the_context_is_that_of_the_task_or_the_one_that_is_given() -> None:
    own = EventContext(agent="web", caller=5)
    with within(agent="ops", caller=0):
        assert SessionDeleted(by=0).event().context.caller == 0
        assert SessionDeleted(by=0).event(context=own).context == own


def test_text_from_outside_is_taken_as_it_is_and_made_storable_later() -> None:
    broken = Message(
        role="assistant", content="\ud800", tool_calls=(ToolCall(id="1", name="\udfff", arguments="{"),)
    )
    event = Said(**broken.to_dict()).event()
    assert event.data == broken.to_dict()
    found = stored(event)
    assert found.data is not None
    assert found.data["content"] == "\ufffd"
    check(found)
    weird = {"\ud800": float("nan"), "deep": [{"x": (1, 2)}]}
    check(stored(ENDED.model_copy(update={"metadata": weird}).event()))


def test_large_data_is_not_copied() -> None:
    args = {"text": "x" * 10}
    assert CallIntended(args=args, decision="allow", rule="r", **CALL).event().data["args"] is args


@pytest.mark.parametrize(
    ("declared", "data"),
    [
        (Prompted, {}),
        (Prompted, {"text": 5}),
        (Prompted, {"text": b"x"}),
        (Prompted, {"text": "x", "more": 1}),
        (SessionDeleted, {"by": "0"}),
        (SessionDeleted, {"by": True}),
        (Said, {"role": "system", "content": "x"}),
        (ChangesLost, {"lost": 1.5}),
        (CallRefused, {**CALL, "result": "x", "message": "m", "args": []}),
    ],
)
def test_data_that_was_not_declared_so_makes_no_event(
    declared: type[EventType], data: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        declared.model_validate(data)
    assert "input_value" not in str(caught.value)


def test_no_two_kinds_have_the_same_topic_and_type() -> None:
    with pytest.raises(TypeError, match=r"agent\.prompt prompt is declared twice"):
        type("Again", (EventType,), {"__annotations__": {}}, topic="agent.prompt", type="prompt")
    assert TYPES["agent.prompt", "prompt"] is Prompted


def test_a_family_has_the_topic_or_the_type_that_its_data_say() -> None:
    assert ENDED.event().topic == "tool.proc"
    for row in errors.table():
        event = stored(TurnFailed(code=row.code, message="m", steps=0, duration_ms=0).event())
        assert (event.topic, event.type, type_of(event)) == ("agent.error", row.code, TurnFailed)


def test_the_type_of_a_stored_event_is_found() -> None:
    ended = stored(ENDED.event())
    assert type_of(ended) is CallEnded
    assert type_of(replace(ended, topic="tool.proc.more")) is None
    own = stored(emitted("tool.proc.seen", "found", {"anything": [1]}))
    assert type_of(own) is Emitted
    assert type_of(replace(own, source="daemon")) is None
    assert type_of(replace(own, type="invocation")) is None
    assert type_of(replace(own, topic="tool.inotify", type="watch_started")) is WatchStarted
    with pytest.raises(ValueError, match=r"no type of event is x\.y z"):
        check(replace(own, topic="x.y", type="z"))
    check(replace(ended, data=None))
    with pytest.raises(ValueError, match="duration_ms"):
        check(replace(ended, data={**json.loads(json.dumps(ENDED.data())), "duration_ms": "3"}))


def test_every_type_says_what_it_is() -> None:
    types = set(all_types().values())
    assert len(types) > 70
    for declared in types:
        assert (declared.__doc__ or "").strip(), declared
        assert declared.__doc__ != EventType.__doc__


def test_nothing_else_makes_events() -> None:
    made = set()
    for path in (REPOSITORY / "lightagentd").rglob("*.py"):
        if "NewEvent" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "NewEvent":
                made.add(str(path.relative_to(REPOSITORY / "lightagentd")))
    assert made == {"events/types/event_type.py", "events/types/tool.py"}
