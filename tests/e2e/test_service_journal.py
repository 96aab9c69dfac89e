"""What journald gets from the daemon: every event of the history once, and nobody's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.events.journal.entry import GAP
from lightagentd.events.model import message_id

from .calls import shell
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, lactl_json_lines, show

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
    there = [int(entry["LIGHTAGENT_SEQ"]) for entry in entries]
    # A checkpoint may have come in between.
    assert there == [seq for seq in sorted(events) if seq <= there[-1]]
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


def test_journal_has_the_calls_of_a_tool(service: Machine) -> None:
    lactl(service, "tools", "call", "ops", "bash.exec", "command=id -u # xylophone")
    stored_in_journal(service)
    lines = service.run(
        ["journalctl", "-u", "lightagentd", "LIGHTAGENT_TOOL=bash", "-o", "json"]
    ).stdout.splitlines()
    intent, ended = [json.loads(line) for line in lines][-2:]
    assert (intent["LIGHTAGENT_TYPE"], intent["LIGHTAGENT_ACTION"]) == ("intent", "exec")
    assert "xylophone" not in "".join(lines)  # every agent reads the journal
    assert "xylophone" in lactl(service, "history", "--tool", "bash", "--json").stdout
    assert (ended["LIGHTAGENT_RESULT"], ended["PRIORITY"]) == ("ok", "6")
    assert ended["LIGHTAGENT_CALLER_UID"] == intent["LIGHTAGENT_CALLER_UID"] == "0"
    assert int(ended["LIGHTAGENT_DURATION_MS"]) >= 0


def test_a_refused_call_is_a_warning(service: Machine) -> None:
    lactl(service, "tools", "call", "ops", "file.write", "path=/etc/x", "content=x", check=False)
    stored_in_journal(service)
    found = service.journal("--unit", UNIT, "--priority=warning", "LIGHTAGENT_TYPE=refused")
    assert found[-1]["LIGHTAGENT_RESULT"] == "change_not_enabled"


def test_journalctl_explains_each_kind_of_entry(service: Machine) -> None:
    lactl(service, "prompt", "ops", "check memory")
    kinds = {entry["MESSAGE_ID"] for entry in stored_in_journal(service)}
    assert len(kinds) > 8
    out = service.run(["journalctl", "-x", "--no-hostname", "-u", UNIT, "-o", "with-unit"]).stdout
    subjects = {line.partition("Subject: ")[2] for line in out.splitlines() if "Subject: " in line}
    assert {
        "The agent ops was prompted",
        "ops is about to call skill.run",
        "skill.run ended with: ok",
        "lightagentd serves",
    } <= subjects
    assert [subject for subject in subjects if "LIGHTAGENT" in subject] == []
    assert "@LIGHTAGENT" not in out
    for kind in kinds:
        assert "Defined-By: lightagentd" in service.run(["journalctl", "--dump-catalog", kind]).stdout


def test_journald_drops_nothing_of_the_daemon_for_being_much(service: Machine) -> None:
    assert show(service, "LogRateLimitIntervalUSec") == {"LogRateLimitIntervalUSec": "0"}
    worker = service.run(["systemctl", "show", "-P", "LogRateLimitIntervalUSec", "lightagent-observe@07"])
    default = service.run(["systemctl", "show", "-P", "LogRateLimitIntervalUSec", "dbus"])
    assert worker.stdout == default.stdout


def journald_answers(machine: Machine) -> bool:
    return machine.run(["journalctl", "--sync"], check=False).status == 0


def test_nothing_is_lost_while_journald_restarts(service: Machine) -> None:
    before = lactl_json(service, "status")["journal_dropped"]
    for _ in range(2):
        service.run(["systemctl", "restart", "--no-block", "systemd-journald"])
        lactl(service, "tools", "call", "ops", "net.list_interfaces")
        eventually(lambda: journald_answers(service), "journald answers again")
    stored_in_journal(service)
    assert lactl_json(service, "status")["journal_dropped"] == before


JOURNALD = (
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
    "systemd-journald.service",
)


def test_journald_gone_and_back(service: Machine) -> None:
    """The last test of this module: from here on the journal lacks events."""
    change = "lightagent-change@ops.socket"
    service.run(["systemctl", "enable", "--now", change])
    shell(service, "true", "change")  # the approver is there
    stored_in_journal(service)
    before = lactl_json(service, "status")
    audit = "systemd-journald-audit.socket"
    service.run(["systemctl", "stop", audit, *reversed(JOURNALD)])
    try:
        lactl(service, "tools", "call", "ops", "net.list_interfaces")
        eventually(lambda: lactl_json(service, "status")["journal_dropped"], "events are missed")
        gone = lactl_json(service, "status")
        assert any("journald takes no events" in problem for problem in gone["problems"])
        assert gone["history"]["events"] > before["history"]["events"]
    finally:
        service.run(["systemctl", "start", *JOURNALD])
    gap = f"MESSAGE_ID={message_id(*GAP)}"
    eventually(lambda: service.journal("--unit", UNIT, gap), "the journal says what it lacks")
    lactl(service, "tools", "call", "ops", "net.list_interfaces")
    (found,) = service.journal("--unit", UNIT, gap)
    status = lactl_json(service, "status")
    first, last, count = (int(found[f"LIGHTAGENT_MISSING_{name}"]) for name in ("FROM", "TO", "COUNT"))
    assert count == status["journal_dropped"] - before["journal_dropped"] == last - first + 1

    def complete() -> bool:
        entries = service.journal("_SYSTEMD_UNIT=lightagentd.service")
        there = {int(entry["LIGHTAGENT_SEQ"]) for entry in entries if "LIGHTAGENT_SEQ" in entry}
        everything = {event["seq"] for event in lactl_json_lines(service, "events")}
        return everything - there == set(range(first, last + 1))

    eventually(complete, "the journal has all events but those that it says it lacks")
    service.run(["systemctl", "reload", UNIT])
    own = "lightagentd.daemon: reloaded: "
    eventually(
        lambda: [
            entry
            for entry in service.journal("--unit", UNIT, "CODE_FUNC=_reload_on")
            if str(entry["MESSAGE"]).startswith(own)
        ],
        "the daemon's own messages get through again",
    )
    granted = len(service.journal("--unit", "lightagent-approver"))
    shell(service, "true", "change")
    eventually(
        lambda: len(service.journal("--unit", "lightagent-approver")) >= granted + 2,
        "the records of the approver get through again",
    )
    service.run(["systemctl", "disable", "--now", change])
    lactl(service, "audit", "verify")
    explained = service.run(["journalctl", "-x", "-u", UNIT, gap]).stdout
    assert f"between the numbers {first} and {last}" in " ".join(explained.replace("░░", " ").split())
