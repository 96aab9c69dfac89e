"""`lactl top`: once in a pipe, and again and again on a terminal."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.cli.conftest import Lactl, environment
from tests.cli.terminal import Terminal
from tests.scripted_daemon import Connection, ScriptedDaemon, agent, event, status

BUDGET = {"scope": "day", "name": "2026-11-28", "what": "tokens", "used": 750.0, "limit": 1000.0}


def happened(seq: int, topic: str, kind: str, age_s: float = 1.0, **data: Any) -> dict[str, Any]:
    return event(seq, topic, kind, data=data) | {"time": time.time_ns() // 1000 - round(age_s * 1e6)}


@pytest.fixture
def busy(scripted: ScriptedDaemon) -> ScriptedDaemon:
    """A daemon with two agents, of which one has just worked."""
    used = {"prompt_tokens": 1200, "completion_tokens": 34}
    events = [
        happened(1, "agent.llm_response", "response", age_s=61.0, **used),
        happened(2, "agent.llm_response", "response", **used),
        happened(3, "tool.proc", "invocation", result="ok"),
        happened(4, "agent.error", "cancelled"),
        happened(5, "agent.error", "model_failed"),
        happened(6, "session.turn", "done"),
    ]

    def page(connection: Connection, call: dict[str, Any]) -> None:
        new = [] if "from_seq" in call["parameters"] else events
        connection.reply({"page": {"events": new, "next_seq": 0}}, continues=False)

    scripted.handle("History.Page", page)
    scripted.answer("Manager.GetStatus", {"status": status(problems=["Telemetry: it is away."])})
    scripted.answer("Agents.List", {"agents": [agent("idle", sessions=0), agent("ops", sessions=2)]})
    scripted.answer("Usage.Budgets", {"budgets": [BUDGET]})
    return scripted


def test_a_pipe_gets_it_once(busy: ScriptedDaemon, lactl: Lactl) -> None:
    assert lactl("top").out == "ops\trunning\t2\t1\t1\t1\t1234\t1\nidle\trunning\t0\t0\t0\t0\t0\t0\n"
    found = json.loads(lactl("top", "--json").out)
    assert found["agents"][0] == {
        "name": "ops",
        "state": "running",
        "sessions": 2,
        "turns": 1,
        "steps": 1,
        "calls": 1,
        "tokens": 1234,
        "errors": 1,
    }
    assert found["budgets"] == [BUDGET]


def test_a_terminal_gets_it_until_q(busy: ScriptedDaemon) -> None:
    with Terminal(["top", "--interval", "0.2"], env=environment(), columns=80) as terminal:
        terminal.until("2026-11-28")
        shown = terminal.screen.text
        assert all(part in shown for part in ("1,234", "75%", "problem: Telemetry: it is away.", "AGENT"))
        asked = [call for call in busy.calls if call["method"].endswith("History.Page")]
        assert "since_us" in asked[0]["parameters"]
        terminal.send("q")
        assert terminal.finished() == 0
    later = [call for call in busy.calls if call["method"].endswith("History.Page")][1:]
    assert all(call["parameters"]["from_seq"] == 7 for call in later)
