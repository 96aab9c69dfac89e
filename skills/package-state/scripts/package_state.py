"""Says whether the package system is whole, who holds its lock, and what is known of a package."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import packages
from checks import CannotSee, prompt
from commands import run as run_command
from headline import tell
from report import Report, options, plural, refuse, run, span

_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._:@~-]*")


def events_of(name: str) -> list[packages.Event]:
    return [one for one in packages.events(packages.all_logs()) if one.package == name]


def installed_when(name: str, events: list[packages.Event]) -> float | None:
    """When this version came: by dpkg.log, else by the age of its list of files, or what rpm says."""
    came = [one.when for one in events if one.action in ("install", "upgrade")]
    if came:
        return came[-1]
    for file in Path("/var/lib/dpkg/info").glob(f"{name}*.list"):
        if file.name[: -len(".list")].partition(":")[0] == name:
            return file.stat().st_mtime
    seconds = run_command("rpm", "-q", "--queryformat=%{INSTALLTIME}\n", name, timeout_s=4).stdout.split(
        "\n"
    )[0]
    return float(seconds) if seconds.isdigit() else None


def about(name: str, known: list[packages.Package], report: Report) -> str:
    """The sentence about one package, with what happened to it."""
    events = events_of(name)
    report.table(
        "What happened to it",
        ("Time", "What", "Before", "After"),
        [(clock.show(one.when), one.action, one.before, one.after) for one in reversed(events)],
    )
    found = next((one for one in known if one.name == name), None)
    if found is not None and found.state not in ("not-installed", "config-files"):
        when = installed_when(name, events)
        how = "and was upgraded" if events and events[-1].action == "upgrade" else "since"
        since = f" {how} {clock.show(when)}" if when else ""
        held = ", and it is held back from upgrades" if found.wanted == "hold" else ""
        if found.fault:
            reason = packages.reason_of(name, packages.last_lines())
            report.next = "dpkg --audit"
            return f"The package {name} {found.version} {found.fault}" + (f": {reason}." if reason else ".")
        return f"{name} {found.version} is installed{since}{held}."
    report.found_nothing = True
    gone = [one for one in events if one.action in ("remove", "purge")]
    if gone:
        return f"{name} is not installed: {gone[-1].before} was removed {clock.show(gone[-1].when)}."
    there = [one.name for one in known if one.state == "installed"]
    near = [one for one in there if name in one] or difflib.get_close_matches(name, there, 3, 0.75)
    if found is not None:
        return f"{name} is not installed: only its configuration is left."
    return f"{name} is not installed" + (f"; installed are {', '.join(sorted(near)[:4])}." if near else ".")


def make(report: Report) -> None:
    asked = options(str(__doc__), package="what is known of this package")
    if asked.package is not None and not _PACKAGE.fullmatch(asked.package):
        refuse(f"--package={asked.package} is not the name of a package.")
    known = packages.dpkg_packages() or packages.rpm_packages()
    if not known:
        report.finding = "No package system is known here: neither dpkg nor rpm lists a package."
        return
    holders, could_read = packages.holders()
    if asked.package:
        report.finding = about(asked.package.partition(":")[0], known, report)
        return
    found = []
    for one in (packages.state, packages.lock, packages.stale):
        try:
            found += list(one())
        except CannotSee as err:
            report.note(str(err))
    age = packages.lists_age()
    held = [one for one in known if one.wanted == "hold"]
    total = plural(sum(one.state == "installed" for one in known), "package")
    held_names = ", ".join(one.name for one in held[:4]) + (", ..." if len(held) > 4 else "")
    good = f"{holders[0].sentence}; the package system" if holders else "The package system"
    good += f" is whole: {total} installed, none broken"
    good += f", held back: {held_names}" if held else ", none held back"
    good += "; nobody holds its lock." if could_read and not holders else "."
    is_stale = bool(found) and found[0].text.startswith("The package lists")
    tell(report, found, good, look="apt-get update" if is_stale else "dpkg --audit", own=packages.ASK)
    if holders and not found:
        report.next = prompt(f"what does pid {holders[0].pid} do")
    broken = [one for one in known if one.fault]
    report.table(
        "Packages that are not whole",
        ("Package", "Version", "State"),
        [
            (one.name, one.version, f"{one.state} ({one.flag})" if one.flag != "ok" else one.state)
            for one in broken
        ],
    )
    report.table(
        "Locks that are held",
        ("Lock", "Process", "Since"),
        [
            (one.lock, f"{one.name} (pid {one.pid})", clock.show(one.started) if one.started else "-")
            for one in holders
        ],
    )
    report.table(
        "Packages that are held back", ("Package", "Version"), [(one.name, one.version) for one in held]
    )
    lists = "There are no package lists here." if age is None else f"The package lists are {span(age)} old."
    report.text("Lists", lists)
    last = sorted(packages.events(), key=lambda one: one.when)[-8:]
    report.table(
        "Last changes",
        ("Time", "What", "Package", "Version"),
        [(clock.show(one.when), one.action, one.package, one.after or one.before) for one in reversed(last)],
    )


run(make)
