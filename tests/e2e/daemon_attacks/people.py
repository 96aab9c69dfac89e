"""Attacks on who answers: the daemon itself, its workers, root's commands, and strangers."""

from __future__ import annotations

import array
import functools
import json
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .stage import PEOPLE, REGISTER, Hand, Stage, attack, control, eventually, in_cgroup_of, person, uid

_APPROVE = "org.lightagent1.Approver.Approve"


def _message(request: str, digest: str) -> str:
    return json.dumps({"method": _APPROVE, "parameters": {"approval": request, "digest": digest}}) + "\0"


def _try_by(stage: Stage, mark: Path, answer: Callable[[str, str], Any]) -> None:
    """Register a call, have it answered in some way, and run it if there is a signature then."""
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    stage.said.append(str(answer(request, wanted.digest))[:300])
    stage.run(wanted, stage.signature(request))


def _by(send: Callable[..., Any], request: str, digest: str) -> Any:
    return send(text=_message(request, digest))


def _as_daemon(hand: Hand, path: str = PEOPLE) -> Callable[[str, str], Any]:
    return functools.partial(_by, functools.partial(hand.send, path=path))


def _inside(unit: str, request: str, digest: str) -> Any:
    """Root's answer from within a unit."""
    asked = {"approval": request, "digest": digest}
    return in_cgroup_of(unit, functools.partial(person, "Approve", asked))


_SENDS = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(sys.argv[2].encode() + bytes(1))
print(sock.recv(9999))
"""


def _as_user(user: str) -> Callable[[str, str], str]:
    """Answers by a program of that user."""

    def answer(request: str, digest: str) -> str:
        argv = [
            "runuser",
            "--user",
            user,
            "--",
            "python3",
            "-c",
            _SENDS,
            PEOPLE,
            _message(request, digest)[:-1],
        ]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    return answer


@attack("answer at the approver as the daemon's user, from the daemon's unit and from outside of it")
def answer_itself(stage: Stage, mark: Path) -> None:
    for hand in (stage.unit, stage.free):
        _try_by(stage, mark, _as_daemon(hand))


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
    _try_by(stage, mark, _as_daemon(stage.unit, REGISTER))
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
    for user in ("w00", "inspect", "keys", "gateway", "approver"):
        _try_by(stage, mark, _as_user(f"lightagent-{user}"))


@attack("answer as root, from a command in the unit of the worker for change")
def answer_in_a_worker(stage: Stage, mark: Path) -> None:
    stage.ask("Settle", call_id="")
    for unit in ("lightagent-change@ops.service", "lightagentd.service"):
        _try_by(stage, mark, functools.partial(_inside, unit))


@attack("have an approved command approve the next one")
def answer_by_a_command(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    request = stage.register(wanted)
    answer = [*_ON_BUS, "org.lightagent1.Approver", "Approve", "ssa{sv}", request, wanted.digest, "0"]
    sends = ["python3", "-c", _SENDS, PEOPLE, _message(request, wanted.digest)[:-1]]
    for argv in (["lactl", "approve", request], answer, sends):
        running = stage.command(shlex.join(argv))
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
    eventually(Path(place).exists)
    with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as way:
        own.connect(PEOPLE)
        way.connect(place)
        way.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own.fileno()]))])
        taking.join()
    stage.run(wanted, stage.signature(request))


@attack("take the connection, the memory or the threads of a person's lactl")
def into_a_program(stage: Stage, mark: Path) -> bool:
    got: list[str] = []
    for user in ("root", "e2e-anna"):
        running = subprocess.Popen(["setpriv", f"--reuid={user}", "--clear-groups", "sleep", "20"])
        pid = running.pid
        eventually(functools.partial(_runs, pid, "sleep"), 2)
        for hand in (stage.free, stage.unit):
            seen = hand.descriptors_of(pid=pid)
            assert isinstance(seen, list), seen
            got += seen
        running.terminate()
        running.wait()
    stage.said.append(str(got))
    return bool(got)


def _runs(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"


@attack("become a program of root's after the answer was sent, before it is looked at who sent it")
def as_setuid(stage: Stage, mark: Path) -> None:
    for argv in (["/usr/bin/su", "root"], ["/usr/bin/passwd"], ["/usr/bin/mount"]):
        if Path(argv[0]).exists():
            way = functools.partial(stage.free.as_setuid, path=PEOPLE, argv=argv)
            _try_by(stage, mark, functools.partial(_by, way))


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
    bus = ("busctl", "--system", "--timeout=10", "call")
    subjects = [
        ("unix-process", ["3", "pid", "u", str(pid), "start-time", "t", start, "uid", "i", "0"]),
        ("unix-session", ["1", "session-id", "s", "1"]),
        ("system-bus-name", ["1", "name", "s", ":1.1"]),
    ]
    done = []
    for kind, details in subjects:
        register = [*polkit, "RegisterAuthenticationAgent", "(sa{sv})ss", kind, *details, "C", "/x"]
        done.append(stage.try_program(*bus, *register, by=stage.free)["status"])
        answer = ("0", "cookie", "unix-user", "1", "uid", "u", "0")
        stage.try_program(*bus, *polkit, "AuthenticationAgentResponse2", "us(sa{sv})", *answer, by=stage.free)
    _try_by(stage, mark, _as_daemon(stage.free))
    return 0 in done


@control("a person whom polkit lets answer, and who is not root")
def by_polkit(stage: Stage, mark: Path) -> None:
    _try_by(stage, mark, _as_user("e2e-anna"))


@attack("have a user answer whom polkit does not let answer, whose call the daemon says it is")
def by_a_stranger(stage: Stage, mark: Path) -> None:
    answer = _as_user("e2e-bert")
    _try_by(stage, mark, answer)
    wanted = stage.touch(mark, owner=uid("e2e-bert"))
    request = stage.register(wanted)
    stage.said.append(answer(request, wanted.digest))
    stage.run(wanted, stage.signature(request))
