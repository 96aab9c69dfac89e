"""What journald gets from the daemon: every event of the history once, and nobody's words."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.events.journald import message_id

from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, lactl_json_lines

pytestmark = pytest.mark.e2e

JOURNAL_FIELDS = {
    "LIGHTAGENT_HASH": "hash",
    "LIGHTAGENT_TOPIC": "topic",
    "LIGHTAGENT_TYPE": "type",
    "LIGHTAGENT_AGENT": "agent",
    "LIGHTAGENT_SESSION": "session",
    "LIGHTAGENT_REQUEST_ID": "request_id",
    "LIGHTAGENT_TRACE_ID": "trace_id",
}
"""Fields of a journal entry, and where an event of `lactl events --json` has the same."""


def stored_in_journal(machine: Machine) -> list[dict[str, Any]]:
    """The entries of the daemon's own that stand for events, once there are as many as events."""
    found: list[dict[str, Any]] = []

    def complete() -> bool:
        entries = machine.journal("_SYSTEMD_UNIT=lightagentd.service")
        found[:] = [entry for entry in entries if "LIGHTAGENT_SEQ" in entry]
        return bool(len(found) >= lactl_json(machine, "status")["history"]["events"])

    eventually(complete, "all events are in the journal")
    return found


def test_journal_has_every_event_of_the_history_once(service: Machine) -> None:
    lactl(service, "prompt", "ops", "check memory")
    entries = stored_in_journal(service)
    events = {event["seq"]: event for event in lactl_json_lines(service, "events")}
    assert [int(entry["LIGHTAGENT_SEQ"]) for entry in entries] == sorted(events)
    for entry in entries:
        event = events[int(entry["LIGHTAGENT_SEQ"])]
        expected = {field: event[key] for field, key in JOURNAL_FIELDS.items() if event[key]}
        assert {field: entry.get(field) for field in expected} == expected
        assert entry["MESSAGE_ID"] == message_id(event["topic"], event["type"])


def test_journal_finds_the_turn_of_an_agent_by_its_field(service: Machine) -> None:
    turn = lactl_json_lines(service, "prompt", "ops", "check memory")[-1]
    stored_in_journal(service)
    entries = service.journal(
        "--unit", UNIT, "LIGHTAGENT_AGENT=ops", f"LIGHTAGENT_TRACE_ID={turn['trace_id']}"
    )
    hashes = {entry["LIGHTAGENT_SEQ"]: entry["LIGHTAGENT_HASH"] for entry in entries}
    history = lactl_json_lines(service, "history", "--agent=ops", f"--trace={turn['trace_id']}")
    assert hashes == {str(event["seq"]): event["hash"] for event in history}
    assert {"agent.prompt", "tool.skill"} <= {entry["LIGHTAGENT_TOPIC"] for entry in entries}


def test_journal_has_neither_prompt_nor_report(service: Machine) -> None:
    prompt = "check disk, dear xylophone"
    report = lactl(service, "prompt", "ops", "--new", prompt).stdout
    stored_in_journal(service)
    logged = "\n".join(str(value) for entry in service.journal("--unit", UNIT) for value in entry.values())
    parts = [prompt, "xylophone", *(line for line in report.splitlines() if len(line) > 20)]
    assert len(parts) > 4
    assert [part for part in parts if part in logged] == []
