"""The journald sink: what each kind of event says there, and a journal that is slow, stuck or refuses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.events import journald
from lightagentd.events.journald import JournaldSink, journal_fields, message_id
from lightagentd.events.model import GENESIS, Event, NewEvent, encode, within
from lightagentd.events.redaction import Redactor
from tests.conftest import REPOSITORY

CALL = {
    "call_id": "call_1",
    "function": "systemd_restart",
    "tool": "systemd",
    "action": "restart",
    "effect": "change",
    "args": {"unit": "nginx.service"},
    "decision": "allow",
    "rule": "admin",
}
SECRET_TEXT = "the content of somebody's conversation"


def stored(
    topic: str, event_type: str, data: dict[str, Any], *, source: str = "agent", seq: int = 7
) -> Event:
    """An event as the history gives it to the sink."""
    with within(agent="ops", session="ses_1", owner=1000, request_id="req_1", trace_id="trace_1"):
        new = NewEvent(topic=topic, type=event_type, data=data, source=source)
    return encode(new, seq, GENESIS, Redactor())[1]


class JournalSocket:
    """A datagram socket that takes the journal's native protocol, in a form that is easy to read back."""

    def __init__(self, path: Path) -> None:
        self._receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.bind(str(path))
        self._receiver.settimeout(20)
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.connect(str(path))

    def send(self, message: str, **fields: str) -> None:
        self._sender.send(json.dumps({"MESSAGE": message, **fields}).encode())

    def receive(self) -> dict[str, str]:
        entry: dict[str, str] = json.loads(self._receiver.recv(1 << 20))
        return entry

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalSocket]:
    found = JournalSocket(tmp_path / "journal")
    yield found
    found.close()


def test_every_event_has_its_number_hash_and_where_it_belongs() -> None:
    event = stored("agent.prompt", "prompt", {"text": SECRET_TEXT})
    assert journal_fields(event) == {
        "MESSAGE": "ops: agent.prompt prompt",
        "MESSAGE_ID": message_id("agent.prompt", "prompt"),
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "lightagentd",
        "LIGHTAGENT_SEQ": "7",
        "LIGHTAGENT_HASH": event.hash,
        "LIGHTAGENT_TOPIC": "agent.prompt",
        "LIGHTAGENT_TYPE": "prompt",
        "LIGHTAGENT_AGENT": "ops",
        "LIGHTAGENT_SESSION": "ses_1",
        "LIGHTAGENT_CALLER_UID": "1000",
        "LIGHTAGENT_REQUEST_ID": "req_1",
        "LIGHTAGENT_TRACE_ID": "trace_1",
    }


@pytest.mark.parametrize(
    ("event", "message", "fields"),
    [
        (
            stored("agent.tool_dispatch", "intent", CALL),
            'ops: intent systemd.restart {"unit":"nginx.service"}',
            {"DECISION": "allow", "EFFECT": "change", "ARGS": '{"unit":"nginx.service"}'},
        ),
        (
            stored(
                "tool.systemd",
                "invocation",
                {
                    "tool": "systemd",
                    "action": "restart",
                    "result": "ok",
                    "duration_ms": 12,
                    "metadata": SECRET_TEXT,
                },
                source="worker",
            ),
            "ops: systemd.restart ok in 12 ms",
            {"RESULT": "ok", "DURATION_MS": "12", "TOOL": "systemd", "ACTION": "restart"},
        ),
        (
            stored("agent.tool_dispatch", "refused", {**CALL, "decision": "deny"}),
            'ops: refused systemd.restart {"unit":"nginx.service"}',
            {"DECISION": "deny"},
        ),
        (
            stored("agent.error", "model_unreachable", {"code": "x", "message": "No answer."}),
            "ops: model_unreachable: No answer.",
            {},
        ),
        (stored("daemon.state", "ready", {"message": "serving"}), "ops: ready: serving", {}),
        (stored("daemon.state", "stopped", {}), "ops: stopped", {}),
    ],
    ids=["intent", "invocation", "refused", "error", "daemon", "stopped"],
)
def test_the_message_says_what_happened(event: Event, message: str, fields: dict[str, str]) -> None:
    found = journal_fields(event)
    assert found["MESSAGE"] == message
    assert fields.items() <= {key.removeprefix("LIGHTAGENT_"): value for key, value in found.items()}.items()


@pytest.mark.parametrize(
    "event",
    [
        stored("agent.prompt", "prompt", {"text": SECRET_TEXT}),
        stored("agent.message", "message", {"role": "user", "content": SECRET_TEXT}),
        stored("agent.message", "message", {"role": "tool", "content": SECRET_TEXT, "name": "bash_exec"}),
        stored("agent.llm_response", "response", {"model": "m", "text": SECRET_TEXT}),
        stored("session.created", "created", {"title": SECRET_TEXT}),
        stored(
            "tool.bash",
            "invocation",
            {**CALL, "result": "ok", "output": SECRET_TEXT, "metadata": SECRET_TEXT},
        ),
        stored(
            "tool.inotify.event", "fs_event", {"name": SECRET_TEXT, "message": SECRET_TEXT}, source="tool"
        ),
        stored("tool.x", "invocation", {**CALL, "args": SECRET_TEXT, "result": SECRET_TEXT}, source="tool"),
    ],
    ids=lambda event: f"{event.topic}-{event.source}",
)
def test_no_content_of_prompts_messages_and_output_is_in_the_journal(event: Event) -> None:
    assert SECRET_TEXT not in json.dumps(journal_fields(event))


def test_a_tool_cannot_write_the_fields_of_a_call() -> None:
    found = journal_fields(stored("tool.x", "invocation", {**CALL, "result": "ok"}, source="tool"))
    assert found["MESSAGE"] == "ops: tool.x invocation"
    assert (
        not {"LIGHTAGENT_TOOL", "LIGHTAGENT_DECISION", "LIGHTAGENT_ARGS", "LIGHTAGENT_RESULT"} & found.keys()
    )


def test_errors_have_a_higher_priority() -> None:
    assert journal_fields(stored("agent.error", "timeout", {}))["PRIORITY"] == "3"
    assert journal_fields(stored("agent.message", "message", {}))["PRIORITY"] == "6"


def test_an_event_whose_data_was_deleted_has_fields() -> None:
    event = stored("agent.message", "message", {"a": 1})
    object.__setattr__(event, "data", None)
    assert journal_fields(event)["LIGHTAGENT_SEQ"] == "7"


def test_huge_arguments_are_cut_and_say_their_size_and_hash() -> None:
    found = journal_fields(
        stored("agent.tool_dispatch", "intent", {**CALL, "args": {"content": "ü" * 100_000}})
    )
    for name in ("LIGHTAGENT_ARGS", "MESSAGE"):
        assert len(found[name].encode()) < 4200
        assert "(200014 bytes, sha256 " in found[name]
    assert found["LIGHTAGENT_ARGS"].startswith('{"content":"üüü')


def test_every_field_has_a_bound_and_can_be_sent_whatever_a_model_writes() -> None:
    wild = {**CALL, "tool": "\ud800" * 9, "action": "a" * 100_000, "result": "\udcff", "decision": "x\ny"}
    for event in (
        stored("agent.tool_dispatch", "refused", wild),
        stored("agent.error", "x", {"message": "\udc00"}),
    ):
        for value in journal_fields(event).values():
            value.encode()
            assert len(value) < 150_000


def test_message_ids_are_fixed_and_one_for_all_invocations() -> None:
    # The catalog in packaging/ names them: they never change.
    assert message_id("tool.bash", "invocation") == message_id("tool.file", "invocation")
    assert message_id("tool.bash", "invocation") == "59b97c96fdc0597d81d25ba5350912c0"
    assert message_id("agent.prompt", "prompt") == "6790ecc8b7e25e93b658fe8a7d467a12"
    assert message_id("agent.error", "timeout") != message_id("agent.error", "cancelled")


def test_events_arrive_in_order_over_a_socket(journal: JournalSocket) -> None:
    sink = JournaldSink()
    sink.start(journal.send)
    for seq in range(1, 101):
        sink.send(stored("agent.tool_dispatch", "intent", CALL, seq=seq))
        entry = journal.receive()
        assert (entry["LIGHTAGENT_SEQ"], entry["LIGHTAGENT_TOOL"]) == (str(seq), "systemd")
        assert entry["MESSAGE"].startswith("ops: intent")
    sink.close()
    assert sink.dropped == 0


def test_closing_sends_what_waits(journal: JournalSocket) -> None:
    sink = JournaldSink()
    for seq in range(1, 6):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    sink.start(journal.send)
    sink.close(20)
    assert [journal.receive()["LIGHTAGENT_SEQ"] for _ in range(5)] == ["1", "2", "3", "4", "5"]


def test_what_overflows_the_queue_is_dropped_and_counted(
    journal: JournalSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journald, "QUEUE_LIMIT", 3)
    sink = JournaldSink()
    for seq in range(1, 11):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    assert sink.dropped == 7
    sink.start(journal.send)
    assert [journal.receive()["LIGHTAGENT_SEQ"] for _ in range(3)] == ["1", "2", "3"]
    sink.close(20)
    assert sink.dropped == 7


def test_a_stuck_journal_delays_neither_sending_nor_closing_and_is_counted() -> None:
    release, stuck = threading.Event(), threading.Event()

    def send(message: str, **fields: str) -> None:
        stuck.set()
        release.wait(20)

    sink = JournaldSink()
    sink.start(send)
    for seq in range(1, 11):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    assert stuck.wait(20)
    sink.close(timeout_s=0.05)
    assert sink.dropped == 10
    release.set()
    for thread in threading.enumerate():
        if thread.name == "journald":
            thread.join(20)
            assert not thread.is_alive()


def test_a_journal_that_refuses_is_counted_and_later_events_get_through(
    journal: JournalSocket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def send(message: str, **fields: str) -> None:
        if fields["LIGHTAGENT_SEQ"] in ("1", "2"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody:
                nobody.connect(str(tmp_path / "nothing-listens"))
        journal.send(message, **fields)

    sink = JournaldSink()
    sink.start(send)
    for seq in (1, 2, 3):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    assert journal.receive()["LIGHTAGENT_SEQ"] == "3"
    sink.close(20)
    assert sink.dropped == 2
    assert len(caplog.records) == 1


@pytest.mark.skipif(JournaldSink.available(), reason="it would write into this machine's journal")
def test_the_real_library_takes_all_fields() -> None:
    # In a process of its own: libsystemd keeps its socket open.
    program = (
        "from lightagentd.events.journald import JournaldSink\n"
        "from tests.events.test_journald import CALL, stored\n"
        "sink = JournaldSink()\n"
        "sink.start()\n"
        "sink.send(stored('agent.tool_dispatch', 'intent', {**CALL, 'tool': '\\ud800'}))\n"
        "sink.close(20)\n"
        "print(sink.dropped)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
