"""What attacks are made of: the two hands of the attacker, calls for change, and people's answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import pwd
import secrets
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightagentd.signed.statement import Statement
from lightagentd.tool import Effect
from lightagentd.worker.call import Call

APPROVER = Path("/run/lightagent-approver")
PEOPLE, REGISTER = str(APPROVER / "approve.sock"), str(APPROVER / "daemon.sock")
WORKERS = "/run/lightagent-workers"
CONFIG, STATE = Path("/etc/lightagentd"), Path("/var/lib/lightagentd")
CONTROL = "/run/lightagentd/control.sock"
MARKS = Path("/root/daemon-attacks")
TOOLS = Path("/usr/share/lightagentd/tools")
NEVER = "NEVER-SHOWN"
NOTHING = {"confirm_within_s": 0, "check": "", "inverse": ""}


@dataclass(frozen=True)
class Attack:
    """`run` gives whether there was an effect beside the mark that the attack was to make."""

    name: str
    told: str
    run: Callable[[Stage, Path], Any]
    is_control: bool = False


ATTACKS: list[Attack] = []


def attack(told: str, *, control: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An attack in one sentence. A control is the honest way, which has the effect."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        ATTACKS.append(Attack(function.__name__, told, function, control))
        return function

    return add


def control(told: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return attack(told, control=True)


class Hand:
    """The attacker in one place."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, act: str) -> Callable[..., Any]:
        def do(**parameters: Any) -> Any:
            with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rw", encoding="utf-8") as file:
                sock.settimeout(60)
                sock.connect(self._path)
                file.write(json.dumps({"act": act, **parameters}) + "\n")
                file.flush()
                answer = json.loads(file.readline())
            return answer.get("value", answer.get("error"))

        return do


class Stage:
    """`unit` is the attacker in the daemon's unit, `free` the one of the same user outside."""

    def __init__(self, unit: Hand, free: Hand) -> None:
        self.unit, self.free = unit, free
        self.said: list[str] = []
        """What was answered to the attack that runs."""
        self._sha256 = {one: hashlib.sha256((TOOLS / f"{one}.py").read_bytes()).hexdigest() for one in TOOL}

    def touch(self, mark: Path, **changes: Any) -> Statement:
        """A shell command that makes the mark."""
        return self.command(f"touch {mark}", **changes)

    def command(self, command: str, **changes: Any) -> Statement:
        args = {"command": command, "cwd": "/", "effect": "change", "timeout_s": None}
        return replace(self.statement("bash", "exec", args), **changes)

    def statement(self, tool: str, action: str, args: dict[str, Any], **changes: Any) -> Statement:
        plain = Statement(
            agent="ops",
            tool=tool,
            action=action,
            effect="change",
            args=args,
            tool_sha256=self._sha256.get(tool, ""),
            call_id=f"call_{secrets.token_hex(8)}",
            session="ses_0123456789abcdef",
            trigger="person",
        )
        return replace(plain, **changes)

    def register(self, statement: Statement, request: str = "", **said: Any) -> str:
        """Register it as the daemon would; gives the id."""
        request = request or f"apr_{secrets.token_hex(8)}"
        self.hear(
            self.unit.varlink(
                path=REGISTER,
                method="org.lightagent1.ApproverRequests.Register",
                parameters={
                    "approval": request,
                    "statement": statement.to_dict(),
                    "said": {"preview": "", "rule": "", "reason": "", "hidden": [], "tainted": False} | said,
                    "expires_us": time.time_ns() // 1000 + 60_000_000,
                },
            )
        )
        return request

    def granted(self, statement: Statement) -> dict[str, str]:
        """The signature under a person's yes to it."""
        request = self.register(statement)
        self.yes(request, statement.digest)
        return self.signature(request)

    def signature(self, request: str) -> dict[str, str]:
        """What the approver gives the daemon."""
        waits = {"approval": request}
        answered = self.unit.varlink(
            path=REGISTER, method="org.lightagent1.ApproverRequests.Wait", parameters=waits, limit_s=0.4
        )
        if not isinstance(answered, list) or answered[-1] is None or "error" in answered[-1]:
            self.hear(answered)
            return {}
        return dict(answered[-1]["parameters"]["answer"]["grant"] or {})

    def yes(self, request: str, digest: str, **terms: str) -> dict[str, Any]:
        """Root says yes, as a person, to what has this digest."""
        parameters = {"approval": request, "digest": digest, **terms}
        reply = person("Approve", parameters)
        self.hear([reply])
        return reply

    def call(
        self, statement: Statement, signed: dict[str, str] | None = None, **changes: Any
    ) -> dict[str, Any]:
        """The call of a statement as the daemon sends it to the worker for change."""
        made = Call(
            call_id=statement.call_id,
            tool=statement.tool,
            action=statement.action,
            args=statement.args,
            agent=statement.agent,
            session=statement.session,
            effect=Effect.CHANGE,
            timeout_s=20.0,
            owner=statement.owner,
            kit=statement.kit,
            expected=statement.expected,
            trigger=statement.trigger,
            terms={name: getattr(statement, name) for name in NOTHING},
            signed=signed or {},
        )
        return made.to_wire(statement.kit) | changes

    def run(
        self,
        statement: Statement,
        signed: dict[str, str] | None = None,
        *,
        worker: str = "ops",
        **changes: Any,
    ) -> Any:
        """Have the attacker send it; gives the replies."""
        return self.ask(
            "Call", worker=worker, more=True, call=self.call(statement, signed, **changes), context={}
        )

    def ask(self, method: str, *, worker: str = "ops", more: bool = False, **parameters: Any) -> Any:
        """A method of the worker for change."""
        replies = self.unit.varlink(
            path=f"{WORKERS}/change@{worker}.sock",
            method=method if "." in method else f"org.lightagent1.Worker.{method}",
            parameters=parameters,
            more=more,
        )
        return self.hear(replies)

    def hear(self, replies: Any) -> Any:
        """Remember what was answered, for the table."""
        if isinstance(replies, str):
            self.said.append(replies)
            return replies
        last = replies[-1] if replies else None
        if last is None:
            self.said.append("hung up")
        elif "error" in last:
            code = last["error"].rpartition(".")[2]
            self.said.append(f"{code}: {last['parameters'].get('message', '')}")
        else:
            self.said.append(str(last.get("parameters"))[:200])
        return replies

    def did(self, name: str, *args: Any, by: Hand | None = None) -> bool:
        """Whether a function of os could be called by the attacker."""
        answer = (by or self.free).call_os(
            name=name, args=[str(one) if isinstance(one, Path) else one for one in args]
        )
        self.said.append(f"{name}: {answer}")
        return not (isinstance(answer, str) and "Error" in answer)

    def try_program(self, *argv: str, by: Hand | None = None, **more: Any) -> Any:
        """A program that the attacker runs; gives {status, out, err}."""
        done = (by or self.free).run(argv=list(argv), **more)
        self.said.append(
            f"{argv[0]}: {str(done)[:200]}"
            if isinstance(done, str)
            else f"{argv[0]}: {done['err'][-160:].strip()}"
        )
        return done

    @contextlib.contextmanager
    def rules(self, text: str) -> Iterator[None]:
        """With rules of root's."""
        path = CONFIG / "policy.d" / "daemon-attacks.toml"
        put(path, text)
        try:
            yield
        finally:
            path.unlink()

    def lactl(self, *args: str, typed: str = "", limit_s: float = 30.0) -> str:
        """What a person sees of lactl on a terminal of theirs, where they type once they are asked."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            ["setsid", "--ctty", "--wait", "lactl", *args], stdin=theirs, stdout=theirs, stderr=theirs
        ) as running:
            os.close(theirs)
            seen, end_s = b"", time.monotonic() + limit_s
            while (left_s := end_s - time.monotonic()) > 0 and select.select([ours], [], [], left_s)[0]:
                try:
                    seen += os.read(ours, 1 << 16)
                except OSError:  # nobody has the terminal any more
                    break
                if typed and b"[y/N]" in seen:
                    os.write(ours, typed.encode())
                    typed = ""
            running.kill()
        os.close(ours)
        self.said.append(seen.decode(errors="replace").strip()[-200:])
        return seen.decode(errors="replace")


TOOL = ("bash", "file", "skill", "systemd", "crypto")


def person(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """What the approver answers root, who is a person here."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(PEOPLE)
        message = {"method": f"org.lightagent1.Approver.{method}", "parameters": parameters}
        sock.sendall(json.dumps(message).encode() + b"\0")
        received = b""
        while not received.endswith(b"\0"):
            piece = sock.recv(1 << 16)
            if not piece:
                return {"error": "hung up", "parameters": {}}
            received += piece
    found: dict[str, Any] = json.loads(received[:-1])
    return found


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """A file of root's, whole at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.rename(path)


def systemctl(*args: str) -> str:
    done = subprocess.run(["systemctl", *args], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def uid(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


def fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def eventually(condition: Callable[[], Any], limit_s: float = 5.0) -> bool:
    """Whether it came true in time."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def in_cgroup_of(unit: str, work: Callable[[], Any]) -> Any:
    """What some work of root's gives, done by a process in the cgroup of a unit."""
    pid = systemctl("show", "--property=MainPID", "--value", unit)
    own = next(
        line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")
    )
    inside = Path(f"/sys/fs/cgroup{own}/cgroup.procs")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            inside.write_text("0")
            answer = work()
        except OSError as err:
            answer = {"error": str(err)}
        os.write(write_end, json.dumps(answer).encode()[:60_000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)
