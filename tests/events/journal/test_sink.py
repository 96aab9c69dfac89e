"""The journald sink: what each kind of event says there, and a journal that is slow, stuck or refuses."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.events.journal import sink as journald
from lightagentd.events.journal.entry import journal_fields
from lightagentd.events.journal.journal_socket import JournalSocket
from lightagentd.events.journal.mark import JournalMark
from lightagentd.events.journal.sink import JournaldSink
from lightagentd.events.model import GENESIS, Event, NewEvent, encode, message_id, within
from lightagentd.events.types.agent import Prompted
from lightagentd.host.paths import Paths
from lightagentd.redaction import Redactor

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
SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
SECRET_TEXT = "the content of somebody's conversation"


def stored(
    topic: str, event_type: str, data: dict[str, Any], *, source: str = "agent", seq: int = 7
) -> Event:
    """An event as the history gives it to the sink, on the word of the uid 1000."""
    with within(agent="ops", session="ses_1", owner=0, caller=1000, request_id="req_1", trace_id="trace_1"):
        new = NewEvent(topic=topic, type=event_type, data=data, source=source)
    return encode(new, seq, GENESIS, Redactor())[1]


class Journal:
    """Plays journald: a datagram socket that takes its native protocol and sealed files in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(20)

    def receive(self) -> dict[str, str]:
        data, rights, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_LEN(4))
        for _, _, fd in rights:
            with os.fdopen(int.from_bytes(fd, sys.byteorder), "rb") as file:
                seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
                # journald refuses a file that the sender could still change.
                assert seals == SEALED
                file.seek(0)
                data = file.read()
        return decoded(data)

    def close(self) -> None:
        """Be gone: who sends now is refused."""
        self._socket.close()
        self.path.unlink()


def decoded(data: bytes) -> dict[str, str]:
    """The fields of an entry in the native protocol."""
    fields: dict[str, str] = {}
    while data:
        name, _, rest = data.partition(b"\n")
        if b"=" in name:
            name, _, value = name.partition(b"=")
        else:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[8 + size + 1 :]
        fields[name.decode()] = value.decode()
        data = rest
    return fields


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "journal")
    yield found
    if found.path.exists():
        found.close()


@pytest.fixture
def sink(journal: Journal) -> Iterator[JournaldSink]:
    """A sink towards the journal, not yet started."""
    found = JournaldSink(journal.path)
    yield found
    found.close(20)


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
            "ops: intent systemd.restart",
            {"DECISION": "allow", "EFFECT": "change"},
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
            "ops: refused systemd.restart",
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
        stored("agent.tool_dispatch", "intent", {**CALL, "args": {"command": SECRET_TEXT}}),
        stored("agent.tool_dispatch", "refused", {**CALL, "args": {"command": SECRET_TEXT}}),
        stored("approval.requested", "requested", {**CALL, "args": {"content": SECRET_TEXT}, "digest": "00"}),
    ],
    ids=lambda event: f"{event.topic}-{event.source}",
)
def test_no_arguments_and_no_content_of_prompts_messages_and_output_is_in_the_journal(event: Event) -> None:
    assert SECRET_TEXT not in json.dumps(journal_fields(event))


def test_a_tool_cannot_write_the_fields_of_a_call() -> None:
    found = journal_fields(stored("tool.x", "invocation", {**CALL, "result": "ok"}, source="tool"))
    assert found["MESSAGE"] == "ops: tool.x invocation"
    assert (
        not {"LIGHTAGENT_TOOL", "LIGHTAGENT_DECISION", "LIGHTAGENT_ARGS", "LIGHTAGENT_RESULT"} & found.keys()
    )


@pytest.mark.parametrize(
    ("topic", "event_type", "data", "priority"),
    [
        ("agent.error", "timeout", {}, "3"),
        ("agent.error", "cancelled", {}, "5"),
        ("agent.error", "fallback", {}, "4"),
        ("agent.message", "message", {}, "6"),
        ("agent.tool_dispatch", "intent", CALL, "6"),
        ("agent.tool_dispatch", "refused", CALL, "4"),
        ("tool.bash", "invocation", {**CALL, "result": "ok"}, "6"),
        ("tool.bash", "invocation", {**CALL, "result": "tool_failed"}, "4"),
        ("approval.requested", "requested", CALL, "5"),
        ("approval.granted", "granted", CALL, "6"),
        ("approval.denied", "denied", CALL, "4"),
        ("daemon.state", "panic", {"by": 0}, "4"),
        ("daemon.state", "ready", {}, "6"),
        ("daemon.state", "sandbox", {"enforced": True}, "6"),
        ("daemon.state", "sandbox", {"enforced": False}, "4"),
        ("daemon.agent", "failed", {}, "3"),
        ("daemon.doctor", "examined", {"not_held": []}, "6"),
        ("daemon.doctor", "examined", {"not_held": ["raw sockets"]}, "4"),
        ("policy.rules", "broken", {}, "3"),
    ],
)
def test_the_priority_goes_by_the_kind_of_event(
    topic: str, event_type: str, data: dict[str, Any], priority: str
) -> None:
    assert journal_fields(stored(topic, event_type, data))["PRIORITY"] == priority


def test_a_tool_cannot_raise_an_alarm_in_the_name_of_the_daemon() -> None:
    found = journal_fields(stored("tool.x", "invocation", {"result": "failed", "by": 0}, source="tool"))
    assert (found["PRIORITY"], found["LIGHTAGENT_CALLER_UID"]) == ("6", "1000")


def test_the_caller_is_the_one_on_whose_word_it_happened_and_not_the_owner() -> None:
    granted = stored("approval.granted", "granted", {**CALL, "approval": "apr_1", "answered_by": 1000})
    assert journal_fields(granted)["LIGHTAGENT_CALLER_UID"] == "1000"
    assert journal_fields(granted)["MESSAGE"].startswith("ops: granted approval apr_1: systemd.restart")
    own = replace(granted, caller=None)
    assert "LIGHTAGENT_CALLER_UID" not in journal_fields(own)
    assert journal_fields(replace(granted, caller=0))["LIGHTAGENT_CALLER_UID"] == "0"


def test_a_turn_that_failed_has_the_error_as_its_result() -> None:
    found = journal_fields(stored("agent.error", "timeout", {"code": "timeout"}))
    assert found["LIGHTAGENT_RESULT"] == "timeout"


def test_content_is_in_the_journal_only_where_the_configuration_wants_it() -> None:
    event = stored("agent.message", "message", {"role": "user", "content": SECRET_TEXT})
    assert "LIGHTAGENT_CONTENT" not in journal_fields(event)
    found = journal_fields(event, content=True)
    assert json.loads(found["LIGHTAGENT_CONTENT"]) == event.data
    assert SECRET_TEXT not in found["MESSAGE"]


def test_what_steers_a_terminal_is_escaped_in_every_field() -> None:
    wild = "a\x1b[2J\nMESSAGE=forged\0\u202e\x85z"
    event = stored("agent.error", "timeout", {"message": wild, "code": wild})
    escaped = "a\\x1b[2J\\x0aMESSAGE=forged\\x00\\u202e\\x85z"
    found = journal_fields(event)
    assert found["MESSAGE"] == f"ops: timeout: {escaped}"
    assert found["LIGHTAGENT_RESULT"] == escaped


def test_an_event_whose_data_was_deleted_has_fields() -> None:
    event = stored("agent.message", "message", {"a": 1})
    object.__setattr__(event, "data", None)
    assert journal_fields(event)["LIGHTAGENT_SEQ"] == "7"


def test_huge_arguments_are_cut_and_say_their_size_and_hash() -> None:
    found = journal_fields(
        stored("agent.tool_dispatch", "intent", {**CALL, "args": {"content": "ü" * 100_000}}), content=True
    )
    assert len(found["LIGHTAGENT_ARGS"].encode()) < 4200
    assert "(200014 bytes, sha256 " in found["LIGHTAGENT_ARGS"]
    assert found["LIGHTAGENT_ARGS"].startswith('{"content":"üüü')


def test_every_field_has_a_bound_and_can_be_sent_whatever_a_model_writes() -> None:
    wild = {**CALL, "tool": "\ud800" * 9, "action": "a" * 100_000, "result": "\udcff", "decision": "x\ny"}
    for event in (
        stored("agent.tool_dispatch", "refused", wild),
        stored("agent.error", "timeout", {"message": "\udc00"}),
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


def test_events_arrive_in_order_over_a_socket(journal: Journal, sink: JournaldSink) -> None:
    sink.start()
    for seq in range(1, 101):
        sink.send(stored("agent.tool_dispatch", "intent", CALL, seq=seq))
        entry = journal.receive()
        assert (entry["LIGHTAGENT_SEQ"], entry["LIGHTAGENT_TOOL"]) == (str(seq), "systemd")
        assert entry["MESSAGE"].startswith("ops: intent")
    assert (sink.dropped, sink.problem()) == (0, "")


def test_ten_thousand_events_at_once_arrive_whole(journal: Journal, sink: JournaldSink) -> None:
    event = stored("agent.prompt", "prompt", {})
    for _ in range(10_000):
        sink.send(event)
    sink.start()
    for _ in range(10_000):
        assert journal.receive()["LIGHTAGENT_HASH"] == event.hash
    assert sink.dropped == 0


def test_closing_sends_what_waits(journal: Journal, sink: JournaldSink) -> None:
    for seq in range(1, 6):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    sink.start()
    sink.close(20)
    assert [journal.receive()["LIGHTAGENT_SEQ"] for _ in range(5)] == ["1", "2", "3", "4", "5"]


def test_values_with_newlines_and_huge_ones_arrive_whole(journal: Journal, tmp_path: Path) -> None:
    sender = JournalSocket(journal.path)
    fields = {"MESSAGE": "two\nlines=\n", "LIGHTAGENT_X": "a=b\0c", "LIGHTAGENT_HUGE": "ü\n" * 4_000_000}
    sender.send(fields)
    sender.close()
    assert journal.receive() == fields


def test_huge_content_goes_as_a_file_in_memory_and_says_what_was_cut(journal: Journal) -> None:
    sink = JournaldSink(journal.path, content=True)
    sink.start()
    sink.send(stored("agent.message", "message", {"role": "tool", "content": "x" * 1_000_000}))
    found = journal.receive()["LIGHTAGENT_CONTENT"]
    sink.close(20)
    assert len(found) < (256 << 10) + 100
    assert "(1000028 bytes, sha256 " in found
    assert sink.dropped == 0


def test_what_overflows_the_queue_is_counted_and_the_journal_says_what_it_lacks(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journald, "QUEUE_LIMIT", 3)
    sink = JournaldSink(journal.path)
    for seq in range(1, 11):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    assert sink.dropped == 7
    sink.start()
    assert [journal.receive()["LIGHTAGENT_SEQ"] for _ in range(3)] == ["1", "2", "3"]
    sink.close(20)
    assert missing(journal.receive()) == ("4", "10", "7")
    assert sink.dropped == 7
    assert "did not take 7 events" in sink.problem()


def missing(entry: dict[str, str]) -> tuple[str, str, str]:
    """From where to where the journal lacks events, and how many, as an entry says."""
    assert entry["MESSAGE_ID"] == message_id("daemon.journal", "gap")
    assert "LIGHTAGENT_SEQ" not in entry
    return (
        entry["LIGHTAGENT_MISSING_FROM"],
        entry["LIGHTAGENT_MISSING_TO"],
        entry["LIGHTAGENT_MISSING_COUNT"],
    )


def test_a_stuck_journal_delays_neither_sending_nor_closing_and_is_counted(
    journal: Journal, sink: JournaldSink
) -> None:
    # Nobody reads: the kernel takes a few entries, then the thread waits in sendto(2).
    sink.start()
    with Path("/proc/sys/net/unix/max_dgram_qlen").open() as file:
        room = int(file.read())
    for seq in range(1, 2 * room + 101):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    until(lambda: sink._queue.qsize() <= room + 100)
    sink.close(timeout_s=0.05)
    taken = 2 * room + 100 - sink.dropped
    assert 0 < taken <= room + 1
    assert [journal.receive()["LIGHTAGENT_SEQ"] for _ in range(taken)][-1] == str(taken)
    journal.close()
    for thread in threading.enumerate():
        if thread.name == "journald":
            thread.join(20)
            assert not thread.is_alive()


def test_a_journal_that_does_not_keep_up_is_a_problem_before_anything_is_lost(
    sink: JournaldSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journald, "_SLOW", 2)
    for seq in (1, 2):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    assert "2 events wait" in sink.problem()


def test_a_journal_that_went_away_and_came_back_is_told_what_it_lacks_before_the_next_event(
    journal: Journal, sink: JournaldSink, caplog: pytest.LogCaptureFixture
) -> None:
    sink.start()
    sink.send(stored("agent.prompt", "prompt", {}, seq=1))
    assert journal.receive()["LIGHTAGENT_SEQ"] == "1"
    journal.close()
    for seq in (2, 3, 4):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    until(lambda: sink.dropped == 3)
    assert "journald takes no events" in sink.problem()
    assert "3 are in the history alone" in sink.problem()
    back = Journal(journal.path)
    sink.send(stored("agent.prompt", "prompt", {}, seq=5))
    assert missing(back.receive()) == ("2", "4", "3")
    assert back.receive()["LIGHTAGENT_SEQ"] == "5"
    until(lambda: "did not take 3 events; the history has them" in sink.problem())
    sink.close(20)
    assert sink.dropped == 3
    assert len([one for one in caplog.records if "does not take events" in one.message]) == 1
    back.close()


def test_a_journal_that_came_back_is_told_although_nothing_happens(
    journal: Journal, sink: JournaldSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journald, "RETRY_S", 0.02)
    journal.close()
    sink.start()
    sink.send(stored("agent.prompt", "prompt", {}, seq=8))
    until(lambda: sink.dropped == 1)
    back = Journal(journal.path)
    assert missing(back.receive()) == ("8", "8", "1")
    sink.close(20)
    back.close()


def test_a_gap_that_grows_is_told_once(journal: Journal, sink: JournaldSink) -> None:
    journal.close()
    sink.start()
    for seq in range(1, 51):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
        until(lambda: sink.dropped == seq)  # noqa: B023 - used at once
    back = Journal(journal.path)
    sink.close(20)
    assert missing(back.receive()) == ("1", "50", "50")
    back._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        back.receive()
    back.close()


def test_a_gap_that_cannot_be_told_before_the_end_is_told_after_the_next_start(
    journal: Journal, tmp_path: Path
) -> None:
    kept = tmp_path / "gap.json"
    journal.close()
    first = JournaldSink(journal.path, gap_file=kept)
    first.start()
    for seq in (5, 6, 7):
        first.send(stored("agent.prompt", "prompt", {}, seq=seq))
    first.close(20)
    assert kept.exists()
    back = Journal(journal.path)
    second = JournaldSink(journal.path, gap_file=kept)
    second.start()
    second.send(stored("agent.prompt", "prompt", {}, seq=8))
    assert missing(back.receive()) == ("5", "7", "3")
    assert back.receive()["LIGHTAGENT_SEQ"] == "8"
    second.close(20)
    assert not kept.exists()
    back.close()


def test_what_a_stuck_journal_held_is_told_after_the_next_start(journal: Journal, tmp_path: Path) -> None:
    kept = tmp_path / "gap.json"
    sink = JournaldSink(journal.path, gap_file=kept)
    sink.start()
    room = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    for seq in range(1, room + 101):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    until(lambda: sink._queue.qsize() < 100)
    sink.close(timeout_s=0.05)
    found = json.loads(kept.read_text())
    assert (found["last_seq"], found["count"]) == (room + 100, sink.dropped)
    assert found["first_seq"] == room + 100 - sink.dropped + 1
    journal.close()
    for thread in threading.enumerate():
        if thread.name == "journald":
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"first_seq": "x"}'])
def test_a_damaged_file_of_a_gap_stops_nothing(journal: Journal, tmp_path: Path, content: str) -> None:
    kept = tmp_path / "gap.json"
    kept.write_text(content)
    sink = JournaldSink(journal.path, gap_file=kept)
    sink.start()
    sink.send(stored("agent.prompt", "prompt", {}, seq=8))
    assert journal.receive()["LIGHTAGENT_SEQ"] == "8"
    sink.close(20)


def test_what_a_killed_daemon_had_not_sent_is_told_after_the_next_start(
    journal: Journal, tmp_path: Path
) -> None:
    mark, copy = tmp_path / "sent", tmp_path / "copy"
    killed = JournaldSink(journal.path, mark_file=mark)
    killed.start()
    for seq in (1, 2, 3):
        killed.send(stored("agent.prompt", "prompt", {}, seq=seq))
        assert journal.receive()["LIGHTAGENT_SEQ"] == str(seq)
    until(lambda: JournalMark.kept(mark) == 3)
    shutil.copy(mark, copy)  # as a process that is killed leaves it
    killed.close(20)
    second = JournaldSink(journal.path, mark_file=copy)
    second.start()
    second.send(stored("agent.prompt", "prompt", {}, seq=9))
    assert missing(journal.receive()) == ("4", "8", "5")
    assert journal.receive()["LIGHTAGENT_SEQ"] == "9"
    second.close(20)
    third = JournaldSink(journal.path, mark_file=copy)
    third.start()
    third.send(stored("agent.prompt", "prompt", {}, seq=10))
    assert journal.receive()["LIGHTAGENT_SEQ"] == "10"
    third.close(20)


def test_a_gap_that_was_not_told_before_a_kill_is_told_after_the_next_start(
    journal: Journal, tmp_path: Path
) -> None:
    mark, copy = tmp_path / "sent", tmp_path / "copy"
    killed = JournaldSink(journal.path, mark_file=mark)
    killed.start()
    killed.send(stored("agent.prompt", "prompt", {}, seq=1))
    journal.receive()
    until(lambda: JournalMark.kept(mark) == 1)
    journal.close()
    for seq in (2, 3):
        killed.send(stored("agent.prompt", "prompt", {}, seq=seq))
    until(lambda: killed.dropped == 2)
    shutil.copy(mark, copy)
    killed.close(20)
    back = Journal(journal.path)
    second = JournaldSink(journal.path, mark_file=copy)
    second.start()
    second.send(stored("agent.prompt", "prompt", {}, seq=4))
    assert missing(back.receive()) == ("2", "3", "2")
    assert back.receive()["LIGHTAGENT_SEQ"] == "4"
    second.close(20)
    back.close()


def test_the_mark_stays_where_it_is_while_a_gap_is_to_be_told(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journald, "QUEUE_LIMIT", 2)
    monkeypatch.setattr(journald, "RETRY_S", 0.02)
    sink = JournaldSink(journal.path, mark_file=tmp_path / "sent")
    for seq in (1, 2, 3, 4):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    assert sink.dropped == 2
    sink.start()
    assert [journal.receive()["LIGHTAGENT_SEQ"] for _ in range(2)] == ["1", "2"]
    assert missing(journal.receive()) == ("3", "4", "2")
    assert JournalMark.kept(tmp_path / "sent") is None
    sink.send(stored("agent.prompt", "prompt", {}, seq=5))
    assert journal.receive()["LIGHTAGENT_SEQ"] == "5"
    until(lambda: JournalMark.kept(tmp_path / "sent") == 5)
    sink.close(20)


@pytest.mark.parametrize("first_seq", [1, 500])
def test_nothing_is_said_where_it_is_not_known_what_was_sent(
    journal: Journal, tmp_path: Path, first_seq: int
) -> None:
    sink = JournaldSink(journal.path, mark_file=tmp_path / "sent")
    sink.start()
    sink.send(stored("agent.prompt", "prompt", {}, seq=first_seq))
    assert journal.receive()["LIGHTAGENT_SEQ"] == str(first_seq)
    sink.close(20)
    assert JournalMark.kept(tmp_path / "sent") == first_seq


def test_a_history_that_was_put_back_is_no_gap(journal: Journal, tmp_path: Path) -> None:
    for seq in (500, 30, 31):
        sink = JournaldSink(journal.path, mark_file=tmp_path / "sent")
        sink.start()
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
        assert journal.receive()["LIGHTAGENT_SEQ"] == str(seq)
        sink.close(20)


@pytest.mark.parametrize("how", ["folder", "link", "short", "junk"])
def test_a_damaged_mark_stops_nothing(journal: Journal, tmp_path: Path, how: str) -> None:
    mark = tmp_path / "sent"
    if how == "folder":
        mark.mkdir()
    elif how == "link":
        mark.symlink_to(tmp_path / "elsewhere")
    else:
        mark.write_bytes(b"\x01" if how == "short" else b"\xff" * 20)
    sink = JournaldSink(journal.path, mark_file=mark)
    sink.start()
    for seq in (8, 9):
        sink.send(stored("agent.prompt", "prompt", {}, seq=seq))
    taken = [journal.receive()]
    while taken[-1].get("LIGHTAGENT_SEQ") != "9":
        taken.append(journal.receive())
    sink.close(20)
    assert not (tmp_path / "elsewhere").exists()


def test_journald_is_there_when_only_its_socket_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journald, "SOCKET", tmp_path / "socket")
    monkeypatch.setattr(journald, "BOOTED", tmp_path / "system")
    assert not JournaldSink.available()
    (tmp_path / "system").mkdir()
    assert JournaldSink.available()


async def test_a_daemon_without_its_journal_says_so_and_the_history_has_everything(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    for name in ("SOCKET", "BOOTED"):
        monkeypatch.setattr(journald, name, journal.path)
    monkeypatch.setattr(JournaldSink.__init__, "__defaults__", (journal.path,))
    async with Daemon(paths) as daemon:
        journal.close()
        await daemon.history.append(Prompted(text="check disk").event())
        await asyncio.to_thread(until, lambda: daemon.now.journal and daemon.now.journal.dropped)
        assert [one for one in daemon.problems() if "journald takes no events" in one]
        assert daemon.history.head_seq > 1
