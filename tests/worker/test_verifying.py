"""A worker for change believes no word of the daemon: what it runs, what it refuses, and what it records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.errors import (
    ApprovalMismatch,
    ApprovalRequired,
    ConfigError,
    Conflict,
    InvalidArgument,
    LightagentError,
    MethodNotFound,
    Panicked,
    PermissionDenied,
    PolicyDenied,
    StorageError,
    Unavailable,
    WorkerUnavailable,
)
from lightagentd.worker.call import Call
from lightagentd.worker.verifying import Verifier, checked_call
from tests.signed.test_numbers import largest_file
from tests.worker.verified import NO_TERMS, Verified, verified

ALLOW = 'decision = "allow"\ntool = "file"\naction = "write"\n'
NOW_US = 1_000_000


@pytest.fixture(scope="module")
def worker() -> Iterator[Verified]:
    with verified() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_rules(worker: Verified) -> Iterator[None]:
    worker.told.clear()
    yield
    worker.rules()
    worker.publish()
    worker.records()


async def refused(worker: Verified, call: Call, error: type[LightagentError], says: str, **wire: Any) -> None:
    """It is refused with this error, and nothing of it is there."""
    with pytest.raises(error, match=says) as caught:
        await worker.run(call, **wire)
    assert type(caught.value) is error
    assert [*(worker.base / "files").iterdir()] == []
    worker.told += worker.records()  # the queue of a socket is short


async def test_a_signed_call_runs_once_and_both_ends_are_in_the_journal(worker: Verified) -> None:
    call = worker.write("once")
    signed = worker.signed(call)
    assert (await worker.run(call, signed=signed))[-1]["kind"] == "result"
    path = worker.base / "files/once"
    assert path.read_text() == "new\n"
    begun, ended = worker.records()
    digest = worker.statement(call).digest
    assert (begun["kind"], begun["agent"], begun["digest"]) == ("begun", "ops", digest)
    assert (begun["by"]["user"], begun["by"]["series"]) == (1000, "a")
    assert (ended["kind"], ended["call_id"], ended["result"]) == ("ended", call.call_id, "ok")
    assert "args" not in begun
    path.unlink()
    await refused(worker, call, Conflict, "has run already", signed=signed)
    again = replace(call, call_id="call_00000000000000aa")
    await refused(worker, again, ApprovalMismatch, "not what was approved", signed=signed)
    (first, second) = worker.told
    assert (first["kind"], second["kind"], second["result"]) == ("refused", "refused", "approval_mismatch")


async def test_what_is_not_exactly_what_was_signed_does_not_run(worker: Verified) -> None:
    call = worker.write("x")
    text = {"signed": worker.signed(call)}
    args = call.args | {"content": "other\n"}
    mismatch = "not what was approved"
    for changed in (
        {"args": args},
        {"session": "ses_other"},
        {"owner": 1001},
        {"trigger": "timer"},
        {"above": ["boss"]},
        {"expected": {"kind": "nothing"}},
        {"terms": NO_TERMS | {"confirm_within_s": 60}},
        {"call_id": "call_00000000000000ff"},
    ):
        await refused(worker, call, ApprovalMismatch, mismatch, **(text | changed))
    for grant in ({"agent": "web"}, {"effect": "reach"}, {"owner": 5}, {"digest": "0" * 64}):
        await refused(worker, call, ApprovalMismatch, mismatch, signed=worker.signed(call, **grant))
    other = Ed25519PrivateKey.generate()
    await refused(worker, call, ApprovalMismatch, "not the approver's", signed=worker.signed(call, key=other))
    broken = text["signed"] | {"grant": text["signed"]["grant"].replace("1000", "1001")}
    await refused(worker, call, ApprovalMismatch, "not the approver's", signed=broken)
    await refused(worker, call, ApprovalMismatch, "not signed as", signed={"grant": "{}"})
    await refused(worker, call, ApprovalMismatch, "too old", signed=worker.signed(call, expires_us=NOW_US))
    far = worker.signed(call, expires_us=9_000_000_000_000_000)
    await refused(worker, call, ApprovalMismatch, "another time", signed=far)
    folder = worker.call("bash.exec", command=f"touch {worker.base}/files/y", effect="change", cwd="/")
    elsewhere = folder.args | {"cwd": "/tmp"}
    await refused(worker, folder, ApprovalMismatch, mismatch, signed=worker.signed(folder), args=elsewhere)


async def test_another_file_of_the_tool_is_another_call(worker: Verified) -> None:
    call = worker.call("asker.make", name="x")
    signed = worker.signed(replace(call, tool="file", action="write"))
    await refused(worker, call, ApprovalMismatch, "If the tool's file|not what was approved", signed=signed)


async def test_only_a_rule_that_needs_no_word_of_the_daemon_allows_without_a_signature(
    worker: Verified,
) -> None:
    call = worker.write("rule")
    needs = "needs a person's approval"
    await refused(worker, call, ApprovalRequired, needs)
    for rule in (
        ALLOW,
        ALLOW + "even_if_tainted = true\ncaller = 0\n",
        ALLOW + 'even_if_tainted = true\ntrigger = "person"\n',
        ALLOW + 'even_if_tainted = true\nagent = "web"\n',
        ALLOW + 'even_if_tainted = true\nargs = {content = "other"}\n',
    ):
        worker.rules(rule)
        await refused(worker, call, ApprovalRequired, needs)
    free = ALLOW + "even_if_tainted = true\n"
    worker.rules(free + 'agent = "ops"\n')
    await refused(worker, call, ApprovalRequired, needs, above=["boss"])
    worker.rules(free, 'decision = "ask"\ntool = "file"\ntrigger = "timer"\n')
    await refused(worker, call, ApprovalRequired, needs)
    worker.rules(free, 'decision = "deny"\ntool = "file"\ncaller = 1001\n')
    await refused(worker, call, PolicyDenied, "rule-1")
    worker.rules(free, 'decision = "deny"\ntool = "file"\nagent = "boss"\n')
    await refused(worker, call, PolicyDenied, "rule-1", above=["boss"])
    worker.records()
    worker.rules(free)
    await worker.run(call)
    (worker.base / "files/rule").unlink()
    assert worker.records()[0]["by"] == {"rule": "rule-0 (test.toml)"}
    (worker.base / "etc/lightagentd.toml").write_text("[worker]\ntrust_daemon_taint = true\n")
    worker.rules(ALLOW)
    await worker.run(worker.write("trusted"))
    (worker.base / "files/trusted").unlink()
    (worker.base / "etc/lightagentd.toml").unlink()


async def test_a_signature_does_not_stand_against_a_rule_that_denies(worker: Verified) -> None:
    call = worker.write("denied")
    worker.rules('decision = "deny"\ntool = "file"\n')
    await refused(worker, call, PolicyDenied, "denies file.write", signed=worker.signed(call))


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"agent": "web"}, PermissionDenied, "of no other agent"),
        ({"effect": "observe"}, PermissionDenied, "to observe"),
        ({"call_id": "../../x"}, InvalidArgument, "The id of a call"),
        ({"session": "a\nfaked"}, InvalidArgument, "whom it is for"),
        ({"above": [1]}, InvalidArgument, "whom it is for"),
        ({"timeout_s": 1e9}, InvalidArgument, "The time of a call"),
        ({"timeout_s": -1}, InvalidArgument, "The time of a call"),
        ({"terms": {}}, InvalidArgument, "other terms"),
        ({"expected": {"own_skills": "/tmp"}}, InvalidArgument, "other terms, or expects"),
        ({"resumed": {"state": 1}}, InvalidArgument, "with an answer, and only so"),
        ({"resumed": {}, "expected": {"goes_on": {}}}, InvalidArgument, "goes on with other things"),
        ({"tool": "x", "kit": "/usr/lib/python3"}, PermissionDenied, "does not load"),
        ({"tool": "x", "kit": "/usr/share/lightagentd/agent/web"}, PermissionDenied, "does not load"),
        ({"args": []}, InvalidArgument, "The field args"),
        ({"more": 1}, InvalidArgument, "It is no call"),
        ({"place": "inspect"}, InvalidArgument, "The field place"),
    ],
)
async def test_a_call_that_no_honest_daemon_makes_is_refused_before_anything_is_loaded(
    worker: Verified, changed: dict[str, Any], error: type[LightagentError], says: str
) -> None:
    call = worker.write("odd")
    signed = worker.signed(call)
    await refused(worker, call, error, says, **({"signed": signed} | changed))


async def test_what_only_looks_is_not_run_here_even_if_a_person_signed_it(worker: Verified) -> None:
    for call in (
        worker.call("file.read", path="/etc/shadow"),
        worker.call("bash.exec", command="cat /etc/shadow", effect="observe"),
    ):
        await refused(worker, call, PermissionDenied, "does not change anything", signed=worker.signed(call))


async def test_the_interface_has_only_what_an_honest_daemon_needs(worker: Verified) -> None:
    async with worker.connected() as connection:
        for method in (
            "Worker.Describe",
            "Worker.DescribeOwn",
            "Worker.Prove",
            "Worker.Survey",
            "Worker.Follow",
            "WorkerHooks.Run",
            "WorkerServers.Look",
        ):
            with pytest.raises(MethodNotFound):
                await connection.call(f"org.lightagent1.{method}")
        about = {"agent": "ops", "session": "", "owner": 0, "kit": "", "context": {}, "preview": True}
        args = {"path": "/etc/shadow", "content": "x"}
        with pytest.raises(PermissionDenied, match="looks at nothing"):
            await connection.call(
                "org.lightagent1.Worker.Check", tool="file", action="write", args=args, **about
            )


async def test_a_command_names_no_file_that_others_write_and_the_person_was_not_told_of(
    worker: Verified,
) -> None:
    script = worker.base / "script.sh"
    script.write_text("echo hello\n")
    os.chown(script, 54321, 0)
    call = worker.call("bash.exec", command=f"sh {script}", effect="change")
    await refused(worker, call, Conflict, "was not told its content", signed=worker.signed(call))
    folder = worker.base / "theirs"
    folder.mkdir()
    os.chown(folder, 54321, 0)
    call = worker.call("bash.exec", command="make", effect="change", cwd=str(folder))
    await refused(worker, call, Conflict, r"Others can write .*theirs", signed=worker.signed(call))


async def test_an_undo_is_signed_with_what_it_puts_back(worker: Verified) -> None:
    first = worker.write("undo")
    await worker.run(first, signed=worker.signed(first))
    undo = worker.call("file.undo", call_id=first.call_id)
    with pytest.raises(ApprovalMismatch, match="not told which file"):
        await worker.run(undo, signed=worker.signed(undo))
    about = {"agent": "ops", "session": "", "owner": 0, "kit": "", "context": {}, "preview": True}
    async with worker.connected() as connection:
        method, called = "org.lightagent1.Worker.Check", {"tool": "file", "action": "undo"}
        seen = (await connection.call(method, args=undo.args, **called, **about))["checked"]
    assert seen["expected"]["undoes"]["path"].endswith("files/undo")
    faked = replace(undo, expected=seen["expected"] | {"undoes": {"path": "/x", "sha256": ""}})
    with pytest.raises(Conflict, match="not what was approved to be put back"):
        await worker.run(faked, signed=worker.signed(faked))
    undo = replace(undo, call_id="call_00000000000000ab", expected=seen["expected"])
    await worker.run(undo, signed=worker.signed(undo))
    assert not (worker.base / "files/undo").exists()


async def test_a_change_is_not_taken_back_before_its_time_nor_once_it_is_confirmed(worker: Verified) -> None:
    call = replace(worker.write("early"), terms=NO_TERMS | {"confirm_within_s": 60})
    await worker.run(call, signed=worker.signed(call))
    back = worker.call("file.undo", call_id=call.call_id)
    with pytest.raises(PolicyDenied, match=r"time to confirm .* is not over"):
        await worker.run(back, takes_back=call.call_id)
    call = replace(worker.write("early"), terms=NO_TERMS | {"confirm_within_s": 1})
    await worker.run(call, signed=worker.signed(call))
    async with worker.connected() as connection:
        await connection.call("org.lightagent1.Worker.Keep", call_id=call.call_id)
    back = worker.call("file.undo", call_id=call.call_id)
    with pytest.raises(PolicyDenied, match="is there to be taken back"):
        await worker.run(back, takes_back=call.call_id)
    (worker.base / "files/early").unlink()


async def test_a_rule_allows_a_change_only_on_its_own_terms(worker: Verified) -> None:
    call = worker.write("terms")
    free = ALLOW + "even_if_tainted = true\n"
    evil = NO_TERMS | {"confirm_within_s": 1, "inverse": "id"}
    worker.rules(free)
    await refused(worker, call, ApprovalRequired, "on these terms", terms=evil)
    worker.rules(free + 'confirm_within = "60s"\n')
    for terms in (NO_TERMS, NO_TERMS | {"confirm_within_s": 61}, evil):
        await refused(worker, call, ApprovalRequired, "on these terms", terms=terms)
    await worker.run(call, terms=NO_TERMS | {"confirm_within_s": 60})
    (worker.base / "files/terms").unlink()


async def test_the_same_call_does_not_run_twice_at_once(worker: Verified) -> None:
    call = worker.call("bash.exec", command="sleep 60", effect="change")
    task = asyncio.create_task(worker.run(call, signed=worker.signed(call)))
    while not any(one["kind"] == "begun" for one in worker.records()):
        await asyncio.sleep(0.01)
    await refused(worker, call, Conflict, "runs already", signed=worker.signed(call))
    task.cancel()
    await asyncio.wait([task])
    while not any(one.get("result") == "cancelled" for one in worker.records()):
        await asyncio.sleep(0.01)


async def test_a_tool_or_skill_that_others_can_write_is_not_loaded(worker: Verified) -> None:
    skill = worker.base / "etc/skills/mend"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: mend\ndescription: Mends.\n---\nMend.\n")
    (skill / "run.sh").write_text("#!/bin/sh\n")
    os.chown(skill / "run.sh", 54321, 0)
    run = worker.call("skill.run", name="mend", script="run.sh", effect="change")
    await refused(worker, run, PermissionDenied, "does not load the skill mend", signed=worker.signed(run))
    loose = replace(worker.write("x"), tool="loose")
    await refused(worker, loose, PermissionDenied, "does not load the tool loose")


async def test_nothing_runs_while_something_is_missing_and_each_has_its_sentence(worker: Verified) -> None:
    call = worker.write("late")
    signed = worker.signed(call)
    public = worker.base / "approver/public"
    public.unlink()
    await refused(worker, call, WorkerUnavailable, "public key cannot be read", signed=signed)
    worker.publish(Ed25519PrivateKey.generate())
    await refused(worker, call, ApprovalMismatch, "not the approver's", signed=signed)
    worker.publish()
    (worker.base / "etc/policy.d/broken.toml").write_text("[[rule]\n")
    await refused(worker, call, ConfigError, "while the rules cannot be read", signed=signed)
    (worker.base / "etc/policy.d/broken.toml").unlink()
    (worker.base / "approver/panic").touch()
    await refused(worker, call, Panicked, "stopped everything", signed=signed)
    (worker.base / "approver/panic").unlink()
    (worker.base / "journal").rename(worker.base / "gone")
    await refused(worker, call, WorkerUnavailable, "The journal does not take", signed=signed)
    (worker.base / "gone").rename(worker.base / "journal")
    late = worker.write("late")
    await worker.run(late, signed=worker.signed(late))
    (worker.base / "files/late").unlink()


async def test_what_was_used_and_promised_is_known_after_a_restart() -> None:
    with verified() as worker:
        path = worker.base / "files/switch"
        terms = NO_TERMS | {"confirm_within_s": 1, "inverse": f"rm {path}"}
        call = replace(worker.call("bash.exec", command=f"touch {path}", effect="change"), terms=terms)
        signed = worker.signed(call)
        await worker.run(call, signed=signed)
        asking = worker.call("asker.make", name="ada")
        (asked,) = await worker.run(asking, signed=worker.signed(asking))
        assert asked["kind"] == "asked"
        worker.restart()
        await _check_damaged(worker)
        with pytest.raises(ApprovalMismatch, match="used already"):
            await worker.run(call, signed=signed)
        await _check_way_back(worker, call)
        await _check_rest(worker, asking, {"state": asked["state"], "answer": "yes"})
        await _check_stop(worker)


async def _check_damaged(worker: Verified) -> None:
    """Nothing signed runs with a damaged record of what was used, until somebody mends it."""
    used, call = worker.base / "state/used", worker.write("x")
    kept = used.read_bytes()
    used.write_bytes(b"0" * 20 + b"\n" + kept)
    with pytest.raises(StorageError, match="is damaged"):
        await worker.run(call, signed=worker.signed(call))
    used.write_bytes(kept)


async def _check_way_back(worker: Verified, call: Call) -> None:
    """Only the way back that was signed runs without a signature, and once."""
    path = worker.base / "files/switch"
    back = worker.call("bash.exec", command=f"rm {path}", effect="change")
    evil = worker.call("bash.exec", command=f"rm {path}; id", effect="change")
    for asked, says in ((evil, "does not take back"), (worker.write("z"), "does not take back")):
        with pytest.raises(PolicyDenied, match=says):
            await worker.run(asked, takes_back=call.call_id)
    with pytest.raises(PolicyDenied, match="is there to be taken back"):
        await worker.run(back, takes_back="call_00000000000000ee")
    worker.records()
    await worker.run(back, takes_back=call.call_id)
    assert not path.exists()
    assert worker.records()[0]["by"] == {"takes_back": call.call_id}
    with pytest.raises(PolicyDenied, match="is there to be taken back"):
        await worker.run(back, takes_back=call.call_id)
    refused = worker.records()[-1]
    assert (refused["kind"], refused["by"]) == ("refused", {"takes_back": call.call_id})


async def _check_rest(worker: Verified, call: Call, on: dict[str, Any]) -> None:
    """A call goes on once, with the state that it gave out and the answer that is signed."""
    said = {"goes_on": {"question": "Really?", "answer": "yes"}}
    rest = replace(call, expected=said)
    signed = {"signed": worker.signed(rest), "resumed": on}
    for wire in (
        {"resumed": on | {"state": {"name": "eve"}}},
        {"resumed": on | {"answer": "no"}},
        {"args": {"name": "eve"}},
        {"call_id": "call_00000000000000cc"},
        {"expected": {"goes_on": {"question": "Shall I?", "answer": "yes"}}},
    ):
        await refused(worker, rest, PolicyDenied, "does not go on", **(signed | wire))
    await refused(worker, rest, ApprovalRequired, "needs a person's approval", resumed=on)
    await refused(worker, rest, InvalidArgument, "with an answer, and only so", signed=signed["signed"])
    no = {"resumed": on | {"answer": "no"}, "expected": {"goes_on": {"question": "Really?", "answer": "no"}}}
    await refused(worker, rest, ApprovalMismatch, "not what was approved", **(signed | no))
    assert (await worker.run(rest, **signed))[-1]["output"] == "ada: yes"
    await refused(worker, rest, PolicyDenied, "does not go on", **signed)


async def _check_stop(worker: Verified) -> None:
    """An emergency stop at the approver ends what runs, although the daemon hangs up on nothing."""
    path = worker.base / "files/stopped"
    call = worker.call("bash.exec", command=f"sleep 3; touch {path}", effect="change")
    task = asyncio.create_task(worker.run(call, signed=worker.signed(call)))
    while not any(one["kind"] == "begun" for one in worker.records()):
        await asyncio.sleep(0.01)
    (worker.base / "approver/panic").touch()
    with pytest.raises(Unavailable):
        await task
    assert worker.process is not None
    await asyncio.to_thread(worker.process.wait)
    assert not path.exists()


async def test_a_full_disk_lets_nothing_run_until_there_is_room() -> None:
    with verified(started=False) as rig:
        folders = {"state": rig.base / "state", "config": rig.base / "etc"}
        verifier = Verifier("ops", **folders, approver=rig.base / "approver", journal=rig.base / "journal")
        tool = rig.tools["file"]

        async def nothing() -> dict[str, Any]:
            return {}

        async def permit() -> None:
            call = rig.write("x")
            asked = checked_call(call.to_wire("") | {"signed": rig.signed(call)}, "ops")
            await verifier.permit(asked, tool.actions["write"], asked.args, tool, nothing)

        await permit()
        size_bytes = (rig.base / "state/used").stat().st_size
        with largest_file(size_bytes + 10), pytest.raises(StorageError, match="cannot be used"):
            await permit()
        await permit()
        assert [one["kind"] for one in rig.records()] == ["begun", "begun"]
        verifier.close()
