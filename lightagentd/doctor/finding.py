"""Makes, orders and merges findings."""

from __future__ import annotations

from collections.abc import Iterable

from lightagentd.api import Finding
from lightagentd.host.systemd import BOOTED

GROUPS = (
    "daemon",
    "socket",
    "bus",
    "polkit",
    "approver",
    "units",
    "agents",
    "models",
    "history",
    "journal",
    "disk",
    "clock",
    "configuration",
    "files",
    "programs",
    "machine",
)
"""What findings belong to, in the order of a report: first what keeps everything else from working."""
BAD = ("not_held", "wrong")
AS_ROOT = "Run it as root: sudo lactl doctor."


def ok(group: str, name: str, detail: str) -> Finding:
    return Finding(group=group, name=name, status="ok", detail=detail)


def wrong(group: str, name: str, detail: str, remedy: str) -> Finding:
    return Finding(group=group, name=name, status="wrong", detail=detail, remedy=remedy)


def note(group: str, name: str, detail: str, remedy: str) -> Finding:
    return Finding(group=group, name=name, status="note", detail=detail, remedy=remedy)


def not_tried(group: str, name: str, why: str, remedy: str = AS_ROOT) -> Finding:
    return Finding(group=group, name=name, status="not_tried", detail=why, remedy=remedy)


def where_logs_are(*units: str) -> str:
    """What shows the log of the daemon and of these units."""
    if not BOOTED.is_dir():
        return "the standard error of lightagentd"
    return f"journalctl {' '.join(f'-u {unit}' for unit in ('lightagentd', *units))}"


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by group; within a group in the order found."""
    return sorted(findings, key=lambda one: GROUPS.index(one.group) if one.group in GROUPS else len(GROUPS))


def merged(inside: Iterable[Finding], outside: Iterable[Finding]) -> list[Finding]:
    """The findings of the daemon and of `lactl` together, each once.

    Each sees things that the other may not: the daemon its own state, root the rest. Of two findings a tried
    one counts; if both were tried, the worse.
    """
    found = {(one.group, one.name): one for one in inside}
    for one in outside:
        other = found.get((one.group, one.name))
        if other is None or _weight(one) > _weight(other):
            found[one.group, one.name] = one
    return in_order(found.values())


def _weight(finding: Finding) -> int:
    return ("not_tried", "ok", "note", "wrong", "not_held").index(finding.status)
