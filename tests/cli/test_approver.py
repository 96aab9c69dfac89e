"""Changes that the approver answers: lactl beside a daemon that may lie about them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.cli.options import Settings
from lightagentd.cli.rules import check_rule
from lightagentd.cli.typed_call import TypedCall
from lightagentd.client.aio import AsyncClient
from lightagentd.client.approver import SOCKET, beside
from lightagentd.client.remote import Remote
from lightagentd.errors import ApprovalMismatch, PermissionDenied
from lightagentd.mcp_server import asking
from lightagentd.policy.call import PolicyCall
from lightagentd.policy.proposed import propose
from lightagentd.signed.statement import Statement
from lightagentd.tool import Effect
from tests.approver_program import ApproverProgram
from tests.cli.conftest import Lactl
from tests.cli.test_approvals import at_terminal
from tests.prepared import REPOSITORY
from tests.scripted_daemon import Connection, ScriptedDaemon, approval, status, turn_event

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="without polkit root alone may approve")

_numbers = itertools.count(1)
WRITE = {"path": "/etc/motd", "content": "hello"}
DEFAULTS = {"mode": "", "encoding": "utf-8", "expect_sha256": "", "parents": False}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApproverProgram]:
    made = ApproverProgram(tmp_path_factory.mktemp("approver"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def approver(program: ApproverProgram, monkeypatch: pytest.MonkeyPatch) -> ApproverProgram:
    monkeypatch.setenv("LIGHTAGENT_APPROVER_SOCKET", str(program.approve))
    return program


def statement(tool: str = "file", **changes: Any) -> Statement:
    sha256 = hashlib.sha256((REPOSITORY / f"tools/{tool}.py").read_bytes()).hexdigest()
    made = Statement(
        agent="ops",
        tool=tool,
        action="write",
        effect="change",
        args=WRITE | DEFAULTS,
        tool_sha256=sha256,
        call_id="call_1",
        trigger="person",
    )
    return replace(made, **changes)


def asked(approver: ApproverProgram, stated: Statement, **says: Any) -> dict[str, Any]:
    """Registers a call; gives the approval as the daemon lists it, which `says` may change."""
    number = next(_numbers)
    name = f"apr_{number:016x}"
    digest = approver.register(name, stated, preview="+hello\n", rule="default-change", reason="")
    fields = ("agent", "tool", "action", "effect", "session", "args", "call_id", "owner")
    terms = ("confirm_within_s", "check", "inverse")
    found = {one: getattr(stated, one) for one in (*fields, *terms)}
    return approval(name, **{**found, "approver": digest, **says})


def event_of(found: dict[str, Any]) -> dict[str, Any]:
    names = ("call_id", "tool", "action", "effect", "args", "cwd", "preview", "rule", "reason", "expires_us")
    terms = ("volatile", "digest", "approver", "confirm_within_s", "check", "inverse", "may_answer")
    return turn_event(
        "approval_requested", approval=found["id"], **{one: found[one] for one in names + terms}
    )


def asks(scripted: ScriptedDaemon, found: dict[str, Any], method: str = "Tools.Call") -> None:
    """A call asks, and is over: lactl has dealt with the question when it reads that."""
    done = turn_event("done", text="it ended", steps=1, duration_ms=1)
    scripted.answer(method, {"event": event_of(found)}, {"event": done})


# A person's own calls


def test_what_was_typed_is_answered_by_that(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram
) -> None:
    found = asked(approver, statement())
    asks(scripted, found)
    done = lactl("tools", "call", "ops", "file.write", "--args", json.dumps(WRITE))
    assert (done.status, done.out, done.err) == (0, "it ended\n", "")
    request = approver.get(found["id"])
    assert (request["state"], request["by"]) == ("granted", 0)
    within = {"confirm_within_s": 300, "check": "true", "inverse": ""}
    unit = statement("systemd", action="restart", args={"unit": "cron.service"}, **within)
    asks(scripted, found := asked(approver, unit))
    terms = ("--confirm-within", "5m", "--check", "true")
    given = ("--args", '{"unit": "cron"}', *terms)
    events = lactl("tools", "call", "ops", "systemd.restart", *given, "--json").out.splitlines()
    assert json.loads(events[0])["type"] == "approval_requested"
    assert approver.get(found["id"])["state"] == "granted"


@pytest.mark.parametrize(
    "lie",
    [
        {"args": WRITE | DEFAULTS | {"content": "other"}},
        {"args": WRITE | DEFAULTS | {"mode": "4755"}},
        {"args": WRITE | DEFAULTS | {"parents": 0}},
        {"args": WRITE | DEFAULTS, "agent": "dba"},
        {"action": "edit"},
        {"owner": 4711},
        {"session": "ses_1"},
        {"trigger": "timer"},
        {"inverse": "rm -r /", "confirm_within_s": 1},
        {"tool_sha256": "0" * 64},
    ],
    ids=lambda lie: "-".join(lie),
)
def test_what_was_not_typed_is_not_answered(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram, lie: dict[str, Any]
) -> None:
    found = asked(approver, statement(**lie))
    asks(scripted, found)
    done = lactl("tools", "call", "ops", "file.write", "--args", json.dumps(WRITE))
    assert approver.get(found["id"])["state"] == "waiting"
    assert f"lactl approve {found['id']}" in done.err
    approver.lapse(found["id"])


def test_it_is_told_when_the_daemon_shows_something_else(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram
) -> None:
    evil = statement(args=WRITE | DEFAULTS | {"path": "/etc/shadow"})
    found = asked(approver, evil, args=WRITE | DEFAULTS, digest="0" * 64)
    asks(scripted, found)
    done = lactl("tools", "call", "ops", "file.write", "--args", json.dumps(WRITE))
    assert "something else than what would run (args)" in done.err
    scripted.answer("Approvals.Get", {"approval": found})
    scripted.answer("Approvals.List", {"approvals": [found]})
    for verb in (("approve",), ("approvals", "show")):
        done = lactl(*verb, found["id"])
        assert (done.status, done.out) == (ApprovalMismatch.exit_status, "")
        assert "lactl panic" in done.err
    hidden = asked(approver, statement())["id"]
    answered = asked(approver, statement())
    approver.lapse(answered["id"])
    made_up = {**answered, "id": f"apr_{'f' * 16}"}
    scripted.answer("Approvals.List", {"approvals": [found, answered, made_up]})
    done = lactl("approvals")
    states = [line.split("\t")[1] for line in done.out.splitlines()]
    assert states == ["waiting, DIFFERS", "waiting", "waiting, DIFFERS"]
    assert hidden in done.err
    assert approver.get(found["id"])["state"] == "waiting"
    assert lactl("deny", found["id"]).status == 0  # that needs no comparison
    assert approver.get(found["id"])["state"] == "denied"
    approver.lapse(hidden)


async def test_a_request_of_the_daemons_own_is_none(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram
) -> None:
    """It would be shown, and what was registered would be answered."""
    evil = asked(approver, statement(args=WRITE | DEFAULTS | {"path": "/etc/shadow"}))
    good = {**approver.get(evil["id"]), "statement": statement().to_dict()}
    found = {**evil, "args": WRITE | DEFAULTS, "request": good}
    scripted.answer("Tools.Call", {"event": {**event_of(found), "request": good}})
    done = lactl("tools", "call", "ops", "file.write", "--args", json.dumps(WRITE))
    assert "something else than what would run (args)" in done.err
    scripted.answer("Approvals.Get", {"approval": found})
    assert lactl("approvals", "show", found["id"]).status == ApprovalMismatch.exit_status
    assert lactl("approve", found["id"]).status == ApprovalMismatch.exit_status
    async with AsyncClient(scripted.path, timeout_s=10) as client:
        with pytest.raises(ApprovalMismatch):
            await client.approve(found)
        assert "request" not in await client.asked(found)
    assert approver.get(evil["id"])["state"] == "waiting"
    approver.lapse(evil["id"])


def test_an_undo_is_answered_if_it_is_named(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram
) -> None:
    stated = statement(action="undo", args={"call_id": "call_0123456789abcdef"})
    for words, state in ((("call_0123456789abcdef",), "granted"), ((), "waiting")):
        asks(scripted, found := asked(approver, stated), "Undo.Run")
        lactl("undo", *words)
        assert approver.get(found["id"])["state"] == state
    approver.lapse(found["id"])


def test_every_change_of_ours_can_be_typed() -> None:
    """The arguments that a call leaves out are those of the tool's file."""
    typed = TypedCall(agent="ops", tool="proc", action="signal", args={"pid": 7})
    stated = statement("proc", action="signal", args={"pid": 7, "signal": "TERM", "started": None})
    assert typed.is_stated(stated.to_dict(), 0)
    assert not typed.is_stated(replace(stated, args={**stated.args, "signal": "KILL"}).to_dict(), 0)
    assert not typed.is_stated({**stated.to_dict(), "files": {"x": "y"}}, 0)


# Others' calls


def test_it_shows_and_answers_what_the_approver_has(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram
) -> None:
    long = "\n".join(f"echo {number}" for number in range(100))
    evil = f"{long}\nrm -rf /\u202e"
    args = {"command": evil, "cwd": "/etc", "effect": "change", "timeout_s": None}
    found = asked(approver, statement("bash", action="exec", args=args, session="ses_1"), cwd="/tmp")
    scripted.answer("Approvals.Get", {"approval": found})
    scripted.answer("Approvals.List", {"approvals": [found]})
    shown = lactl("approvals", "show", found["id"]).out
    assert "echo 50" not in shown
    assert "lines with" in shown
    whole = lactl("approvals", "show", found["id"], "--whole").out
    assert "echo 50" in whole
    assert "<U+202E>" in whole
    assert "/tmp" not in whole
    assert found["approver"] in whole
    assert json.loads(lactl("approvals", "--json").out)[0]["args"] == args
    done = lactl("approve", found["id"], "--note", "so be it")
    assert done.out == f"{found['id']}\tgranted\n"
    request = approver.get(found["id"])
    assert (request["state"], request["note"]) == ("granted", "so be it")
    assert "Approvals.Approve" not in {call["method"] for call in scripted.calls}


def test_the_question_of_a_turn_is_the_approvers(scripted: ScriptedDaemon, approver: ApproverProgram) -> None:
    found = asked(approver, statement(session="ses_1"), preview="nothing\n")

    def prompt(connection: Connection, call: dict[str, Any]) -> None:
        connection.reply({"event": event_of(found)}, continues=True)
        end_s = time.monotonic() + 20
        while approver.get(found["id"])["state"] == "waiting" and time.monotonic() < end_s:
            time.sleep(0.02)
        connection.reply({"event": turn_event("done", text="it ended", steps=1, duration_ms=1)})

    scripted.handle("Sessions.Prompt", prompt)
    at = {"LIGHTAGENT_APPROVER_SOCKET": str(approver.approve)}
    ended, out = at_terminal(["prompt", "ops", "x"], ("[y/N] ", b"y\n"), **at)
    assert ended == 0, out
    assert "the daemon says" in out
    assert "content: hello" in out
    assert "nothing" not in out
    assert approver.get(found["id"])["state"] == "granted"


def test_without_the_approver_nothing_is_allowed(
    scripted: ScriptedDaemon, lactl: Lactl, approver: ApproverProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(approver, statement())
    monkeypatch.setenv("LIGHTAGENT_APPROVER_SOCKET", str(approver.folder / "gone" / "approve.sock"))
    asks(scripted, found)
    done = lactl("tools", "call", "ops", "file.write", "--args", json.dumps(WRITE))
    assert "systemctl status lightagent-approver.socket" in done.err
    scripted.answer("Approvals.Get", {"approval": found})
    scripted.answer("Approvals.List", {"approvals": [found]})
    scripted.answer("Approvals.Deny", {"approval": {**found, "state": "denied"}})
    assert lactl("approve", found["id"]).status != 0
    assert "the daemon's word alone" in lactl("approvals").err
    assert lactl("deny", found["id"]).status == 0
    assert scripted.parameters("Approvals.Deny") == {"approval": found["id"]}
    approver.lapse(found["id"])


def test_of_another_host_it_is_the_approver_there() -> None:
    place = Settings(host="web1").approver.place
    assert isinstance(place, Remote)
    assert place.argv()[-2:] == ["web1", f"lactl bridge --greet --socket {SOCKET}"]
    assert beside(Remote(host="web1")) == place


def test_a_rule_is_for_what_was_shown() -> None:
    stated = statement("systemd", action="restart", args={"unit": "nginx.service"}).to_dict()
    call = {"agent": "ops", "tool": "systemd", "action": "restart", "args": {"unit": "nginx.service"}}
    text = proposed(**call)
    check_rule(text, stated, tainted=False)
    more = f'{text}[[rule]]\nname = "all"\ndecision = "allow"\ntool = "bash"\nmatch = [{{}}]\n'
    other = proposed(**{**call, "agent": "dba"})
    for wrong in (more, other, text.replace("even_if_tainted = false", "even_if_tainted = true")):
        with pytest.raises(ApprovalMismatch):
            check_rule(wrong, stated, tainted=False)


def proposed(**call: Any) -> str:
    """The rule for a change, which its worker evaluates."""
    facts: dict[str, Any] = dict.fromkeys(PolicyCall.__dataclass_fields__) | call
    facts |= {"effect": Effect.CHANGE, "trigger": ""}
    return propose(PolicyCall(**facts), "apr_1", tainted=False).text


# Programs


async def test_a_program_answers_what_it_was_told(
    scripted: ScriptedDaemon, approver: ApproverProgram, tmp_path: Path
) -> None:
    async with AsyncClient(scripted.path, timeout_s=10) as client:
        found = asked(approver, statement())
        assert (await client.approve(found, note="ok"))["state"] == "granted"
        lied = asked(approver, statement(), args=WRITE)
        with pytest.raises(ApprovalMismatch):
            await client.approve(lied)
        assert (await client.deny(lied))["state"] == "denied"


async def test_the_form_of_a_client_shows_what_would_run(
    scripted: ScriptedDaemon, approver: ApproverProgram
) -> None:
    def connect() -> AsyncClient:
        return AsyncClient(scripted.path, timeout_s=10)

    found = asked(approver, statement())
    event = await connect().asked(event_of(found))
    form = asking.form(event)
    assert form is not None
    assert "content: hello" in form["message"]
    assert found["approver"] in form["message"]
    assert await asking.answer(connect, event, {"action": "accept", "content": {"allow": True}}) == ""
    assert approver.get(found["id"])["state"] == "granted"
    lied = await connect().asked(event_of(asked(approver, statement(), args={})))
    assert asking.form(lied) is None
    assert "something else" in asking.how_to_answer(lied)


# The approver itself


def test_leaves_are_the_approvers(scripted_approver: ScriptedDaemon, lactl: Lactl) -> None:
    leave = {"id": "leave_1", "statement": statement(session="ses_1").to_dict(), "by": 0, "tainted": False}
    leave |= {"left": 50, "until_us": 1_763_772_000_000_000}
    scripted_approver.answer("Approver.Leaves", {"leaves": [leave]})
    scripted_approver.answer("Approver.Withdraw", {})
    assert lactl("approvals", "leaves").out.startswith("leave_1\tops\tfile.write\troot\tnot then\t50\t")
    assert lactl("approvals", "withdraw", "leave_1").status == 0
    assert scripted_approver.parameters("Approver.Withdraw") == {"leave": "leave_1"}


@pytest.fixture
def scripted_approver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDaemon]:
    """Says what a test has it say, such as what is wrong with it."""
    server = ScriptedDaemon(tmp_path / "approve.sock")
    monkeypatch.setenv("LIGHTAGENT_APPROVER_SOCKET", str(server.path))
    server.start()
    yield server
    server.stop()


STATUS = {"panic": None, "waiting": 2, "leaves": 0, "public": "ab" * 32, "problems": ["It is slow."]}


def test_the_status_tells_of_it(
    scripted: ScriptedDaemon, scripted_approver: ScriptedDaemon, lactl: Lactl
) -> None:
    scripted.answer("Manager.GetStatus", {"status": status()})
    scripted_approver.answer("Approver.GetStatus", {"status": STATUS})
    out = lactl("status").out
    assert "running, 2 waiting for a person, key abababababababab" in out
    assert "It is slow." in out
    assert json.loads(lactl("status", "--json").out)["approver"] == STATUS
    stopped = {**STATUS, "panic": {"since_us": 1_763_768_400_000_000, "by": 0, "reason": ""}}
    scripted_approver.answer("Approver.GetStatus", {"status": stopped})
    assert "signs nothing since" in lactl("status").out
    scripted_approver.fail("Approver.GetStatus", "org.lightagent1.StorageError", message="The disk is full.")
    assert "no change can be allowed: The disk is full." in lactl("status").out


def test_panic_stops_and_starts_it(
    scripted: ScriptedDaemon, scripted_approver: ScriptedDaemon, lactl: Lactl
) -> None:
    stop = {"since_us": 1_763_768_400_000_000, "by": 0, "reason": "it lies"}
    stopped = {"panic": stop, "turns": 0, "workers": 0, "problems": []}
    scripted.answer("Manager.Panic", {"stopped": stopped})
    scripted.answer("Manager.EndPanic", {})
    scripted_approver.answer("Approver.Panic", {"panic": stop})
    assert lactl("panic", "--reason", "it lies").err == ""
    assert scripted_approver.parameters("Approver.Panic") == {"reason": "it lies"}
    scripted_approver.fail("Approver.EndPanic", "org.lightagent1.PermissionDenied", message="No.")
    assert lactl("panic", "--off").status == PermissionDenied.exit_status
    assert "Manager.EndPanic" not in {call["method"] for call in scripted.calls}
    scripted_approver.answer("Approver.EndPanic", {})
    assert lactl("panic", "--off").status == 0
    scripted_approver.fail("Approver.Panic", "org.lightagent1.StorageError", message="The disk is full.")
    assert "The approver was not told: The disk is full." in lactl("panic").err
