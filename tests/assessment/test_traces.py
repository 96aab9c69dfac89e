"""A turn of the history as a case: its text is TOML that is read again, whatever the turn said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.assessment.cases import read_cases
from lightagentd.assessment.traces import case_of, toml
from lightagentd.errors import EventNotFound
from tests.conftest import write

NASTY = 'quotes " and """ and \\ and\nlines\r\x00\x7f\x1b[2J \ud800 ü 💾'


def event(topic: str, **data: Any) -> dict[str, Any]:
    return {"topic": topic, "data": data}


def asked(call_id: str, name: str, **args: Any) -> dict[str, Any]:
    return {"id": call_id, "name": name, "arguments": json.dumps(args)}


def turn(text: str = NASTY) -> list[dict[str, Any]]:
    calls = [asked("c1", "systemd_status", unit="nginx"), asked("c2", "file_read", path="/x", more=None)]
    done = {
        "function": "systemd_status",
        "tool": "systemd",
        "action": "status",
        "args": {"unit": "nginx.service"},
    }
    refused = {"function": "file_delete", "message": "no"}
    return [
        event("agent.prompt", text=f"how is it\n\n```log\n{text}\n```", question_chars=9),
        event("agent.message", role="assistant", content="", tool_calls=calls),
        event("agent.tool_dispatch", **done),
        event("agent.message", role="tool", content=text, tool_call_id="c1", name="systemd_status"),
        event("agent.tool_dispatch", **refused),
        event("agent.message", role="tool", content="no", tool_call_id="c2", name="file_read"),
        event("agent.message", role="assistant", content=f"It is fine. {text}"),
        {"topic": "session.turn", "data": None},
    ]


def test_a_turn_becomes_a_case_that_can_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "case.toml", case_of("trace_1", turn(), note=f"bad. {NASTY}"))
    (case,) = read_cases(path)
    assert (case.name, case.prompt) == ("trace_1", "how is it")
    assert "💾" in case.facts["given"]
    (must,) = case.calls.must
    assert (must.tool, must.action, must.args) == ("systemd", "status", {"unit": "nginx.service"})
    (stub,) = case.stub
    assert stub.output is not None
    assert stub.output.startswith('quotes " and """')
    lines = path.read_text().splitlines()
    assert "# It said: It is fine." in lines
    assert lines[1].startswith("# Rated: bad. quotes")


def test_a_turn_without_a_prompt_makes_no_case() -> None:
    with pytest.raises(EventNotFound, match="no prompt"):
        case_of("trace_1", [{"topic": "agent.prompt", "data": None}])


@pytest.mark.parametrize("value", [NASTY, {"a b": [1, 2.5, True, {"x": "y"}], "c": {}}, [], -3, False])
def test_values_are_written_as_toml(tmp_path: Path, value: Any) -> None:
    import tomllib

    found = tomllib.loads(f"x = {toml(value)}")["x"]
    assert found == (value.replace("\ud800", "?") if isinstance(value, str) else value)
