from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Lactl, start
from tests.scripted_daemon import Connection, ScriptedDaemon, event

STORED = [event(seq) for seq in range(1, 41) if seq not in (7, 8)]
"""Two events in the middle are another user's, whom the caller does not see."""

SESSION = "ses_0123456789abcdef"


def serve(scripted: ScriptedDaemon, stored: list[dict[str, Any]]) -> None:
    """Answer as the daemon does, from a list that may grow; a stream that follows ends when it is stopped."""

    def page(connection: Connection, call: dict[str, Any]) -> None:
        connection.reply({"page": {"events": stored[-call["parameters"]["limit"] :], "next_seq": 0}})

    def subscribe(connection: Connection, call: dict[str, Any]) -> None:
        wanted = call["parameters"]
        for each in [each for each in stored if each["seq"] >= wanted["from_seq"]]:
            if each["time"] >= wanted.get("since_us", 0):
                connection.reply({"event": each}, continues=True)
        if call["parameters"]["follow"]:
            connection.sock.recv(1)  # until somebody hangs up
        else:
            connection.reply({"event": None})

    scripted.handle("History.Page", page)
    scripted.handle("Events.Subscribe", subscribe)


def numbers(out: str) -> list[int]:
    return [int(line.split("\t")[0]) for line in out.splitlines()]


def test_without_follow_all_that_is_stored(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted, STORED)
    done = lactl("events", "--topic", "agent", "--agent", "ops", "--session", SESSION)
    assert numbers(done.out) == [each["seq"] for each in STORED]
    assert scripted.parameters("Events.Subscribe") == {
        "from_seq": 1,
        "follow": False,
        "topic": "agent",
        "agent": "ops",
        "session": SESSION,
    }


def test_since_a_number(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted, STORED)
    assert numbers(lactl("events", "--since", "38").out) == [38, 39, 40]


@pytest.mark.parametrize("first", [1, 2, 6, 9, 23, 40])
def test_since_a_time(scripted: ScriptedDaemon, lactl: Lactl, first: int) -> None:
    serve(scripted, STORED)
    whole, micros = divmod(event(first)["time"], 1_000_000)
    since = subprocess.check_output(["date", "-u", f"-d@{whole}", "+%Y-%m-%dT%H:%M:%SZ"], text=True).strip()
    assert micros == 0
    assert numbers(lactl("events", "--since", since).out)[0] == first


def test_since_a_time_in_the_future_is_nothing(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted, STORED)
    assert lactl("events", "--since", "2100-01-01").out == ""
    serve(scripted, [])
    assert lactl("events", "--since", "2000-01-01").out == ""


def test_follow_goes_on_after_a_restart_and_misses_none(scripted: ScriptedDaemon) -> None:
    stored = [event(1), event(2)]
    serve(scripted, stored)
    pipe = subprocess.PIPE
    with start(["events", "--follow", "--since", "2", "--json"], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = [json.loads(process.stdout.readline())["seq"]]
        scripted.stop()
        assert process.stderr.readline() == b"lactl: The daemon has stopped; waiting for it to come back.\n"
        stored += [event(3), event(4)]
        scripted.start()
        seen += [json.loads(process.stdout.readline())["seq"] for _ in range(2)]
        process.terminate()
    assert seen == [2, 3, 4]


def test_follow_without_since_begins_now_even_when_the_daemon_restarts_first(
    scripted: ScriptedDaemon,
) -> None:
    stored = [event(1), event(2)]
    serve(scripted, stored)
    asked = threading.Event()

    def subscribe(connection: Connection, call: dict[str, Any]) -> None:
        asked.set()
        connection.sock.recv(1)

    scripted.handle("Events.Subscribe", subscribe)
    pipe = subprocess.PIPE
    with start(["events", "-f"], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert asked.wait(60)
        scripted.stop()
        stored.append(event(3))
        serve(scripted, stored)
        scripted.start()
        assert process.stdout.readline().startswith(b"3\t")
        process.terminate()


def test_follow_asks_again_when_the_stream_ends(scripted: ScriptedDaemon) -> None:
    """A daemon that stops in order ends the stream with an empty event."""
    answers: list[list[dict[str, Any]]] = [
        [{"event": event(1)}, {"event": None}],
        [{"event": event(2)}],
    ]

    def subscribe(connection: Connection, call: dict[str, Any]) -> None:
        for reply in answers.pop(0):
            connection.reply(reply, continues=reply["event"] is not None)
        if not answers:
            connection.sock.recv(1)

    scripted.handle("Events.Subscribe", subscribe)
    with start(["events", "-f", "--since", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().split(b"\t")[0] for _ in range(2)] == [b"1", b"2"]
        process.terminate()
    assert [call["parameters"]["from_seq"] for call in scripted.calls] == [1, 2]


def test_follow_needs_a_daemon_to_begin_with(lactl: Lactl, tmp_path: Path) -> None:
    assert lactl("events", "-f", "--socket", str(tmp_path / "none.sock")).status == 69


def test_what_was_missed_is_told_beside_the_events(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    missed = {"count": 4, "first_seq": 1, "from_seq": 6}
    replies: list[dict[str, Any]] = [
        {"event": None, "missed": missed},
        {"event": event(6), "missed": None},
        {"event": None},
    ]
    scripted.answer("Events.Subscribe", *replies)
    done = lactl("events", "--max-lag", "100")
    assert scripted.parameters("Events.Subscribe")["max_lag"] == 100
    assert numbers(done.out) == [6]
    assert done.err.startswith("lactl: 4 events are left out of those from 1 to 5")
    out = lactl("events", "--json").out.splitlines()
    assert [json.loads(line) for line in out] == [{"missed": missed}, event(6)]


def test_history_goes_on_with_new_events(scripted: ScriptedDaemon) -> None:
    stored = [event(1), event(2), event(3)]
    serve(scripted, stored)
    pipe = subprocess.PIPE
    with start(["history", "--limit", "2", "-f"], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = [process.stdout.readline().split(b"\t")[0] for _ in range(2)]
        scripted.stop()
        assert process.stderr.readline() == b"lactl: The daemon has stopped; waiting for it to come back.\n"
        stored.append(event(4))
        scripted.start()
        seen.append(process.stdout.readline().split(b"\t")[0])
        process.terminate()
    assert seen == [b"2", b"3", b"4"]
