"""`lactl audit list`: who did what."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from lightagentd.host.users import called
from tests.cli.conftest import Lactl, environment, on_terminal, start
from tests.cli.test_trace import CALL, TURN, at
from tests.scripted_daemon import Connection, ScriptedDaemon, event

OTHERS = [
    {**at(90_000, "daemon.state", "panic", by=7, message="enough", turns=1, workers=2), "trace_id": ""},
    {**at(90_010, "daemon.agent", "stopped"), "trace_id": "", "caller": 1000, "agent": "net"},
    {**at(90_020, "session.deleted", "deleted", by=0), "trace_id": ""},
    {**at(90_030, "tool.inotify.event", "fs_event"), "trace_id": "", "source": "tool"},
]


def rows(out: str) -> list[list[str]]:
    """The cells without the time and the session."""
    return [[cells[0], *cells[2:]] for line in out.splitlines() if (cells := line.split("\t"))]


def has_topic(stored: dict[str, Any], wanted: dict[str, Any]) -> bool:
    topics = wanted.get("topic", "").split(",")
    return any(f"{stored['topic']}.".startswith(f"{topic}.") for topic in topics if topic)


def serve_acts(scripted: ScriptedDaemon, *stored: dict[str, Any]) -> None:
    """As `serve`, with topics that are prefixes, and the filters that are asked with."""

    def answer(connection: Connection, call: dict[str, Any]) -> None:
        wanted = call["parameters"]
        found = [
            each
            for each in stored
            if has_topic(each, wanted)
            and wanted.get("type", each["type"]) == each["type"]
            and wanted.get("request", each["request_id"]) == each["request_id"]
            and wanted.get("from_seq", 1) <= each["seq"] <= wanted.get("to_seq", 1 << 60)
            and ("decision" not in wanted or (each["data"] or {}).get("decision") == wanted["decision"])
        ]
        size = min(4, wanted["limit"])
        some, rest = (
            (found[:size], found[size:]) if wanted.get("oldest_first") else (found[-size:], found[:-size])
        )
        next_seq = (rest[0] if wanted.get("oldest_first") else rest[-1])["seq"] if rest else 0
        connection.reply({"page": {"events": some, "next_seq": next_seq}})

    scripted.handle("History.Page", answer)


def test_a_call_has_one_row_and_so_has_each_other_act(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve_acts(scripted, *TURN, *OTHERS)
    assert rows(lactl("audit", "list").out) == [
        ["911", "-", "ops", "approval.requested", "change", "-", "-", "-", "-", "bash.exec: it changes"],
        ["60911", "1000", "ops", "approval.granted", "change", "-", "-", "-", "-", "bash.exec: go"],
        ["60921", "-", "ops", "bash.exec", "change", "ask", "r1", "ok", "2.0s", '{"command": "x"}'],
        ["62931", "-", "ops", "file.delete", "change", "deny", "no", "denied", "-", "Not that."],
        ["63941", "7", "ops", "input.answered", "-", "-", "-", "-", "-", "both"],
        ["90001", "7", "ops", "daemon.state.panic", "-", "-", "-", "-", "-", "enough"],
        ["90011", "1000", "net", "daemon.agent.stopped", "-", "-", "-", "-", "-", "-"],
        ["90021", "0", "ops", "session.deleted", "-", "-", "-", "-", "-", "-"],
    ]


def test_the_newest_are_listed_and_the_outcome_of_a_call_is_found_where_it_is(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    begun = [
        {**at(10 * n, "agent.tool_dispatch", "intent", f"req_{n}", **{**CALL, "call_id": f"c{n}"}), "seq": n}
        for n in range(1, 9)
    ]
    ended = [
        {
            **at(n, "tool.bash", "invocation", f"req_{n % 100}", call_id=f"c{n % 100}", result=f"r{n}"),
            "seq": n,
        }
        for n in (101, 102, 103, 104, 105, 106, 108)
    ]
    serve_acts(scripted, *begun, *ended)
    listed = rows(lactl("audit", "list", "--limit", "6").out)
    assert [(row[0], row[7]) for row in listed] == [
        ("3", "r103"),
        ("4", "r104"),
        ("5", "r105"),
        ("6", "r106"),
        ("7", "running"),
        ("8", "r108"),
    ]


def test_a_decision_is_asked_of_the_acts_and_not_of_their_outcomes(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    serve_acts(scripted, *TURN)
    listed = rows(lactl("audit", "list", "--decision", "ask", "--since", "2000-01-01").out)
    assert [(row[3], row[7]) for row in listed] == [("bash.exec", "ok")]
    acts, outcomes = (call["parameters"] for call in scripted.calls)
    assert (acts["decision"], outcomes["type"]) == ("ask", "invocation")
    assert not {"decision", "since_us", "text"} & set(outcomes)


def test_json_is_an_object_for_each_row(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve_acts(scripted, *TURN)
    found = [json.loads(line) for line in lactl("audit", "list", "--json").out.splitlines()]
    call = next(row for row in found if row["act"] == "bash.exec")
    assert call["detail"] == {"command": "x"}
    assert (call["result"], call["duration_ms"], call["call_id"]) == ("ok", 1990, "call_1")
    assert (call["request_id"], call["trace_id"], call["session"]) == ("req_1", "trace_1", "ses_1")


def test_rows_fit_the_terminal(scripted: ScriptedDaemon) -> None:
    serve_acts(scripted, *TURN, *OTHERS)
    out = on_terminal(["audit", "list"], env=environment(NO_COLOR="1"), width=100).out
    assert out.split()[1:4] == ["CALLER", "AGENT", "ACT"]
    assert called(0) in out, "a name, and no number"
    assert max(map(len, out.splitlines())) <= 100


def test_following_has_a_row_for_the_beginning_and_one_for_the_end_of_a_call(
    scripted: ScriptedDaemon,
) -> None:
    stored = [event(1, "daemon.state", "ready", data={"message": "up"})]
    serve_acts(scripted, *stored)

    def subscribe(connection: Connection, call: dict[str, Any]) -> None:
        for each in [*TURN, *OTHERS]:
            if has_topic(each, call["parameters"]):
                connection.reply({"event": {**each, "seq": each["seq"] + 1}, "missed": None}, continues=True)
        connection.sock.recv(1)

    scripted.handle("Events.Subscribe", subscribe)
    with start(["audit", "list", "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().rstrip("\n").split("\t") for _ in range(11)]
        process.terminate()
    assert [(line[4], line[6], line[8]) for line in lines] == [
        ("daemon.state.ready", "-", "-"),
        ("approval.requested", "-", "-"),
        ("approval.granted", "-", "-"),
        ("bash.exec", "ask", "running"),
        ("bash.exec", "ask", "ok"),
        ("file.delete", "deny", "denied"),
        ("input.answered", "-", "-"),
        ("human.ask", "-", "ok"),
        ("daemon.state.panic", "-", "-"),
        ("daemon.agent.stopped", "-", "-"),
        ("session.deleted", "-", "-"),
    ]
    assert scripted.parameters("Events.Subscribe")["from_seq"] == 2
