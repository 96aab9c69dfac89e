"""Lists packages with newer versions, as local lists know them, and pending reboots. Only observes."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from commands import read
from commands import run as run_command
from report import Report, options, plural, run, span

_ROWS = 60
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
    ("apt", with_apt, ("/var/lib/apt/periodic/update-success-stamp", "/var/lib/apt/lists")),
    ("dnf", with_dnf, ("/var/cache/libdnf5", "/var/cache/dnf")),
    ("yum", with_dnf, ("/var/cache/yum",)),
    ("zypper", with_zypper, ("/var/cache/zypp/raw",)),
    ("pacman", with_pacman, ("/var/lib/pacman/sync",)),
)


def lists_age(paths: tuple[str, ...]) -> float | None:
    """Seconds since the package lists were refreshed: by their newest file."""
    newest = 0.0
    for path in paths:
        for file in (Path(path), *(Path(path).glob("*") if Path(path).is_dir() else ())):
            if file.name in ("lock", "partial", "auxfiles"):
                continue
            try:
                newest = max(newest, file.stat().st_mtime if file.is_file() else 0.0)
            except OSError:
                continue
    return time.time() - newest if newest else None


def version_key(version: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[A-Za-z]+", version)
    ]


def reboot(report: Report) -> tuple[bool, str]:
    """Whether a reboot is required, and the sentence that says why."""
    if Path("/run/reboot-required").exists() or Path("/var/run/reboot-required").exists():
        packages = sorted(set((read("/run/reboot-required.pkgs") or "").split()))
        return True, "A reboot is required" + (f" because of {', '.join(packages[:8])}." if packages else ".")
    running = os.uname().release
    flavour = running.rpartition("-")[2]
    kernels = (
        [entry.name for entry in Path("/lib/modules").glob("*") if entry.is_dir()]
        if Path("/lib/modules").is_dir()
        else []
    )
    alike = [name for name in kernels if name.rpartition("-")[2] == flavour or "." in flavour]
    newest = max(alike, key=version_key, default="")
    if running in kernels and newest and version_key(newest) > version_key(running):
        return True, f"A reboot is required: the kernel {newest} is installed, and {running} still runs."
    if not (Path("/run/utmp").exists() or Path("/run/systemd/system").exists()):
        report.note(
            "Whether a package asked for a reboot: the mark in /run may not be visible from "
            "here; only kernels were compared."
        )
    return False, "No reboot is required, as far as can be seen."


def make(report: Report) -> None:
    options(str(__doc__))
    required, reboot_words = reboot(report)
    manager = next((row for row in _MANAGERS if shutil.which(row[0])), None)
    if manager is None:
        report.finding = f"No known package manager is here (apt, dnf, yum, zypper, pacman). {reboot_words}"
        return
    name, ask, paths = manager
    found, age = ask(report), lists_age(paths)
    old = "" if age is None else f"the package lists are {span(age)} old"
    if found is None:
        report.finding = f"{name} could not list the updates. {reboot_words}"
        return
    security = sum(row[3] for row in found)
    if age is None:
        known = "there are no package lists on this machine, so newer versions are not known"
        report.finding = f"It cannot be said whether the system is up to date: {known}. {reboot_words}"
    elif found:
        words = f"{plural(len(found), 'package')} can be updated" + (
            f", {security} of them for security" if security else ""
        )
        report.finding = f"{words}; {old}. {reboot_words}"
    else:
        report.finding = f"Every package is up to date; {old}. {reboot_words}"
    if age is not None and age > _OLD_S:
        report.note(
            f"Updates that came out in the last {span(age)}: the package lists were not refreshed since then."
        )
    rows = sorted(found, key=lambda row: (not row[3], row[0]))
    header = ("Package", "Installed", "Available", "Security")
    report.table("Updates", header, [(*row[:3], "yes" if row[3] else "") for row in rows[:_ROWS]])
    if len(rows) > _ROWS:
        report.note(f"{len(rows) - _ROWS} more packages.")
    held = run_command("apt-mark", "showhold").stdout.split() if name == "apt" else []
    report.table("Packages that are held back", ("Package",), [(package,) for package in held])
    report.text(
        "Reboot",
        reboot_words
        + f" Running kernel: {os.uname().release}."
        + (" It was not done yet." if required else ""),
    )


run(make)
