"""Proves a worker's sandbox: its shell tries what its effect may not do, and reports what worked.

The probes (`sandbox_probe`) run in the same way as the commands of a model. Their targets are made by the
daemon: sockets on which it listens, to tell "refused" from "nobody listens", and a process of the same user.
The daemon also checks its own end: a connection that arrived was not refused, whatever the probe reports.
`PROMISES` is the table of the expectations for each effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.agents.tool_calls.signing import NO_TERMS
from lightagentd.api import Finding
from lightagentd.doctor import sandbox_probe
from lightagentd.errors import ApprovalRequired, LightagentError
from lightagentd.host.paths import PACKAGE_FOLDER, Paths
from lightagentd.host.process import start
from lightagentd.text.reason import reason
from lightagentd.tool import Effect
from lightagentd.worker import sandbox
from lightagentd.worker.pool import Call, Pool

CALL_S = 25.0
"""How long the probes of one worker may take, beside what its start takes."""
EXAMINATION_S = 60.0
REFUSED, WORKS = "refused", "works"
_NET_RAW = 1 << 13
_CONFINED = {Effect.OBSERVE: REFUSED, Effect.REACH: REFUSED}
_BUS = Path("/run/dbus/system_bus_socket")
_BUS_CALLS = (
    (
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "ResetFailedUnit",
        "s",
        "lightagent-doctor.service",
    ),
    ("org.freedesktop.resolve1", "/org/freedesktop/resolve1", "org.freedesktop.DBus.Peer", "Ping"),
    ("org.lightagent1", "/org/lightagent1", "org.freedesktop.DBus.Peer", "Ping"),
)
"""Calls that change nothing, even where they arrive: that unit does not exist."""
_BUS_REACHED = ("not loaded", "NoSuchUnit")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The promise for each effect; there is none for an effect that is not named."""

    probe: str
    name: str
    expected: dict[Effect, str]


PROMISES = (
    Promise(probe="writes", name="write outside its own folder", expected=_CONFINED),
    Promise(probe="scratch", name="write to its own folder", expected=dict.fromkeys(Effect, WORKS)),
    Promise(probe="network", name="network", expected={Effect.OBSERVE: REFUSED, Effect.REACH: WORKS}),
    Promise(probe="resolvers", name="resolve names", expected={Effect.OBSERVE: REFUSED}),
    Promise(probe="unix_sockets", name="sockets of other programs", expected=_CONFINED),
    Promise(probe="bus", name="change things over D-Bus", expected=_CONFINED),
    Promise(probe="secrets", name="read secrets", expected=_CONFINED),
    Promise(probe="processes", name="signal or trace others", expected=_CONFINED),
    Promise(probe="privileges", name="gain privileges", expected=_CONFINED),
    Promise(probe="devices", name="make or open devices", expected=_CONFINED),
    Promise(probe="others", name="see other processes", expected={}),
)


_HARMLESS = ("scratch", "network", "secrets", "others")


@dataclass(kw_only=True)
class _Bait:
    """The targets of the probes, and the record of hits."""

    targets: dict[str, Any]
    listeners: list[tuple[str, socket.socket]] = field(default_factory=list)
    """The probe that would arrive there, and the socket."""
    victim: asyncio.subprocess.Process | None = None

    def hits(self) -> dict[str, str]:
        """The probes that reached the daemon, as seen by the daemon."""
        found: dict[str, str] = {}
        for probe, sock in self.listeners:
            with contextlib.suppress(OSError):
                if sock.type == socket.SOCK_DGRAM:
                    sock.recv(100)
                else:
                    sock.accept()[0].close()
                found[probe] = "the daemon got what it sent"
        if self.victim is not None and self.victim.returncode is not None:
            found["processes"] = "the process that it was shown has ended"
        return found


class SandboxDoctor:
    """Examines the workers of a pool; it owns nothing between two examinations."""

    def __init__(self, pool: Pool, paths: Paths, *, key_files: Sequence[Path] = ()) -> None:
        self._pool = pool
        self._paths = paths
        self._key_files = key_files

    async def examine(self, agent: str, effect: Effect) -> list[Finding]:
        """Report what an agent's worker for an effect is kept from, and what not. Leaves nothing behind."""
        try:
            if effect is Effect.CHANGE and self._pool.source.verifies:
                async with asyncio.timeout(EXAMINATION_S):
                    return [await self._unsigned(agent)]
            async with asyncio.timeout(EXAMINATION_S), self._bait(effect) as bait:
                found = await self._probe(agent, effect, bait.targets)
                return [_judge(promise, effect, found, bait) for promise in _tried(effect)]
        except TimeoutError:
            return [_not_tried("all", f"the worker did not answer within {EXAMINATION_S:g} s")]
        except (LightagentError, OSError, ValueError) as err:
            return [_not_tried("all", reason(err, at=True))]

    async def _probe(self, agent: str, effect: Effect, targets: dict[str, Any]) -> dict[str, Any]:
        """What each probe says. Raises LightagentError, ValueError."""
        # The text goes along: the worker's user may be unable to read the file, or to run this Python.
        code = await asyncio.to_thread(Path(sandbox_probe.__file__).read_text)
        own = shlex.quote(sys.executable)
        arguments = shlex.join(["-I", "-S", "-c", code, json.dumps(targets)])
        command = f'python={own}; [ -x "$python" ] || python=python3; exec "$python" {arguments}'
        output = await self._output(agent, effect, command)
        for line in output.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
        raise ValueError(f"the probes said nothing that can be read: {' '.join(output.split())[:200]}")

    async def _unsigned(self, agent: str) -> Finding:
        """Whether a worker for change runs a command that nobody signed. Raises LightagentError."""
        name = "run what nobody allowed"
        try:
            await self._output(agent, Effect.CHANGE, f": lightagent-doctor {secrets.token_hex(8)}")
        except ApprovalRequired:
            return Finding(name=name, status="ok", detail="refused")
        why = "it ran a command: a rule of policy.d allows them all, also by even_if_tainted"
        return Finding(name=name, status="note", detail=why)

    async def _output(self, agent: str, effect: Effect, command: str) -> str:
        """Raises LightagentError."""
        call = Call(
            call_id=f"call_{secrets.token_hex(8)}",
            tool="bash",
            action="exec",
            args={"command": command, "effect": effect.value},
            agent=agent,
            session="",
            effect=effect,
            timeout_s=CALL_S,
            terms=NO_TERMS,
        )
        output = ""
        async with contextlib.aclosing(self._pool.call(call)) as events:
            async for event in events:
                if event["kind"] == "result":
                    output = event["output"]
        return output

    @contextlib.asynccontextmanager
    async def _bait(self, effect: Effect) -> AsyncIterator[_Bait]:
        token = f".lightagent-doctor-{secrets.token_hex(8)}"
        folder = Path(tempfile.mkdtemp(prefix="lightagent-doctor-"))
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.chmod(0o755)
            bait = _Bait(targets=self._targets(token, effect))
            self._listen(bait, folder, stack)
            argv = [*sandbox.switch_user_argv(), "sleep", str(int(EXAMINATION_S) * 2)]
            bait.victim = await start(argv, env={"SECRET": token})
            bait.targets["victims"] = [bait.victim.pid]
            try:
                yield bait
            finally:
                if bait.victim.returncode is None:
                    bait.victim.kill()
                await bait.victim.wait()

    def _listen(self, bait: _Bait, folder: Path, stack: contextlib.ExitStack) -> None:
        addresses: list[tuple[str, str, int]] = []
        for kind, family, host in (
            (socket.SOCK_STREAM, socket.AF_INET, "127.0.0.1"),
            (socket.SOCK_STREAM, socket.AF_INET6, "::1"),
            (socket.SOCK_DGRAM, socket.AF_INET, "127.0.0.1"),
        ):
            with contextlib.suppress(OSError):  # a machine without IPv6
                sock = stack.enter_context(socket.socket(family, kind))
                sock.bind((host, 0))
                addresses.append((kind.name, host, sock.getsockname()[1]))
                bait.listeners.append(("network", sock))
        sockets = [str(self._paths.socket)]
        abstract = f"@lightagent-doctor-{secrets.token_hex(8)}"
        for name in (str(folder / "socket"), abstract):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.bind("\0" + name[1:] if name == abstract else name)
            bait.listeners.append(("unix_sockets", sock))
            sockets.append(name)
        (folder / "socket").chmod(0o777)
        for _, sock in bait.listeners:
            sock.setblocking(False)
            if sock.type == socket.SOCK_STREAM:
                sock.listen(4)
        bait.targets |= {"addresses": addresses, "sockets": sockets}

    def _targets(self, token: str, effect: Effect) -> dict[str, Any]:
        paths, home = self._paths, Path(os.environ.get("HOME") or "/root")
        folders = [paths.state, paths.config, paths.runtime, paths.workers, home]
        folders += [Path(name) for name in ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/usr")]  # noqa: S108
        files = [PACKAGE_FOLDER / "worker" / "program.py", Path(sys.executable).resolve()]
        files += [paths.history / "data.mdb", Path("/etc/passwd"), Path("/proc/sys/kernel/core_pattern")]
        stored = [one for one in sorted(paths.state.glob("*")) if one != paths.kits]  # those are read
        hidden = [*stored, paths.history / "data.mdb", paths.keys, *self._key_files]
        hidden += [Path("/etc/shadow"), Path("/etc/gshadow"), Path("/etc/ssl/private")]
        hidden += [*Path("/etc/ssh").glob("ssh_host_*_key"), *sandbox.home_secrets()]
        hidden += [Path(os.environ[name]) for name in ("CREDENTIALS_DIRECTORY",) if name in os.environ]
        resolvers = [Path("/run/systemd/resolve/io.systemd.Resolve"), Path("/run/nscd/socket")]
        probes = [promise.probe for promise in _tried(effect)]
        if "bus" in probes and (not _BUS.exists() or shutil.which("busctl") is None):
            probes.remove("bus")
        return {
            "probes": probes,
            "token": token,
            "folders": _existing(folders),
            "files": _existing(files),
            "secrets": _existing(hidden),
            "resolvers": _existing(resolvers),
            "daemon": os.getpid(),
            "capabilities": _NET_RAW if effect is Effect.REACH else 0,
            "devices": _disks(),
            "bus_calls": _BUS_CALLS,
            "bus_reached": _BUS_REACHED,
        }


def _tried(effect: Effect) -> list[Promise]:
    """The probes for an effect. A worker for change may do anything, so its probes leave no trace."""
    return [one for one in PROMISES if effect is not Effect.CHANGE or one.probe in _HARMLESS]


def _judge(promise: Promise, effect: Effect, said: dict[str, Any], bait: _Bait) -> Finding:
    """One line of the report. `hits` of the bait are asked once for each promise, and kept."""
    hits: dict[str, str] = bait.targets.setdefault("hits", {})
    hits |= bait.hits()
    expected = promise.expected.get(effect)
    if promise.probe not in said:
        why = "there is no system bus, or no busctl" if promise.probe == "bus" else "the probe gave no answer"
        return _not_tried(promise.name, why)
    worked = said[promise.probe]
    if not isinstance(worked, list):
        return _not_tried(promise.name, str(worked.get("error")) if isinstance(worked, dict) else "")
    if not worked and promise.probe in hits:
        worked = [hits[promise.probe]]
    seen = ", ".join(str(each) for each in worked)
    if expected is None:
        return Finding(name=promise.name, status="note", detail=f"can: {seen}" if worked else "cannot")
    if expected == WORKS:
        return Finding(
            name=promise.name, status="ok" if worked else "not_held", detail="can" if worked else "cannot"
        )
    return Finding(name=promise.name, status="not_held" if worked else "ok", detail=seen or "refused")


def _not_tried(name: str, why: str) -> Finding:
    return Finding(name=name, status="not_tried", detail=why)


def _existing(paths: Iterable[Path]) -> list[str]:
    found: list[str] = []
    for path in paths:
        with contextlib.suppress(OSError):
            if path.exists():
                found.append(str(path))
    return list(dict.fromkeys(found))


def _disks() -> list[str]:
    """Some block devices of this machine, and its memory."""
    found = [Path("/dev/mem"), Path("/dev/kmsg")]
    with contextlib.suppress(OSError):
        found += sorted(path for path in Path("/dev").iterdir() if stat.S_ISBLK(path.lstat().st_mode))[:8]
    return _existing(found)
