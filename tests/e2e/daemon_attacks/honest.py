"""What the honest ways take, with the real daemon: prints them as JSON.

A user calls a tool, the question goes to the approver, a person whom polkit lets answer says yes as soon as
they see it, and the command runs. The span is from the question at the approver to what the command says.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .stage import CONTROL, PEOPLE, WORKERS, Hand, Stage, put, systemctl

TIMES = 25
_ANSWERING = """
import json, socket, sys, time
def call(method, **parameters):
    message = {"method": "org.lightagent1.Approver." + method, "parameters": parameters}
    sock.sendall(json.dumps(message).encode() + b"\\0")
    received = b""
    while not received.endswith(b"\\0"):
        received += sock.recv(1 << 16)
    return json.loads(received[:-1])["parameters"]
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
left, others = int(sys.argv[2]), {one["id"] for one in call("List").get("requests", [])}
print("ready", flush=True)
while left:
    for one in call("List").get("requests", []):
        if one["id"] not in others and "request" in call("Approve", approval=one["id"], digest=one["digest"]):
            left -= 1
            print(one["created_us"], flush=True)
    time.sleep(0.001)
"""
RULE = """[[rule]]
name = "honest"
decision = "allow"
tool = "bash"
even_if_tainted = true
exactly = { command = "date +%s%N", cwd = "/", effect = "change" }
"""


def exchange(
    path: str, method: str, parameters: dict[str, Any], ends: tuple[bytes, ...]
) -> tuple[str, float]:
    """What a call is answered with, and how long that takes in milliseconds."""
    message = {"method": method, "more": True, "parameters": parameters}
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(path)
        sock.sendall(json.dumps(message).encode() + b"\0")
        received = b""
        while not any(end in received for end in ends):
            received += sock.recv(1 << 16)
        took_ms = (time.monotonic() - began) * 1000
    return received.decode(), took_ms


def tool_call(command: str) -> tuple[str, float]:
    """A shell command of ops for change, by the daemon."""
    args = {"command": command, "effect": "change"}
    parameters = {"agent": "ops", "tool": "bash", "action": "exec", "args": args}
    return exchange(CONTROL, "org.lightagent1.Tools.Call", parameters, (b'"tool_result"', b'"error"'))


def refused_ms() -> float:
    """How long the worker takes to look at a call that it then refuses, and to say so in its record."""
    stage = Stage(Hand(""), Hand(""))
    parameters = {"call": stage.call(stage.command("true")), "context": {}}
    path = f"{WORKERS}/change@ops.sock"
    said, took_ms = exchange(path, "org.lightagent1.Worker.Call", parameters, (b'"error"',))
    assert "ApprovalRequired" in said, said
    return took_ms


def told_at_us(said: str) -> float:
    """When the command ran, by what it printed."""
    digits = [word for word in "".join(c if c.isdigit() else " " for c in said).split() if len(word) == 19]
    return int(digits[0]) / 1000


def main() -> None:
    argv = ["runuser", "--user", sys.argv[1], "--", "python3", "-c", _ANSWERING, PEOPLE, str(TIMES)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as answering:
        assert answering.stdout is not None
        answering.stdout.readline()
        spans = []
        for number in range(TIMES):
            said, _ = tool_call(f"date +%s%N; : {number}")
            spans.append((told_at_us(said) - int(answering.stdout.readline())) / 1000)
    rule = Path("/etc/lightagentd/policy.d/honest.toml")
    put(rule, RULE)
    systemctl("reload", "lightagentd.service")
    ruled = [tool_call("date +%s%N")[1] for _ in range(TIMES)]
    rule.unlink()
    looked = [refused_ms() for _ in range(2 * TIMES)]
    systemctl("reload", "lightagentd.service")
    print(
        json.dumps(
            {
                "approvals_ms": spans[1:],
                "rules_ms": ruled[1:],
                "refused_ms": looked[1:],
                "approver_mib": _memory(),
                "exposures": _exposures(),
            }
        )
    )


def _memory() -> float:
    """The proportional share of the approver's process, in MiB."""
    pid = systemctl("show", "--property=MainPID", "--value", "lightagent-approver.service")
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def _exposures() -> dict[str, float]:
    """systemd-analyze(1) security, of each unit of the packages."""
    found: dict[str, float] = {}
    for path in sorted(Path("/usr/lib/systemd/system").glob("lightagent*.service")):
        unit = path.name.replace("@.", "@ops.")
        argv = ["systemd-analyze", "security", "--no-pager", unit]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        line = next((one for one in done.stdout.splitlines() if "Overall exposure level" in one), "")
        if line:
            found[unit] = float(line.rpartition(": ")[2].split()[0])
    return found


if __name__ == "__main__":
    main()
