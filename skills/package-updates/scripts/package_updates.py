"""Lists packages with newer versions, as local lists know them, and needed reboots and restarts."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import packages
from checks import CannotSee, prompt
from commands import run as run_command
from report import Report, options, plural, run, span

_OLD_S = 7 * 86400.0

Update = tuple[str, str, str, bool]
"""Package, version now, new version, whether it is a security update."""


def with_apt(report: Report) -> list[Update] | None:
    answer = run_command("apt", "list", "--upgradable", timeout_s=40)
    if answer.problem:
        report.note(answer.problem)
        return None
    found = []
    for line in answer.stdout.splitlines():
        match = re.match(r"([^/\s]+)/(\S+) (\S+) \S+ \[upgradable from: ([^\]]+)\]", line)
        if match:
            found.append((match[1], match[4], match[3], "security" in match[2]))
    return found


def with_dnf(report: Report) -> list[Update] | None:
    program = "dnf" if shutil.which("dnf") else "yum"
    answer = run_command(program, "-q", "-C", "check-update", timeout_s=50)
    if answer.problem and answer.status != 100:
        report.note(answer.problem)
        return None
    security = run_command(program, "-q", "-C", "updateinfo", "list", "--security", timeout_s=30).stdout
    found = []
    for line in answer.stdout.partition("Obsoleting Packages")[0].splitlines():
        columns = line.split()
        if len(columns) == 3:
            name = columns[0].rpartition(".")[0] or columns[0]
            found.append((name, "", columns[1], f"{name}-{columns[1]}" in security))
    return found


def with_zypper(report: Report) -> list[Update] | None:
    answer = run_command(
        "zypper", "--non-interactive", "--no-refresh", "--quiet", "list-updates", timeout_s=50
    )
    if answer.problem:
        report.note(answer.problem)
        return None
    rows = [
        [cell.strip() for cell in line.split("|")]
        for line in answer.stdout.splitlines()
        if line.count("|") >= 4
    ]
    return [(row[2], row[3], row[4], False) for row in rows if row[2] != "Name"]


def with_pacman(report: Report) -> list[Update] | None:
    answer = run_command("pacman", "-Qu", timeout_s=30)
    if answer.problem and answer.status != 1:
        report.note(answer.problem)
        return None
    rows = [line.split() for line in answer.stdout.splitlines()]
    return [(row[0], row[1], row[3], False) for row in rows if len(row) >= 4]


_MANAGERS = (
    ("apt", with_apt),
    ("dnf", with_dnf),
    ("yum", with_dnf),
    ("zypper", with_zypper),
    ("pacman", with_pacman),
)


def after_updates(report: Report) -> str:
    """Whether a reboot or restarts are due, as sentences, with the services in a table."""
    because, _ = packages.reboot_reason()
    words = (
        f"A reboot is required: {because}." if because else "No reboot is required, as far as can be seen."
    )
    try:
        outdated = packages.outdated_services()
    except CannotSee as err:
        report.note(f"Which services need a restart: {err}")
        return words
    if outdated:
        few = ", ".join(name for name, _, _ in outdated[:3]) + (", ..." if len(outdated) > 3 else "")
        words += (
            f" {plural(len(outdated), 'service')} still {'runs' if len(outdated) == 1 else 'run'} what an "
        )
        words += f"update replaced: {few}."
    report.table(
        "Services that began before an update",
        ("Unit", "Because of", "Updated"),
        [(name, package, clock.show(when)) for name, package, when in outdated],
    )
    return words


def make(report: Report) -> None:
    options(str(__doc__))
    manager = next((row for row in _MANAGERS if shutil.which(row[0])), None)
    if manager is None:
        report.finding = (
            f"No known package manager is here (apt, dnf, yum, zypper, pacman). {after_updates(report)}"
        )
        return
    name, ask = manager
    found, age = ask(report), packages.lists_age()
    rows = sorted(found or (), key=lambda row: (not row[3], row[0]))
    header = ("Package", "Installed", "Available", "Security")
    report.table("Updates", header, [(*row[:3], "yes" if row[3] else "") for row in rows])
    due = after_updates(report)
    security = sum(row[3] for row in rows)
    old = "" if age is None else f"the package lists are {span(age)} old"
    if found is None:
        report.finding = f"{name} could not list the updates. {due}"
    elif age is None:
        known = "there are no package lists on this machine, so newer versions are not known"
        report.finding = f"It cannot be said whether the system is up to date: {known}. {due}"
        report.next = "apt-get update" if name == "apt" else ""
    elif found:
        words = f"{plural(len(found), 'package')} can be updated"
        words += f", {security} of them for security" if security else ", none of them for security"
        report.finding = f"{words}; {old}. {due}"
    else:
        report.finding = f"Every package is up to date; {old}. {due}"
    if age is not None and age > _OLD_S:
        since = clock.show(time.time() - age)
        report.note(f"Updates that came out since {since}, when the package lists were last refreshed.")
    if any(one.fault for one in packages.dpkg_packages()):
        report.next = prompt(packages.ASK)
    report.text("Kernel", f"{os.uname().release} runs.")


run(make)
