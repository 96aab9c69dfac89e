"""Says what the kernel reported: oopses, hung tasks, heat, hardware, segfaults, taint. Only observes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
import kernel_log
from areas import kernel
from checks import CannotSee, prompt
from commands import read
from report import Report, options, plural, run, shorten


def make(report: Report) -> None:
    asked = options(
        str(__doc__), since="from when on: boot, today, -2h, '2025-01-31 14:00'; without it since boot"
    )
    since = clock.since(asked.since or "boot")
    lines: list[kernel_log.Line] = []
    hidden = ""
    try:
        lines = kernel_log.lines(since)
    except CannotSee as err:
        hidden = str(err)
        report.note(hidden)
    found = kernel.groups(lines)
    told = [group.told() for group in found]
    if not kernel_log.is_container():
        told += [finding.text for finding in kernel.state()]
    taints = kernel.taints()
    when = f"since {clock.show(since)[:16]}"
    if told:
        report.finding = (
            told[0]
            if len(told) == 1
            else f"The kernel reported {plural(len(told), 'problem')}; first: {told[0]}"
        )
    elif hidden:
        report.finding = f"What the kernel reported cannot be seen: {hidden}"
    else:
        kinds = "oops, hung task, hardware error, throttling or crash of a program"
        report.finding = f"The kernel reported no {kinds} {when}."
    if found and "Programs crashed" in found[0].kind.about:
        report.next = "coredumpctl list"
    elif told:
        report.next = prompt("are the disks ok")
    report.text("Problems", *(f"- {text}" for text in told)) if len(told) > 1 else None
    shown = [
        f"{clock.show(at)} {shorten(text, 150)}"
        for at, text in lines
        if any(kind.pattern.search(text) for kind in kernel.KINDS)
    ]
    report.lines("The newest of these messages", shown[-10:])
    names = ", ".join(kernel.TAINTS.get(bit, f"bit {bit}") for bit in taints)
    release = (read("/proc/sys/kernel/osrelease") or "?").strip()
    report.text("Kernel", f"{release}, {f'tainted by {names}' if names else 'not tainted'}.")
    rows = [
        (name, f"{now:.0f} °C", f"{limit:.0f} °C" if limit else "-")
        for name, now, limit in kernel.temperatures()
    ]
    report.table("Temperatures", ("Sensor", "Now", "Critical"), rows)
    errors = kernel.memory_errors()
    report.table("Errors of the memory", ("Controller", "Corrected", "Uncorrected"), errors)


run(make)
