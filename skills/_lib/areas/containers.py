"""Containers of podman, docker and systemd-nspawn: state, exit status, restarts, health."""

from __future__ import annotations

import calendar
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import procfs
from checks import CannotSee, Finding, check
from commands import journal, run, stamp
from report import plural, span
from systemd_units import loaded

_SOCKETS = {"docker": ("/run/docker.sock", "/var/run/docker.sock")}
_RECENT_S = 7 * 86400.0
_BY_WILL = (0, 130, 137, 143)
"""Statuses of a container that ended well, or that somebody stopped."""


@dataclass(frozen=True)
class Container:
    """One container; times are seconds since 1970."""

    engine: str
    name: str
    image: str
    state: str
    """`running`, `exited`, `restarting`, `created`, `paused`, `dead`, as the engines have it."""
    status: int | None = None
    since: float | None = None
    restarts: int = 0
    health: str = ""
    identity: str = ""
    owner: str = ""

    @property
    def is_wrong(self) -> bool:
        if self.state in ("restarting", "dead") or self.health == "unhealthy":
            return True
        recent = self.since is None or time.time() - self.since < _RECENT_S
        return self.state == "exited" and self.status is not None and self.status not in _BY_WILL and recent

    def told(self) -> str:
        name = f"The container {self.name} ({self.engine}{f' of {self.owner}' if self.owner else ''})"
        ago = f" {span(time.time() - self.since)} ago" if self.since else ""
        again = f", after {plural(self.restarts, 'restart')}" if self.restarts else ""
        if self.state == "restarting":
            status = f", the last with status {self.status}" if self.status else ""
            return f"{name} crashes again and again{again}{status}."
        if self.state == "exited":
            killed = {
                137: " (killed: SIGKILL, perhaps for lack of memory)",
                139: " (SIGSEGV)",
                143: " (SIGTERM)",
            }
            what = {125: " (the engine failed)", 126: " (cannot be executed)", 127: " (command not found)"}
            more = killed.get(self.status or 0) or what.get(self.status or 0) or ""
            return f"{name} exited{ago} with status {self.status}{more}{again}."
        if self.health == "unhealthy":
            return f"{name} runs, and its health check fails{again}."
        return f"{name} is {self.state}{f' since{ago}' if ago else ''}{again}."


def containers() -> tuple[list[Container], list[str]]:
    """All containers that can be seen, and why others cannot."""
    found, hidden = [], []
    for engine in ("docker", "podman"):
        if shutil.which(engine) is None:
            continue
        if _may_ask(engine):
            listed, problem = _listed(engine)
            found += listed
            if problem:
                hidden.append(problem)
        else:
            told = _from_journal(engine)
            found += told
            hidden.append(f"{engine} cannot be asked by this user: what is told of it is from its log.")
    try:
        found += _of_systemd({one.identity for one in found})
    except CannotSee as err:
        hidden.append(f"Containers that have a unit cannot be seen: {err}")
    return sorted(found, key=lambda one: (not one.is_wrong, one.name)), hidden


def _may_ask(engine: str) -> bool:
    """Whether asking works, and writes nothing: podman makes folders for a user who has none."""
    if engine == "podman":
        return os.geteuid() == 0
    return any(os.access(path, os.R_OK | os.W_OK) for path in _SOCKETS[engine])


def _listed(engine: str) -> tuple[list[Container], str]:
    answer = run(engine, "ps", "--all", "--quiet", "--no-trunc", timeout_s=4)
    identities = answer.stdout.split()[:200]
    if not identities:
        return [], answer.problem
    shown = run(engine, "container", "inspect", *identities, timeout_s=6)
    try:
        rows = json.loads(shown.stdout or "[]")
    except ValueError:
        return [], shown.problem or f"{engine} inspect gave no JSON."
    return [inspected(engine, row) for row in rows if isinstance(row, dict)], ""


def inspected(engine: str, row: dict[str, Any]) -> Container:
    """A container from `docker inspect` or `podman inspect`."""
    state = row.get("State") or {}
    health = (state.get("Health") or state.get("Healthcheck") or {}).get("Status", "")
    running = state.get("Status") in ("running", "restarting", "paused")
    when = state.get("StartedAt" if running else "FinishedAt") or ""
    image = row.get("ImageName") or (row.get("Config") or {}).get("Image") or ""
    return Container(
        engine=engine,
        name=str(row.get("Name", "?")).lstrip("/"),
        image=str(image),
        state=str(state.get("Status", "?")),
        status=state.get("ExitCode") if not running or state.get("Status") == "restarting" else None,
        since=_moment(str(when)),
        restarts=int(row.get("RestartCount") or 0),
        health=str(health),
        identity=str(row.get("Id", "")),
    )


def _moment(text: str) -> float | None:
    """Seconds since 1970 of `2026-01-31T14:00:05.123Z`; None for an empty one, which is of the year 1."""
    match = re.match(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)? ?(?:Z|([+-])(\d\d):?(\d\d))?", text)
    if match is None or text.startswith("0001"):
        return None
    away = (int(match[4]) * 3600 + int(match[5]) * 60) * (-1 if match[3] == "-" else 1) if match[3] else 0
    return calendar.timegm(time.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S")) - away


def _from_journal(engine: str) -> list[Container]:
    """What the engine's events in the journal say of each container last; docker writes none."""
    if engine != "podman":
        return []
    entries, _ = journal("--since", "-7d", "SYSLOG_IDENTIFIER=podman", limit=3000, timeout_s=5)
    found: dict[str, Container] = {}
    for entry in entries:
        name, event = str(entry.get("PODMAN_NAME", "")), str(entry.get("PODMAN_EVENT", ""))
        if not name or entry.get("PODMAN_TYPE") != "container":
            continue
        one = found.get(name) or Container(engine, name, str(entry.get("PODMAN_IMAGE", "")), "created")
        found[name] = after(one, event, entry)
        if event == "remove":
            del found[name]
    return list(found.values())


def after(one: Container, event: str, entry: dict[str, Any]) -> Container:
    """A container after an event of podman-events(1), from the fields that it has in the journal."""
    uid = str(entry.get("_UID", "0"))
    one = replace(
        one, identity=str(entry.get("PODMAN_ID", "")), owner=procfs.user(int(uid)) if uid != "0" else ""
    )
    if event in ("start", "restart"):
        again = one.restarts + (one.state == "exited")
        return replace(one, state="running", since=stamp(entry), status=None, restarts=again)
    if event == "died":
        code = str(entry.get("PODMAN_EXIT_CODE", ""))
        return replace(one, state="exited", since=stamp(entry), status=int(code) if code.isdigit() else None)
    if event == "health_status":
        return replace(one, health=str(entry.get("PODMAN_HEALTH_STATUS", "")))
    return one


def _of_systemd(known: set[str]) -> list[Container]:
    """Containers that have a unit: those of machined and systemd-nspawn, and scopes of the engines."""
    found = []
    for unit in loaded().values():
        nspawn = re.fullmatch(r"(?:systemd-nspawn@|machine-)(.+)\.(?:service|scope)", unit.name)
        scope = re.fullmatch(r"(docker|libpod|crio|cri-containerd)-([0-9a-f]{12,})\.scope", unit.name)
        state = {"active": "running", "failed": "exited", "inactive": "exited"}.get(unit["ActiveState"], "?")
        if nspawn:
            status = unit.number("ExecMainStatus") if state == "exited" else None
            name = nspawn[1].replace("\\x2d", "-")
            found.append(
                Container("nspawn", name, "", state, status, unit.changed, max(0, unit.number("NRestarts")))
            )
        elif scope and scope[2] not in known:
            engine = "podman" if scope[1] == "libpod" else scope[1]
            found.append(Container(engine, scope[2][:12], "", state, None, unit.changed, identity=scope[2]))
    return found


@check("containers.state", "containers that exited, restart or are unhealthy")
def state() -> Iterator[Finding]:
    found, hidden = containers()
    for one in found:
        if one.is_wrong and one.engine != "nspawn":  # its unit is among those that failed
            yield Finding(one.told(), f"why did the container {one.name} exit", one.since)
    if hidden and any(Path(path).exists() for path in ("/var/lib/docker", "/var/lib/containers")):
        raise CannotSee(" ".join(hidden))
