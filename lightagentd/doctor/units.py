"""Checks that units are installed, loaded as on disk, not failed, and not enabled without their agent.

systemd answers these questions over D-Bus to everybody (org.freedesktop.systemd1(5)).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightagentd.api import Finding
from lightagentd.bus.connection import Bus, connect
from lightagentd.bus.errors import SYSTEMD_NAME
from lightagentd.client.blocking import SYSTEM_SOCKET
from lightagentd.doctor.finding import not_tried, note, ok, wrong
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths, content_folders
from lightagentd.host.systemd import BOOTED
from lightagentd.text.reason import reason
from lightagentd.worker.change_profiles import DROP_IN as _PROFILE
from lightagentd.worker.change_profiles import chosen

SERVICE, SOCKET = "lightagentd.service", "lightagentd.socket"
WORKERS = (
    "lightagent-observe@.socket",
    "lightagent-observe@.service",
    "lightagent-reach@.socket",
    "lightagent-reach@.service",
    "lightagent-change@.socket",
    "lightagent-change@.service",
    "lightagent-bus@.service",
    "lightagent-inspect.socket",
    "lightagent-inspect.service",
    "lightagent-keys.socket",
    "lightagent-keys.service",
    "lightagent-approver.socket",
    "lightagent-approver-daemon.socket",
    "lightagent-approver.service",
)
_PATTERNS = ["lightagent*"]
_ROOT, _MANAGER = "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"
_UNIT, _SERVICE = "org.freedesktop.systemd1.Unit", "org.freedesktop.systemd1.Service"
_CALL_S = 10.0
_ENABLED = (Path("/etc/systemd/system"), Path("/run/systemd/system"))
_REINSTALL = "Install the package again: apt install --reinstall lightagentd"
_OBSERVE = "lightagent-observe@07.service"
_FAR = re.compile(
    r"autofs|nfs4?|cifs|smb3?|afs|ceph|9p|lustre|gfs2|ocfs2|fuse\.(sshfs|glusterfs|rclone|s3fs|davfs2)"
)
"""Types of file systems."""
_STARTUP = ("enabled", "enabled-runtime")


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A unit that systemd has in memory."""

    name: str
    path: str
    properties: dict[str, Any]


async def check(paths: Paths, pid: int | None) -> list[Finding]:
    """`pid` is the daemon's that answers on the control socket, if one does."""
    if not BOOTED.is_dir():
        return [note("units", "systemd", "does not run here; the daemon starts its workers itself", "")]
    try:
        async with connect("system", timeout_s=_CALL_S) as bus:
            return await _check(bus, paths, pid)
    except LightagentError as err:
        return [not_tried("units", "systemd", err.message, "Have the bus work first.")]


async def _check(bus: Bus, paths: Paths, pid: int | None) -> list[Finding]:
    [rows] = await bus.call(
        SYSTEMD_NAME, _ROOT, _MANAGER, "ListUnitFilesByPatterns", "asas", [[], _PATTERNS], _CALL_S
    )
    files = {os.path.basename(path): state for path, state in rows}  # noqa: PTH119 - no file is touched
    if SERVICE not in files:
        remedy = "Install the package; without it nothing starts the daemon by itself."
        return [note("units", "units", f"{SERVICE} is not installed", remedy)]
    [rows] = await bus.call(
        SYSTEMD_NAME, _ROOT, _MANAGER, "ListUnitsByPatterns", "asas", [[], _PATTERNS], _CALL_S
    )
    loaded = [
        _Loaded(name=row[0], path=row[6], properties=await bus.properties(SYSTEMD_NAME, row[6], _UNIT))
        for row in rows
    ]
    return [
        _installed(files),
        _startup(files),
        *_states(loaded),
        *await _service(bus, loaded, pid if str(paths.socket) == SYSTEM_SOCKET else None),
        *await _networks(bus, loaded),
        await _mounts(bus),
        *_instances(paths),
    ]


def _installed(files: dict[str, str]) -> Finding:
    missing = [name for name in WORKERS if name not in files]
    masked = [name for name, state in files.items() if state.startswith("masked")]
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        return wrong("units", "installed", detail, f"{_REINSTALL}; systemctl daemon-reload")
    if masked:
        detail = f"masked, so they cannot be started: {', '.join(masked)}"
        return wrong("units", "installed", detail, f"Allow them again: systemctl unmask {' '.join(masked)}")
    return ok("units", "installed", f"{len(files)} units")


def _startup(files: dict[str, str]) -> Finding:
    started = [name for name in (SERVICE, SOCKET) if files.get(name) in _STARTUP]
    if started:
        return ok("units", "at boot", f"{' and '.join(started)} enabled")
    detail = f"neither {SERVICE} nor {SOCKET} is enabled, so the daemon is started by hand"
    return note("units", "at boot", detail, "To have it started at boot: systemctl enable lightagentd")


def _states(loaded: list[_Loaded]) -> list[Finding]:
    found = []
    for unit in loaded:
        has, name = unit.properties, unit.name
        if has["ActiveState"] == "failed":
            remedy = f"See why (journalctl -u {name}), then: systemctl restart {name}"
            found.append(wrong("units", name, "has failed", remedy))
        if has["LoadState"] in ("error", "bad-setting"):
            remedy = f"Mend it: systemd-analyze verify {name}"
            found.append(wrong("units", f"{name}, loaded", f"cannot be loaded: {has['LoadState']}", remedy))
        if has["NeedDaemonReload"]:
            detail = "its file on disk was changed since it was loaded"
            remedy = f"Have it read again: systemctl daemon-reload; systemctl restart {name}"
            found.append(wrong("units", f"{name}, on disk", detail, remedy))
        drop_ins = [path for path in has.get("DropInPaths", []) if not path.endswith(f"/{_PROFILE}")]
        if len(drop_ins) < len(has.get("DropInPaths", [])):
            agent = name.partition("@")[2].removesuffix(".service")
            detail = f"narrowed to {chosen(agent)}"
            found.append(
                note("units", f"{name}, profile", detail, f"Take it away: lactl change widen {agent}")
            )
        if drop_ins:
            remedy = f"See what is in force: systemctl cat {name}; undo it: systemctl revert {name}"
            found.append(note("units", f"{name}, overridden", ", ".join(drop_ins), remedy))
    return found or [ok("units", "state", f"none of {len(loaded)} has failed, and none is overridden")]


async def _networks(bus: Bus, loaded: list[_Loaded]) -> list[Finding]:
    """systemd starts a unit without a network of its own where the kernel refuses one, and says nothing."""
    found = []
    for unit in loaded:
        if unit.name.endswith(".service") and unit.properties["ActiveState"] == "active":
            has = await bus.properties(SYSTEMD_NAME, unit.path, _SERVICE)
            if has["PrivateNetwork"] and shares_network(has["MainPID"]):
                detail = "is in the machine's network, although its file says PrivateNetwork=yes"
                remedy = "Let the kernel or container make network namespaces, and restart it."
                found.append(wrong("units", f"{unit.name}, network", detail, remedy))
    return found


async def _mounts(bus: Bus) -> Finding:
    [path] = await bus.call(SYSTEMD_NAME, _ROOT, _MANAGER, "LoadUnit", "s", [_OBSERVE], _CALL_S)
    has = await bus.properties(SYSTEMD_NAME, path, _SERVICE)
    hidden = [Path(one.lstrip("-+")) for one in has["InaccessiblePaths"]]
    seen = [
        (mount, kind)
        for mount, kind in far_mounts(Path("/proc/self/mountinfo").read_text())
        if not any(mount.is_relative_to(folder) for folder in hidden)
    ]
    if not seen:
        return ok("units", "mounts of others", "observe sees none")
    named = ", ".join(f"{mount} ({kind})" for mount, kind in seen)
    paths = " ".join(str(mount) for mount, _ in seen)
    remedy = f"Where that matters: systemctl edit lightagent-observe@, [Service] InaccessiblePaths={paths}"
    detail = f"observe can look for names on other machines, and so tell them one: {named}"
    return note("units", "mounts of others", detail, remedy)


def far_mounts(mountinfo: str) -> list[tuple[Path, str]]:
    """The mounts in which a lookup asks another machine or a service, and their types.

    That of binfmt_misc mounts nothing of others. See proc_pid_mountinfo(5).
    """
    found = set()
    for line in mountinfo.splitlines():
        fields, _, source = line.partition(" - ")
        mount = fields.split()[4].encode().decode("unicode_escape")
        kind = source.split()[0]
        if _FAR.fullmatch(kind) and not mount.startswith("/proc/"):
            found.add((Path(mount), kind))
    return sorted(found)


def shares_network(pid: int, first: int = 1) -> bool:
    """Whether a process is known to be in the network namespace of the machine's first process."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == Path(f"/proc/{first}/ns/net").stat().st_ino
    except OSError:  # it has ended, or only root may look
        return False


async def _service(bus: Bus, loaded: list[_Loaded], pid: int | None) -> list[Finding]:
    unit = next((unit for unit in loaded if unit.name == SERVICE), None)
    if unit is None or unit.properties["ActiveState"] != "active":
        if pid is None:
            return []
        detail = f"{SERVICE} does not run: somebody started the daemon {pid} that answers by hand"
        remedy = f"Have systemd run it: kill {pid}; systemctl start lightagentd"
        return [note("units", "who answers", detail, remedy)]
    has = await bus.properties(SYSTEMD_NAME, unit.path, _SERVICE)
    found = []
    if pid is not None and has["MainPID"] != pid:
        detail = f"another daemon, {pid}, answers on the control socket than that of {SERVICE}"
        remedy = f"See what it is (ps -fp {pid}), end it, then: systemctl restart lightagentd"
        found.append(wrong("units", "who answers", detail, remedy))
    if watchdog_us := has.get("WatchdogUSec", 0):
        found.append(ok("units", "watchdog", f"{watchdog_us / 1e6:g} s"))
    else:
        remedy = "Take WatchdogSec=0 out of its drop-ins: systemctl edit lightagentd"
        found.append(note("units", "watchdog", "off: a daemon that hangs is not started again", remedy))
    if restarts := has.get("NRestarts", 0):
        remedy = "See why: journalctl -u lightagentd; forget it: systemctl reset-failed lightagentd"
        found.append(note("units", "restarts", f"systemd started it again {restarts} times", remedy))
    return found


def _instances(paths: Paths) -> list[Finding]:
    """Check for units enabled for a missing agent or prompt."""
    try:
        agents = {
            entry.name
            for folder in content_folders("agent", paths)
            for entry in folder.iterdir()
            if (entry / "AGENT.md").is_file()
        }
        agents |= {
            f"{path.parents[2].name}.{path.parent.name}"  # members of a kit
            for folder in content_folders("agent", paths)
            for path in folder.glob("*/agents/*/AGENT.md")
        }
        prompts = {path.stem for path in (paths.config / "prompts").glob("*.toml")}
        enabled = {link.name for folder in _ENABLED for link in folder.glob("*.*/lightagent-*@*.*")}
    except OSError as err:
        return [not_tried("units", "instances", reason(err, at=True))]
    strangers = []
    for name in sorted(enabled):
        kind, _, rest = name.partition("@")
        instance = rest.rpartition(".")[0]
        known = prompts if kind == "lightagent-prompt" else agents
        if kind != "lightagent-triage" and instance not in known:
            what = "prompt" if kind == "lightagent-prompt" else "agent"
            detail = f"enabled, and there is no {what} {instance}"
            strangers.append(wrong("units", name, detail, f"Disable it: systemctl disable --now {name}"))
    return strangers or [ok("units", "instances", f"{len(enabled)} enabled, each for something that exists")]
