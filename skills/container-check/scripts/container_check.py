"""Says how containers of podman, docker and nspawn are, and why one exited. Only observes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import containers
from areas.containers import Container
from causes import Run
from checks import prompt
from commands import journal, message, stamp
from commands import run as run_command
from report import Report, options, plural, refuse, run, shorten


def log_of(one: Container) -> tuple[list[str], str]:
    """The last lines of a container, and the one that tells most."""
    for match in (f"CONTAINER_NAME={one.name}", f"_SYSTEMD_UNIT=systemd-nspawn@{one.name}.service"):
        entries, _ = journal("--since", "-7d", match, limit=60, timeout_s=5)
        if entries:
            lines = [f"{clock.show(stamp(entry))} {shorten(message(entry), 150)}" for entry in entries]
            return lines, Run(entries).cause()
    if one.engine in ("docker", "podman") and one.identity:
        shown = run_command(one.engine, "logs", "--tail", "40", one.identity, timeout_s=5)
        lines = (shown.stdout + shown.stderr).splitlines() if not shown.problem else []
        return lines, Run([{"MESSAGE": line} for line in lines]).cause()
    return [], ""


def of_one(name: str, found: list[Container], report: Report) -> None:
    exact = [one for one in found if name == one.name or (len(name) >= 6 and one.identity.startswith(name))]
    near = exact or [one for one in found if name.lower() in one.name.lower()]
    if not near:
        seen = " that can be seen" if report.has_notes else ""
        report.finding = f"There is no container {name}{seen} on this machine."
        report.found_nothing = True
        report.table("Containers", ("Container", "State"), [(one.name, one.state) for one in found])
        return
    one = near[0]
    lines, cause = log_of(one)
    text = one.told()
    report.finding = f"{text.rstrip('.')}: {cause}." if cause and one.is_wrong else text
    report.next = (
        f"{one.engine} logs {one.name}" if one.engine != "nspawn" else f"machinectl status {one.name}"
    )
    report.lines(f"Log of {one.name}", lines[-12:])
    table(report, near)


def table(report: Report, found: list[Container]) -> None:
    rows = [
        (
            one.name,
            one.engine,
            f"{one.state}{f' ({one.health})' if one.health else ''}",
            "-" if one.status is None else one.status,
            one.restarts,
            clock.show(one.since)[:16] if one.since else "-",
        )
        for one in found
    ]
    report.table("Containers", ("Container", "Engine", "State", "Status", "Restarts", "Since"), rows)


def make(report: Report) -> None:
    name = options(str(__doc__), container="the container; without it all").container
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        refuse(f"--container={name} is not the name of a container.")
    found, hidden = containers.containers()
    for sentence in hidden:
        report.note(sentence)
    if name:
        of_one(name, found, report)
        return
    wrong = [one for one in found if one.is_wrong]
    running = sum(1 for one in found if one.state == "running")
    if len(wrong) == 1:
        report.finding = wrong[0].told()
    elif wrong:
        report.finding = f"{len(wrong)} containers have a problem; the first: {wrong[0].told()}"
    elif found:
        stopped = len(found) - running
        more = f", {stopped} stopped" if stopped else ""
        report.finding = f"No container has a problem: {plural(running, 'container')} run{more}."
    elif hidden:
        report.finding = "No container can be seen here, but not everything that runs some could be asked."
    else:
        report.finding = (
            "There are no containers: neither docker nor podman is installed, and nspawn runs none."
        )
    if wrong:
        report.next = prompt(f"why did the container {wrong[0].name} exit")
        report.text("Problems", *(f"- {one.told()}" for one in wrong)) if len(wrong) > 1 else None
    table(report, found)


run(make)
