"""Attacks with what runs without another question: ways back, leaves, and the end of the emergency stop."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .stage import CONTROL, PEOPLE, REGISTER, Stage, attack, control, person, put

TERMS = {"confirm_within_s": 1, "check": ""}


def _promised(stage: Stage, mark: Path) -> Any:
    """A change that has run, whose inverse makes the mark, and is due."""
    changed = stage.command("true", **TERMS, inverse=f"touch {mark}")
    stage.run(changed, stage.granted(changed))
    time.sleep(0.1)
    return changed


def _back(stage: Stage, command: str, changed: Any, **changes: Any) -> Any:
    back = replace(stage.command(command), args={"command": command, "effect": "change"})
    return stage.run(replace(back, trigger="confirm"), takes_back=changed.call_id, **changes)


@control("the command that takes a change back, which a person approved with it")
def taken_back(stage: Stage, mark: Path) -> None:
    _back(stage, f"touch {mark}", _promised(stage, mark))


@attack("take a change back with another command than the one that was approved")
def by_another_inverse(stage: Stage, mark: Path) -> None:
    changed = _promised(stage, Path("/root/daemon-attacks/never"))
    for command in (f"touch {mark}", f"touch /root/daemon-attacks/never; touch {mark}"):
        _back(stage, command, changed)
        _back(stage, command, changed, terms={**TERMS, "inverse": f"touch {mark}"})
        _back(stage, command, changed, signed={"grant": "", "signature": ""})
    write = {"path": str(mark), "content": "x"}
    stage.run(stage.statement("file", "write", write), takes_back=changed.call_id)


@attack("take a change back again and again, and one that was never made")
def back_again(stage: Stage, mark: Path) -> bool:
    target = Path(f"{mark}-back")
    changed = stage.command("true", **TERMS, inverse=f"echo >> {target}")
    stage.run(changed, stage.granted(changed))
    for _ in range(4):
        _back(stage, f"echo >> {target}", changed)
    stage.ask("Retire")
    _back(stage, f"echo >> {target}", changed)
    never = stage.command("true", **TERMS, inverse=f"touch {mark}")
    grant = stage.granted(never)
    _back(stage, f"touch {mark}", never)
    _back(stage, f"touch {mark}", never, signed=grant)
    return target.exists() and target.read_text() != "\n"


@attack("take back a change long before its time is over")
def back_too_early(stage: Stage, mark: Path) -> None:
    changed = stage.command("true", confirm_within_s=600, check="", inverse=f"touch {mark}")
    stage.run(changed, stage.granted(changed))
    _back(stage, f"touch {mark}", changed)


@attack("undo a change of a file that nobody asked to undo, and another one than a person did")
def undo(stage: Stage, mark: Path) -> bool:
    targets = [Path(f"{mark}-{name}") for name in ("one", "other")]
    more = {"mode": "", "encoding": "utf-8", "expect_sha256": "", "parents": False}
    written = []
    for target in targets:
        put(target, "before")
        changed = stage.statement("file", "write", {"path": str(target), "content": "after", **more})
        stage.run(changed, stage.granted(changed))
        written.append(changed)
    undone = [stage.statement("file", "undo", {"call_id": one.call_id}) for one in written]
    stage.run(undone[0])
    stage.run(undone[0], stage.granted(undone[1]))
    stage.run(undone[0], takes_back=written[0].call_id)
    stage.run(replace(undone[0], trigger="undo"), owner=0)
    return targets[0].read_text() != "after"


def _leave(stage: Stage, statement: Any) -> None:
    """A person's yes for the whole session."""
    request = stage.register(statement)
    parameters = {"approval": request, "digest": statement.digest, "for_session": True, "tainted": True}
    stage.hear([person("Approve", parameters)])


def _by_leave(stage: Stage, statement: Any) -> None:
    request = stage.register(statement)
    stage.run(statement, stage.signature(request))


@control("a call that a person allowed for its session, the second time")
def by_a_leave(stage: Stage, mark: Path) -> None:
    once = stage.touch(mark, session="ses_00000000000000a1")
    _leave(stage, once)
    _by_leave(stage, replace(once, call_id="call_00000000000000a2"))


@attack("use what was allowed for a session for another call, session, agent, owner or tool file")
def beyond_a_leave(stage: Stage, mark: Path) -> None:
    once = stage.command("true", session="ses_00000000000000b1")
    _leave(stage, once)
    fresh = {"call_id": "call_00000000000000b"}
    evil = {**once.args, "command": f"touch {mark}"}
    _by_leave(stage, replace(once, args=evil, call_id=f"{fresh['call_id']}1"))
    wanted = stage.touch(mark, session="ses_00000000000000c1")
    _leave(stage, replace(wanted, agent="web"))
    _leave(stage, replace(wanted, session="ses_00000000000000c2"))
    _leave(stage, replace(wanted, owner=1000))
    _leave(stage, replace(wanted, tool_sha256="0" * 64))
    _leave(stage, replace(wanted, kit="/etc/lightagentd/agent/web"))
    for number, session in enumerate(("ses_00000000000000c1", "", "ses_0123456789abcdef")):
        one = replace(wanted, session=session, call_id=f"call_000000000000c00{number}")
        _by_leave(stage, one)


@attack("use what was allowed for a session after its end, and after it was withdrawn")
def after_a_leave(stage: Stage, mark: Path) -> None:
    once = stage.command("true", session="ses_00000000000000d1")
    wanted = replace(
        once, args={**once.args, "command": f"true; touch {mark}"}, session="ses_00000000000000d2"
    )
    _leave(stage, wanted)
    leaves = person("Leaves", {}).get("parameters", {}).get("leaves", [])
    for one in leaves:
        if one["statement"]["session"] == wanted.session:
            stage.hear([person("Withdraw", {"leave": one["id"]})])
    _by_leave(stage, replace(wanted, call_id="call_000000000000d001"))
    stage.unit.varlink(
        path=REGISTER,
        method="org.lightagent1.ApproverRequests.EndSession",
        parameters={"session": wanted.session},
    )
    _by_leave(stage, replace(wanted, call_id="call_000000000000d002"))


def _stopped(stage: Stage) -> None:
    stage.hear([person("Panic", {"reason": "a test"})])


@attack("run what was approved before the emergency stop, and have it lifted by the daemon's user")
def in_panic(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    grant = stage.granted(wanted)
    _stopped(stage)
    try:
        stage.run(wanted, grant)
        for hand in (stage.unit, stage.free):
            for path in (PEOPLE, REGISTER):
                for name in ("EndPanic", "Panic"):
                    where = "Approver" if path == PEOPLE else "ApproverRequests"
                    parameters = {"off": True} if name == "Panic" else {}
                    stage.hear(
                        hand.varlink(
                            path=path, method=f"org.lightagent1.{where}.{name}", parameters=parameters
                        )
                    )
            stage.did("unlink", "/var/lib/lightagent-approver/panic", by=hand)
            stage.did("rename", "/var/lib/lightagent-approver", "/var/lib/x", by=hand)
        for name in ("panic", "panic.ready"):
            stage.did("unlink", f"/var/lib/lightagentd/{name}")
        stage.run(wanted, grant)
        other = stage.touch(mark)
        request = stage.register(other)
        stage.yes(request, other.digest)
        stage.run(other, stage.signature(request))
    finally:
        stage.hear([person("EndPanic", {})])


@control("the same after an administrator has ended the stop")
def after_panic(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    grant = stage.granted(wanted)
    _stopped(stage)
    stage.hear([person("EndPanic", {})])
    stage.run(wanted, grant)


@attack("swallow a person's emergency stop: the daemon says that all is stopped, and goes on")
def panic_swallowed(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    grant = stage.granted(wanted)
    told = {"turns": 0, "workers": 0, "panic": {}, "problems": []}
    stage.unit.serve(path=CONTROL, answers={"Manager.Panic": [{"panic": told}], "Manager.EndPanic": [{}]})
    try:
        stage.lactl("panic", "--reason", "a-test")
        stage.run(wanted, grant)
    finally:
        stage.hear([person("EndPanic", {})])
