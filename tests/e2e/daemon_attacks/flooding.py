"""Attacks on the approver itself: floods, broken messages, and its restarts."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from .stage import PEOPLE, REGISTER, Stage, attack, person


def _message(request: str, digest: str) -> str:
    parameters = {"approval": request, "digest": digest}
    return json.dumps({"method": "org.lightagent1.Approver.Approve", "parameters": parameters}) + "\0"


def _register(stage: Stage, **parameters: Any) -> None:
    """Whatever it is."""
    method = "org.lightagent1.ApproverRequests.Register"
    stage.hear(stage.unit.varlink(path=REGISTER, method=method, parameters=parameters))


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
    statements: tuple[Any, ...] = (
        odd,
        {},
        [],
        wanted.to_dict() | {"extra": 1},
        wanted.to_dict() | {"owner": True},
    )
    for statement in statements:
        _register(stage, **base, statement=statement)
    odd_words: tuple[Any, ...] = ({"x": float("nan")}, [], "x", {"hidden": 7})
    for said in odd_words:
        _register(stage, **{**base, "said": said, "approval": "apr_o"}, statement=wanted.to_dict())
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
    for _ in range(2):
        restarting = subprocess.Popen(["systemctl", "restart", "lightagent-approver.service"])
        for _ in range(4):
            stage.unit.send(path=PEOPLE, text=_message(request, wanted.digest), limit_s=2.0)
            stage.run(wanted, stage.signature(request))
        restarting.wait()
    stage.run(wanted, stage.signature(request))
