"""Attacks on the people who answer: what they see, where they answer, and who counts as one."""

from __future__ import annotations

import array
import json
import os
import re
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .stage import (
    CONFIG,
    CONTROL,
    NEVER,
    NOTHING,
    PEOPLE,
    REGISTER,
    WORKERS,
    Stage,
    attack,
    control,
    eventually,
    in_cgroup_of,
    person,
)

_APPROVE = "org.lightagent1.Approver.Approve"


def _message(request: str, digest: str) -> str:
    return json.dumps({"method": _APPROVE, "parameters": {"approval": request, "digest": digest}}) + "\0"


def _try_by(stage: Stage, mark: Path, answer: Any) -> None:
    """Register a call, have it answered in some way, and run it if there is a signature then."""
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    stage.said.append(str(answer(request, wanted.digest))[:300])
    stage.run(wanted, stage.signature(request))


@attack("answer at the approver as the daemon's user, from the daemon's unit and from outside of it")
def answer_itself(stage: Stage, mark: Path) -> None:
    for hand in (stage.unit, stage.free):
        _try_by(
            stage,
            mark,
            lambda request, digest, hand=hand: hand.send(path=PEOPLE, text=_message(request, digest)),
        )


_ON_BUS = (
    "busctl",
    "--system",
    "--timeout=10",
    "call",
    "org.lightagent1.Approver",
    "/org/lightagent1/Approver",
)


@control("a person's answer over D-Bus, as desktops give it")
def answer_on_the_bus(stage: Stage, mark: Path) -> None:
    def answer(request: str, digest: str) -> Any:
        argv = [*_ON_BUS, "org.lightagent1.Approver", "Approve", "ssa{sv}", request, digest, "0"]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stderr

    _try_by(stage, mark, answer)


@attack("answer over D-Bus as the daemon's user, and end the emergency stop there")
def answer_itself_on_the_bus(stage: Stage, mark: Path) -> None:
    for hand in (stage.unit, stage.free):

        def answer(request: str, digest: str, hand: Any = hand) -> Any:
            argv = [*_ON_BUS, "org.lightagent1.Approver", "Approve", "ssa{sv}", request, digest, "0"]
            return stage.try_program(*argv, by=hand)

        _try_by(stage, mark, answer)


@attack("answer at the approver on the socket that is the daemon's")
def answer_at_its_socket(stage: Stage, mark: Path) -> None:
    _try_by(
        stage, mark, lambda request, digest: stage.unit.send(path=REGISTER, text=_message(request, digest))
    )
    for name in ("Approve", "Answer", "Grant", "Sign"):
        wanted = stage.touch(mark)
        request = stage.register(wanted)
        parameters = {"approval": request, "digest": wanted.digest, "grant": True, "by": 0}
        stage.hear(
            stage.unit.varlink(
                path=REGISTER, method=f"org.lightagent1.ApproverRequests.{name}", parameters=parameters
            )
        )
        stage.run(wanted, stage.signature(request))


@attack("answer as the user of a worker")
def answer_as_worker(stage: Stage, mark: Path) -> None:
    def by(user: str) -> Any:
        def answer(request: str, digest: str) -> Any:
            code = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode()+b'\\0')\nprint(s.recv(9999))"
            argv = ["setpriv", f"--reuid={user}", "--regid=lightagent-worker", "--clear-groups"]
            argv += ["python3", "-c", code, PEOPLE, _message(request, digest)[:-1]]
            return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

        return answer

    for user in (
        "lightagent-w00",
        "lightagent-inspect",
        "lightagent-keys",
        "lightagent-gateway",
        "lightagent-approver",
    ):
        _try_by(stage, mark, by(user))


@attack("answer as root, from a command in the unit of the worker for change")
def answer_in_a_worker(stage: Stage, mark: Path) -> None:
    stage.ask("Describe")
    for unit in ("lightagent-change@ops.service", "lightagentd.service"):
        _try_by(
            stage,
            mark,
            lambda request, digest, unit=unit: in_cgroup_of(
                unit, lambda: person("Approve", {"approval": request, "digest": digest})
            ),
        )


@attack("have an approved command approve the next one")
def answer_by_a_command(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    busctl = "busctl --system call org.lightagent1.Approver /org/lightagent1/Approver org.lightagent1.Approver Approve"
    text = _message(request, wanted.digest)[:-1]
    program = f"import socket; s=socket.socket(socket.AF_UNIX); s.connect({PEOPLE!r}); s.sendall({text!r}.encode()+bytes(1)); print(s.recv(9999))"
    for command in (
        f"lactl approve {request}",
        f"{busctl} ssa{{sv}} {request} {wanted.digest} 0",
        f"python3 -c {json.dumps(program)}",
    ):
        running = stage.command(command)
        stage.run(running, stage.granted(running))
    stage.run(wanted, stage.signature(request))


@control("a person's own connection that they pass to the attacker, who answers on it")
def passed_by_a_person(stage: Stage, mark: Path) -> None:
    """Whoever gives away an open connection has given away their own voice: the kernel says theirs."""
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    place = f"/run/lightagentd/take-{os.getpid()}"
    taking = threading.Thread(
        target=lambda: stage.hear(stage.unit.take_over(path=place, text=_message(request, wanted.digest)))
    )
    taking.start()
    eventually(lambda: os.path.exists(place))
    with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as way:
        own.connect(PEOPLE)
        way.connect(place)
        way.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own.fileno()]))])
        taking.join()
    stage.run(wanted, stage.signature(request))


@attack("take the connection, the memory or the threads of a person's lactl")
def into_a_program(stage: Stage, mark: Path) -> bool:
    got = []
    for user in ("root", "e2e-anna"):
        running = subprocess.Popen(["runuser", "--user", user, "--", "sleep", "20"])
        eventually(lambda: _children(running.pid), 2)
        for pid in [*_children(running.pid), running.pid]:
            got += stage.free.descriptors_of(pid=pid)
            got += stage.unit.descriptors_of(pid=pid)
        running.terminate()
        running.wait()
    stage.said.append(str(got))
    return bool([one for one in got if len(one) > 1])


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@attack("become a program of root's after the answer was sent, before it is looked at who sent it")
def as_setuid(stage: Stage, mark: Path) -> None:
    for argv in (["/usr/bin/su", "root"], ["/usr/bin/passwd"], ["/usr/bin/mount"]):
        if os.path.exists(argv[0]):
            _try_by(
                stage,
                mark,
                lambda request, digest, argv=argv: stage.free.as_setuid(
                    path=PEOPLE, text=_message(request, digest), argv=argv
                ),
            )


@attack("register an id a second time with another call, between what is shown and the yes")
def registered_twice(stage: Stage, mark: Path) -> None:
    shown, wanted = stage.command("true"), stage.touch(mark)
    request = stage.register(shown)
    person("Get", {"approval": request})
    stage.register(wanted, request)
    stage.yes(request, shown.digest)
    stage.run(wanted, stage.signature(request))
    for forget in ("Lapse", "Cancel", "Forget"):
        request = stage.register(shown)
        stage.hear(
            stage.unit.varlink(
                path=REGISTER,
                method=f"org.lightagent1.ApproverRequests.{forget}",
                parameters={"approval": request},
            )
        )
        stage.register(wanted, request)
        stage.yes(request, shown.digest)
        stage.run(wanted, stage.signature(request))


@attack("put other terms under a question between what is shown and the yes: an inverse that runs later")
def other_terms(stage: Stage, mark: Path) -> None:
    shown = stage.command("true")
    evil = {"confirm_within_s": 1, "check": "", "inverse": f"touch {mark}"}
    request = stage.register(shown)
    stage.register(shown.on_terms(evil), request)
    stage.yes(request, shown.digest)
    stage.run(shown.on_terms(evil), stage.signature(request))
    back = stage.command(f"touch {mark}", call_id=f"{shown.call_id}-back")
    stage.run(back, stage.signature(request))


def _approval(request: str, statement: Any, **changes: Any) -> dict[str, Any]:
    """What a daemon says of it (`api.sessions.Approval`)."""
    own = statement.to_dict()
    now_us = time.time_ns() // 1000
    fields = (
        "agent",
        "tool",
        "action",
        "effect",
        "session",
        "args",
        "confirm_within_s",
        "check",
        "inverse",
        "call_id",
    )
    plain: dict[str, Any] = {
        "owner": 0,
        "trace_id": "",
        "cwd": own["args"].get("cwd", ""),
        "digest": statement.digest,
        "preview": "",
        "rule": "default-change",
        "reason": "",
        "created_us": now_us,
        "expires_us": now_us + 60_000_000,
        "state": "waiting",
        "answered_by": None,
        "answered_us": 0,
        "note": "",
        "volatile": False,
        "may_answer": True,
        "must_authenticate": False,
        "approver": statement.digest,
    }
    return {**plain, **{name: own[name] for name in fields}, "id": request, **changes}


def _daemon(stage: Stage, answers: dict[str, Any]) -> None:
    """The attacker is the daemon of every client."""
    told = {name: list(value) if isinstance(value, tuple) else [value] for name, value in answers.items()}
    stage.said.append(str(stage.unit.serve(path=CONTROL, answers=told)))


def _asked(stage: Stage, mark: Path) -> tuple[Any, str]:
    """What is to run, which no person would allow, and its id at the approver."""
    wanted = stage.command(f"touch {mark} # {NEVER}")
    return wanted, stage.register(wanted, preview="nothing much", reason="It is harmless.")


@control("lactl shows a person what the approver has, and their yes lets it run")
def by_lactl(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    told = _approval(request, wanted)
    _daemon(stage, {"Approvals.Get": {"approval": told}, "Approvals.List": {"approvals": [told]}})
    stage.lactl("approvals", "show", request)
    stage.lactl("approve", request, typed="y\n")
    stage.run(wanted, stage.signature(request))


@attack("tell a person that something harmless waits, and have them say yes to something else by its id")
def another_shown(stage: Stage, mark: Path) -> bool:
    wanted, request = _asked(stage, mark)
    lie = _approval(request, stage.command("systemctl status nginx"))
    truth = _approval(request, wanted)
    for get in (
        (lie,),
        (lie | {"approver": ""},),
        (lie | {"approver": ""}, truth),
        (lie | {"approver": ""}, truth, truth, truth),
    ):
        _daemon(
            stage,
            {
                "Approvals.Get": tuple({"approval": one} for one in get),
                "Approvals.List": {"approvals": [lie]},
            },
        )
        seen = stage.lactl("approvals", "show", request)
        seen += stage.lactl("approve", request, typed="y\n")
        stage.run(wanted, stage.signature(request))
        if mark.exists() and NEVER in seen:
            mark.unlink()  # they have read it, and said yes
            wanted, request = _asked(stage, mark)
            lie, truth = _approval(request, stage.command("true")), _approval(request, wanted)
    return False


@attack(
    "list something harmless, and have the approval by a cut id or by a chat's list be for something else"
)
def another_listed(stage: Stage, mark: Path) -> bool:
    wanted, request = _asked(stage, mark)
    lie = _approval(request, stage.command("systemctl status nginx"), approver="")
    truth = _approval(request, wanted)
    _daemon(stage, {"Approvals.Get": {"approval": truth}, "Approvals.List": {"approvals": [lie]}})
    seen = stage.lactl("approvals") + stage.lactl("approve", request, typed="y\n")
    stage.run(wanted, stage.signature(request))
    return mark.exists() and not mark.unlink() and NEVER not in seen  # type: ignore[func-returns-value]


@attack("show a person another working directory than the one in which the command is to run")
def another_folder_shown(stage: Stage, mark: Path) -> None:
    folder = "/run/lightagentd/NEVER-SHOWN"
    stage.unit.write(path=f"{folder}/deploy.sh", text=f"touch {mark}\n", mode=0o755)
    wanted = stage.command("sh ./deploy.sh")
    wanted = replace(wanted, args={**wanted.args, "cwd": folder})
    for cwd in ("/srv/app", "", "/"):
        request = stage.register(wanted, preview="In /srv/app, with /bin/bash:\nsh ./deploy.sh\n")
        told = _approval(request, wanted, cwd=cwd)
        _daemon(stage, {"Approvals.Get": {"approval": told}, "Approvals.List": {"approvals": [told]}})
        seen = stage.lactl("approvals", "show", request) + stage.lactl("approve", request, typed="y\n")
        if NEVER not in seen:
            stage.run(wanted, stage.signature(request))


@attack("hide arguments from who answers, as those are hidden that hold a secret")
def hidden_arguments(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"touch {mark} # {NEVER}")
    request = stage.register(wanted, hidden=["command"], preview="harmless")
    told = _approval(request, wanted)
    told["args"] = {**told["args"], "command": "[removed: write-only]"}
    _daemon(stage, {"Approvals.Get": {"approval": told}, "Approvals.List": {"approvals": [told]}})
    seen = stage.lactl("approvals", "show", request) + stage.lactl("approve", request, typed="y\n")
    stage.run(wanted, stage.signature(request))
    return mark.exists() and not mark.unlink() and NEVER not in seen  # type: ignore[func-returns-value]


@attack("have the person's lactl, which runs as root, write a rule that the daemon made up")
def rule_of_the_daemon(stage: Stage, mark: Path) -> None:
    harmless = stage.command("true")
    request = stage.register(harmless)
    told = _approval(request, harmless)
    path = CONFIG / "policy.d" / "allowed-by-daemon.toml"
    exactly = f'{{ command = "touch {mark}", cwd = "/", effect = "change" }}'
    text = f'[[rule]]\nname = "mine"\ndecision = "allow"\ntool = "bash"\naction = "exec"\neven_if_tainted = true\nexactly = {exactly}\n'
    proposal = {
        "path": str(path),
        "text": text,
        "sha256": "0" * 64,
        "words": "true",
        "allowed": 0,
        "judged": 0,
        "past": [],
    }
    denied = {
        "error": "org.lightagent1.PermissionDenied",
        "parameters": {"message": "no", "code": "permission_denied"},
    }
    answers = {
        "Approvals.Get": {"approval": told},
        "Approvals.List": {"approvals": [told]},
        "Approvals.ProposeRule": {"proposal": proposal},
        "Approvals.WriteRule": denied,
        "Manager.Reload": {},
    }
    _daemon(stage, answers)
    stage.lactl("approve", request, "--rule", "--yes")
    stage.lactl("--json", "approve", request, "--rule", "--yes")
    stage.run(stage.touch(mark))
    for approver in ("", harmless.digest):  # as if the daemon itself took the answer
        lie = {**told, "approver": approver}
        _daemon(
            stage, {**answers, "Approvals.Get": {"approval": lie}, "Approvals.List": {"approvals": [lie]}}
        )
        stage.lactl("approve", request, "--rule", "--yes")
        stage.run(stage.touch(mark))
    path.unlink(missing_ok=True)


@control("the call that a person types, which lactl answers for them at the approver")
def typed(stage: Stage, mark: Path) -> None:
    _type(stage, stage.touch(mark, session=""), stage.touch(mark, session=""))


def _type(stage: Stage, typed: Any, stated: Any) -> None:
    """A person types a call, and the daemon states one."""
    request = stage.register(stated)
    told = _approval(request, typed, approver=stated.digest, call_id=stated.call_id)
    event = {**told, "type": "approval_requested", "approval": request}
    stream = [{"event": {"type": "started", "session": "", "trace_id": ""}}, {"event": event}]
    answers = {"Tools.Call": {"stream": stream}, "Approvals.Get": {"approval": told}}
    _daemon(stage, {**answers, "Approvals.List": {"approvals": [told]}})
    stage.lactl("tools", "call", "ops", "bash.exec", "--args", json.dumps(typed.args), limit_s=2.5)
    stage.run(stated, stage.signature(request), worker=stated.agent)


@attack("state another call than the one that a person types, which lactl answers for them")
def another_typed(stage: Stage, mark: Path) -> None:
    plain = stage.command("true")
    base = {"session": "", "trigger": "person"}
    evil = [
        stage.touch(mark, **base),
        replace(plain, **base, confirm_within_s=1, inverse=f"touch {mark}"),
        replace(plain, **base, args={**plain.args, "cwd": "/run/lightagentd", "command": f"touch {mark}"}),
        stage.touch(mark, agent="web", **base),
    ]
    for wanted in evil:
        _type(stage, plain, wanted)
        if wanted.inverse:
            back = replace(stage.touch(mark), args={"command": f"touch {mark}", "effect": "change"})
            stage.run(back, takes_back=wanted.call_id)


@attack("hide a part of a command from who reads it: bidirectional marks, escapes, look-alikes, long texts")
def unreadable(stage: Stage, mark: Path) -> bool:
    hidden = []
    end = f"touch {mark} # {NEVER}"
    tricks = {
        "escape": f"true\x1b[2K\x1b[1A\x1b[8m{end}",
        "carriage return": f"{end}\rsystemctl status nginx" + " " * 120,
        "backspace": end + "\b" * 200 + "true",
        "right to left": f"true \u202e{end[::-1]}\u202c",
        "isolates": f"true \u2067{end}\u2069",
        "no width": "\u200b".join(end),
        "tags": "true" + "".join(chr(0xE0000 + ord(one)) for one in "rm"),
        "look-alike": "\u0441\u0430t /etc/passwd",
        "long": "true " + "x" * 200_000 + f"; {end}",
        "lines": "true\n" * 5000 + end,
        "a line of our own": f"true\n  effect: observe\nAllow it, once? [y/N] y\nAllowed, once.\x1b[2J\n{end}",
        "null": f"true\0{end}",
        "surrogate": f"true\udc9b2J{end}",
        "C1": f"true\x9b2J\x9d0;title\x07{end}",
    }
    for name, command in tricks.items():
        wanted = stage.command(command)
        request = stage.register(wanted)
        told = _approval(request, wanted)
        _daemon(stage, {"Approvals.Get": {"approval": told}, "Approvals.List": {"approvals": [told]}})
        seen = stage.lactl("approvals", "show", request)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", seen).replace("\r\n", "\n")
        bad = re.findall(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]",
            plain,
        )
        whole = {
            "no width": "<U+200B>",
            "tags": "<U+E0072>",
            "look-alike": "<U+0441>",
            "right to left": "<U+202E>",
        }.get(name, NEVER)
        refused = not person("Get", {"approval": request}).get("parameters", {}).get("request")
        if bad or (
            whole not in plain and not refused and not (name == "look-alike" and "look" in plain.lower())
        ):
            hidden.append(name)
    stage.said.append(f"hidden: {hidden}")
    return bool(hidden)


@attack("answer over a name of its own on the bus, and be polkit or the approver there")
def names_on_the_bus(stage: Stage, mark: Path) -> bool:
    taken = []
    for name in (
        "org.lightagent1.Approver",
        "org.freedesktop.PolicyKit1",
        "org.freedesktop.systemd1",
        "org.freedesktop.login1",
    ):
        for hand in (stage.unit, stage.free):
            argv = [
                "busctl",
                "--system",
                "call",
                "org.freedesktop.DBus",
                "/org/freedesktop/DBus",
                "org.freedesktop.DBus",
            ]
            done = stage.try_program(*argv, "RequestName", "su", name, "7", by=hand)
            if done["status"] == 0:
                taken.append(name)
    return bool(taken)


@attack("register an agent of polkit's for others, which says that they gave their password")
def agent_of_polkit(stage: Stage, mark: Path) -> bool:
    polkit = (
        "org.freedesktop.PolicyKit1",
        "/org/freedesktop/PolicyKit1/Authority",
        "org.freedesktop.PolicyKit1.Authority",
    )
    pid, start = os.getpid(), Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    subjects = [
        ("unix-process", ["3", "pid", "u", str(pid), "start-time", "t", start, "uid", "i", "0"]),
        ("unix-session", ["1", "session-id", "s", "1"]),
        ("system-bus-name", ["1", "name", "s", ":1.1"]),
    ]
    done = []
    for kind, details in subjects:
        argv = [
            "busctl",
            "--system",
            "call",
            *polkit,
            "RegisterAuthenticationAgent",
            "(sa{sv})ss",
            kind,
            *details,
            "C",
            "/x",
        ]
        done.append(stage.try_program(*argv, by=stage.free)["status"])
        cookie = [polkit[0], polkit[1], polkit[2], "AuthenticationAgentResponse2", "us(sa{sv})"]
        stage.try_program(
            "busctl",
            "--system",
            "call",
            *cookie,
            "0",
            "cookie",
            "unix-user",
            "1",
            "uid",
            "u",
            "0",
            by=stage.free,
        )
    _try_by(stage, mark, lambda request, digest: stage.free.send(path=PEOPLE, text=_message(request, digest)))
    return 0 in done


@control("a person whom polkit lets answer, and who is not root")
def by_polkit(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    code = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode()+b'\\0')\nprint(s.recv(9999))"
    argv = [
        "runuser",
        "--user",
        "e2e-anna",
        "--",
        "python3",
        "-c",
        code,
        PEOPLE,
        _message(request, wanted.digest)[:-1],
    ]
    stage.said.append(subprocess.run(argv, capture_output=True, text=True, check=False).stdout[-200:])
    stage.run(wanted, stage.signature(request))


@attack("have a user answer whom polkit does not let answer, whose call the daemon says it is")
def by_a_stranger(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark, owner=int(subprocess.check_output(["id", "-u", "e2e-bert"], text=True)))
    request = stage.register(wanted)
    code = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode()+b'\\0')\nprint(s.recv(9999))"
    argv = [
        "runuser",
        "--user",
        "e2e-bert",
        "--",
        "python3",
        "-c",
        code,
        PEOPLE,
        _message(request, wanted.digest)[:-1],
    ]
    stage.said.append(subprocess.run(argv, capture_output=True, text=True, check=False).stdout[-200:])
    stage.run(wanted, stage.signature(request))


def _asked_before(stage: Stage, mark: Path) -> list[str]:
    """Requests that wait, before the approver is attacked."""
    return [stage.register(stage.touch(mark)) for _ in range(6)]


def _is_deaf(stage: Stage, requests: list[str]) -> bool:
    """Whether no person is heard any more: each of them denies one request."""
    until = time.monotonic() + 12
    while time.monotonic() < until:
        for request in requests:
            try:
                reply = person("Deny", {"approval": request})
            except OSError as err:
                reply = {"error": str(err), "parameters": {}}
            stage.hear([reply])
            if "error" not in reply:
                return False
        time.sleep(1)
    return True


@attack("send the approver broken, huge and endless messages, and have it restart, until it errs")
def broken_messages(stage: Stage, mark: Path) -> bool:
    asked = _asked_before(stage, mark)
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    for path in (REGISTER, PEOPLE):
        for text in (
            "\0",
            "{\0",
            "[" * 100_000 + "\0",
            "x" * (20 << 20),
            '{"method": "a.b"}\0' * 1000,
            "9" * 10_000 + "\0",
        ):
            stage.unit.send(path=path, text=text, limit_s=3.0)
    odd = wanted.to_dict() | {"args": {"command": float("nan")}}
    base = {"approval": "apr_odd", "said": {}, "expires_us": 1 << 70}
    for statement in (odd, {}, [], wanted.to_dict() | {"extra": 1}, wanted.to_dict() | {"owner": True}):
        stage.hear(
            stage.unit.varlink(
                path=REGISTER,
                method="org.lightagent1.ApproverRequests.Register",
                parameters={**base, "statement": statement},
            )
        )
    for said in ({"x": float("nan")}, [], "x", {"hidden": 7}):
        stage.hear(
            stage.unit.varlink(
                path=REGISTER,
                method="org.lightagent1.ApproverRequests.Register",
                parameters={**base, "statement": wanted.to_dict(), "said": said, "approval": "apr_o"},
            )
        )
    stage.run(wanted, stage.signature(request))
    return _is_deaf(stage, asked)


@attack("fill the approver's memory and disk with requests that it takes back again")
def flood_of_requests(stage: Stage, mark: Path) -> bool:
    asked = _asked_before(stage, mark)
    big = stage.command("x" * 500_000)
    for number in range(40):
        name = f"apr_flood{number}"
        stage.register(big, name)
        stage.unit.varlink(
            path=REGISTER, method="org.lightagent1.ApproverRequests.Lapse", parameters={"approval": name}
        )
    kept = Path("/var/lib/lightagent-approver/requests").stat().st_size
    stage.said.append(f"its log: {kept >> 20} MiB")
    return kept > 34 << 20 or _is_deaf(stage, asked)


@attack("hold a thousand connections to each socket of the approver")
def flood_of_connections(stage: Stage, mark: Path) -> bool:
    asked = _asked_before(stage, mark)
    for hand, path in ((stage.unit, REGISTER), (stage.free, PEOPLE), (stage.unit, PEOPLE)):
        stage.said.append(str(hand.hold(path=path, count=1000)))
    dead = _is_deaf(stage, asked)
    stage.unit.let_go()
    stage.free.let_go()
    return dead


@attack("race the approver's restart: register, ask and answer while it starts")
def race_of_restarts(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    for _ in range(3):
        restarting = subprocess.Popen(["systemctl", "restart", "lightagent-approver.service"])
        for _ in range(4):
            stage.unit.send(path=PEOPLE, text=_message(request, wanted.digest), limit_s=2.0)
            stage.run(wanted, stage.signature(request))
        restarting.wait()
    stage.run(wanted, stage.signature(request))
    _ = WORKERS
