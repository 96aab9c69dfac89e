"""`lactl trace`: the tree of a turn, what belongs together in it, and the list of turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.cli.trace_tree import Node, turn_of
from lightagentd.host.users import called
from tests.cli.conftest import Lactl, environment, on_terminal
from tests.scripted_daemon import Connection, ScriptedDaemon, event

START_US = event(1)["time"]
CALL = {"call_id": "call_1", "tool": "bash", "action": "exec", "effect": "change"}


def at(ms: int, topic: str, type: str, request: str = "", **data: Any) -> dict[str, Any]:  # noqa: A002
    """An event so many milliseconds after the beginning of the turn; its number is that, too."""
    seq = ms + 1
    return event(seq, topic, type, time=START_US + ms * 1000, request_id=request, data=data)


TURN = [
    at(0, "agent.prompt", "prompt", text="restart nginx"),
    at(100, "session.turn", "started"),
    at(101, "agent.message", "message", role="user", content="restart nginx"),
    at(900, "agent.llm_response", "response", "req_1", duration_ms=800, model="m", finish_reason="tool_calls",
       prompt_tokens=120, completion_tokens=30),
    at(901, "agent.message", "message", "req_1", role="assistant", content="", tool_calls=[]),
    at(910, "approval.requested", "requested", "req_1", approval="apr_1", reason="it changes", **CALL),
    at(60_910, "approval.granted", "granted", "", approval="apr_1", answered_by=1000, note="go", **CALL),
    at(60_920, "agent.tool_dispatch", "intent", "req_1", decision="ask", rule="r1",
       args={"command": "x"}, **CALL),
    at(60_921, "approval.used", "used", "req_1", approval="apr_1", **CALL),
    at(62_920, "tool.bash", "invocation", "req_1", result="ok", duration_ms=1990, **CALL),
    at(62_921, "agent.message", "message", "req_1", role="tool", content="done"),
    at(62_930, "agent.tool_dispatch", "refused", "req_1", call_id="call_2", function="rm", tool="file",
       action="delete", effect="change", decision="deny", rule="no", result="denied", message="Not that."),
    at(62_940, "input.requested", "requested", "req_1", input="inp_1", call_id="call_3", question="Which?"),
    at(63_940, "input.answered", "answered", "", input="inp_1", call_id="call_3", answer="both",
       answered_by=7),
    at(63_950, "tool.human", "invocation", "req_1", call_id="call_3", tool="human", action="ask",
       effect="observe", result="ok", duration_ms=1000),
    at(64_000, "plan.task", "task", task="2", state="done"),
    at(64_900, "agent.llm_response", "response", "req_2", duration_ms=500, model="m", finish_reason="stop",
       prompt_tokens=200, completion_tokens=9),
    at(64_901, "agent.message", "message", "req_2", role="assistant", content="It runs."),
    at(65_000, "session.turn", "done", steps=2, calls=3, duration_ms=65_000),
]  # fmt: skip


def of_kind(node: Node, kind: str) -> list[Node]:
    below = [found for child in node.children for found in of_kind(child, kind)]
    return [node, *below] if node.kind == kind else below


def test_a_call_its_questions_and_its_outcome_are_one_node() -> None:
    turn = turn_of(TURN)
    first, refused, asked = of_kind(turn, "call")
    assert (first.name, first.result, first.duration_ms) == ("bash.exec", "ok", 62_010)
    assert {name: first.detail[name] for name in ("effect", "decision", "rule", "ran_ms")} == {
        "effect": "change",
        "decision": "ask",
        "rule": "r1",
        "ran_ms": 1990,
    }
    [approval] = first.children
    assert (approval.kind, approval.name, approval.result) == ("approval", "apr_1", "granted")
    assert (approval.duration_ms, approval.detail["answered_by"]) == (60_000, 1000)
    assert (refused.name, refused.result, refused.detail["message"]) == ("file.delete", "denied", "Not that.")
    [question] = asked.children
    assert (asked.name, question.result, question.duration_ms) == ("human.ask", "answered", 1000)
    assert (question.detail["question"], question.detail["answer"]) == ("Which?", "both")


def test_steps_have_their_model_call_and_all_that_shares_their_request() -> None:
    turn = turn_of(TURN)
    assert [(child.kind, child.name) for child in turn.children] == [
        ("prompt", "agent.prompt:prompt"),
        ("step", "step 1"),
        ("task", "task 2"),
        ("step", "step 2"),
    ]
    first, second = of_kind(turn, "step")
    assert (first.begin_us - START_US, first.duration_ms) == (100_000, 63_850)
    assert [child.kind for child in first.children] == ["model", "call", "call", "call"]
    assert (first.children[0].duration_ms, first.children[0].detail["finish_reason"]) == (800, "tool_calls")
    assert [child.kind for child in second.children] == ["model", "message"]
    assert (turn.duration_ms, turn.result, turn.detail["queued_ms"]) == (65_000, "done", 100)


def test_every_event_is_in_the_tree_once() -> None:
    def numbers(node: Node) -> list[int]:
        return [*node.events, *(seq for child in node.children for seq in numbers(child))]

    assert sorted(numbers(turn_of(TURN))) == [each["seq"] for each in TURN]


@pytest.mark.parametrize(
    ("until", "result", "call"),
    [(5, "running", None), (6, "running", "running"), (7, "running", "running"), (8, "running", "running")],
)
def test_a_turn_that_is_not_over_has_no_duration(until: int, result: str, call: str | None) -> None:
    turn = turn_of(TURN[:until])
    assert (turn.result, turn.duration_ms) == (result, None)
    assert [one.result for one in of_kind(turn, "call")] == ([call] if call else [])
    waiting = [one for one in of_kind(turn, "approval") if one.result == "waiting"]
    assert len(waiting) == (until == 6)


def test_a_call_without_an_outcome_in_a_turn_that_is_over_is_unknown() -> None:
    ended = at(70_000, "agent.error", "interrupted", code="outcome_unknown", message="The daemon stopped.")
    fallback = at(50, "agent.error", "fallback", code="unavailable", message="The next one.")
    turn = turn_of([TURN[0], fallback, *TURN[1:8], ended])
    assert (turn.result, turn.duration_ms) == ("interrupted", 70_000)
    assert [one.result for one in of_kind(turn, "call")] == ["outcome_unknown"]


def test_a_call_that_a_person_made_is_over_when_it_has_a_result() -> None:
    assert turn_of(TURN[5:9]).result == "running"
    turn = turn_of(TURN[5:10])
    assert (turn.result, turn.duration_ms) == ("ok", 62_010)


def test_deleted_events_make_a_tree_too() -> None:
    turn = turn_of([{**each, "data": None} for each in TURN])
    assert turn.duration_ms == 65_000
    assert len(of_kind(turn, "step")) == 2


def serve(scripted: ScriptedDaemon, *stored: dict[str, Any], page: int = 5) -> None:
    """Answer pages as the daemon does, of a few events each."""

    def answer(connection: Connection, call: dict[str, Any]) -> None:
        wanted = call["parameters"]
        found = [each for each in stored if wanted.get("trace", each["trace_id"]) == each["trace_id"]]
        for name in ("topic", "type"):
            if name in wanted:
                found = [each for each in found if each[name] in wanted[name].split(",")]
        found = [each for each in found if each["time"] >= wanted.get("since_us", 0)]
        if wanted.get("oldest_first"):
            found = [each for each in found if each["seq"] >= wanted["from_seq"]]
            some, rest = found[:page], found[page:]
            next_seq = rest[0]["seq"] if rest else 0
        else:
            found = [each for each in found if each["seq"] <= wanted.get("to_seq", 1 << 60)]
            size = min(page, wanted["limit"])
            some, rest = found[-size:], found[:-size]
            next_seq = rest[-1]["seq"] if rest else 0
        connection.reply({"page": {"events": some, "next_seq": next_seq}})

    scripted.handle("History.Page", answer)


def test_show_prints_a_line_for_each_node(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted, *TURN)
    lines = lactl("trace", "show", "trace_1").out.splitlines()
    assert lines[0].startswith("trace_1  ops  ses_1  ")
    assert lines[0].endswith("  1m05s  done  2 steps")
    assert lines[1:] == [
        "+0ms    ├─ prompt  restart nginx",
        "+100ms  ├─ step 1  1m03s  req_1",
        "+100ms  │  ├─ model m  800ms  ok  tool_calls  120+30 tokens",
        '+910ms  │  ├─ bash.exec  1m02s  ok  change ask  (r1)  {"command": "x"}',
        f"+910ms  │  │  └─ approval apr_1  1m00s  granted  by {called(1000)}  it changes  go",
        "+1m02s  │  ├─ file.delete  0ms  denied  change deny  (no)  Not that.",
        "+1m02s  │  └─ human.ask  1.0s  ok  observe",
        f"+1m02s  │     └─ question inp_1  1.0s  answered  by {called(7)}  Which?  both",
        "+1m04s  ├─ task 2  done",
        "+1m04s  └─ step 2  501ms  req_2",
        "+1m04s     ├─ model m  500ms  ok  stop  200+9 tokens",
        "+1m04s     └─ says  It runs.",
    ]


def test_json_is_the_same_tree(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted, *TURN)
    found = json.loads(lactl("trace", "show", "trace_1", "--json").out)
    assert (found["trace_id"], found["duration_ms"], found["result"]) == ("trace_1", 65_000, "done")
    assert found == {"trace_id": "trace_1", **turn_of(TURN).to_dict()}


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_terminal(scripted: ScriptedDaemon, width: int) -> None:
    serve(scripted, *TURN)
    out = on_terminal(["trace", "show", "trace_1"], env=environment(NO_COLOR="1"), width=width).out
    lines = out.splitlines()
    assert len(lines) == 13
    assert max(map(len, lines)) <= width
    assert [line for line in lines if "bash.exec  1m02s  ok" in line]


def test_a_turn_that_names_another_as_its_correlation_is_a_branch_of_it(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    child = [
        {**each, "seq": each["seq"] + 100_000, "trace_id": "trace_2", "correlation_id": "trace_1"}
        for each in TURN
    ]
    other = {**TURN[0], "seq": 200_001, "trace_id": "trace_3", "correlation_id": "ticket 7"}
    serve(scripted, *TURN, *child, other)
    out = lactl("trace", "show", "trace_1").out
    assert "├─ turn trace_2  1m05s  done  ops ses_1" in out
    assert out.count("bash.exec") == 2
    assert "trace_3" not in out


def test_list_has_the_newest_turns_with_how_they_ended(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    failed = [
        {**at(0, "agent.prompt", "prompt", text="two\nlines"), "seq": 100_000, "trace_id": "trace_2"},
        {**at(5, "agent.error", "fallback", message="x"), "seq": 100_001, "trace_id": "trace_2"},
        {**at(9, "agent.error", "step_limit", steps=40), "seq": 100_002, "trace_id": "trace_2"},
    ]
    running = {**at(20, "agent.prompt", "prompt"), "seq": 200_000, "trace_id": "trace_3", "data": None}
    serve(scripted, *TURN, *failed, {**running, "caller": 1000}, page=2)
    rows = [line.split("\t") for line in lactl("trace", "list").out.splitlines()]
    assert [(row[0], *row[2:]) for row in rows] == [
        ("trace_1", "ops", "ses_1", "-", "1m05s", "done", "2", "restart nginx"),
        ("trace_2", "ops", "ses_1", "-", "9ms", "step_limit", "40", "two lines"),
        ("trace_3", "ops", "ses_1", "1000", "-", "running", "-", "(deleted)"),
    ]
    found = json.loads(lactl("trace", "list", "--json", "--limit", "1").out)
    assert [(turn["trace_id"], turn["duration_ms"]) for turn in found] == [("trace_3", None)]


def test_a_turn_may_be_named_by_the_beginning_of_its_id(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    other = {**TURN[0], "seq": 1, "trace_id": "trace_2"}
    serve(scripted, other, *TURN)
    whole = lactl("trace", "show", "trace_1").out
    assert lactl("trace", "show", "1").out == whole
    assert lactl("trace", "show", "trace_").status == 65


def test_an_unknown_turn_is_not_found(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted)
    assert lactl("trace", "show", "trace_x").status == 66
