"""Says whether the clock is synchronised, by which service, and what that service said. Only observes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import clock_sync
from headline import tell
from report import Report, options, run, shorten


def state(found: clock_sync.Sync, said: list[tuple[float, str]], offset: str) -> str:
    """The sentence of a clock without a fault."""
    service = found.service
    zone = f" Timezone: {found.timezone or 'unknown'}."
    if found.is_container and service is None:
        return "This is a container, so the host sets the clock." + zone
    if found.synchronised is None:
        return f"Whether the clock is synchronised cannot be said: {found.problem.rstrip('.')}.{zone}"
    by = f" by {service.name}" if service else ""
    if not found.synchronised:
        return f"The clock is not synchronised yet{by}.{zone}"
    good = [when for when, _ in said]
    since = f"; its last word about a server is from {clock.show(good[-1])}" if good else ""
    return f"The clock is synchronised{by}{f', offset {offset}' if offset else ''}{since}.{zone}"


def make(report: Report) -> None:
    options(str(__doc__))
    found = clock_sync.look()
    service = found.service
    said = clock_sync.news(service.name) if service else []
    offset = clock_sync.offset() if service and service.is_running else ""
    tell(
        report,
        clock_sync.faults(found, said),
        state(found, said, offset),
        look="timedatectl status",
        own=clock_sync.ASK,
    )
    rows = [
        ("Time here", clock.show(time.time())),
        ("Timezone", found.timezone or "unknown"),
        ("Synchronised", {True: "yes", False: "no", None: "not known"}[found.synchronised]),
        ("Offset", offset or "not known"),
    ]
    report.table("Clock", ("What", "Value"), rows)
    report.table(
        "Services that set the clock",
        ("Unit", "State", "Since", "At boot"),
        [
            (one.name, one.active, clock.show(one.since) if one.since else "-", one.file_state)
            for one in found.services
        ],
        "None is installed.",
    )
    report.lines("What it said", [f"{clock.show(when)} {shorten(text)}" for when, text in said[-6:]])
    report.note(found.problem)
    if service and not offset:
        report.note(f"The offset: {service.name} tells it only over a socket that cannot be asked from here.")


run(make)
