"""Says what this machine is: system, kernel, processors, memory, disks, addresses, uptime. Only observes."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import memory, space
from clock import boot_time, show
from commands import read
from commands import run as run_command
from report import Report, human, options, plural, run, span


def release() -> dict[str, str]:
    lines = (read("/etc/os-release") or read("/usr/lib/os-release") or "").splitlines()
    return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}


def processors() -> tuple[str, int]:
    """The model, and how many may be used here."""
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", read("/proc/cpuinfo") or "", re.M)
    return (found[1] if found else platform.machine()), len(os.sched_getaffinity(0))


def hardware() -> str:
    parts = (read(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name"))
    return " ".join(part.strip() for part in parts if part.strip())


def virtualization() -> str:
    answer = run_command("systemctl", "show", "--property=Virtualization", timeout_s=4)
    kind = answer.stdout.partition("=")[2].strip()
    if kind:
        return f"virtual ({kind})"
    return "a container" if Path("/.dockerenv").exists() else "" if answer.problem else "no, real hardware"


def addresses() -> list[str]:
    """`eth0 192.0.2.7/24`, without the loopback."""
    try:
        links = json.loads(run_command("ip", "-j", "address", timeout_s=4).stdout or "[]")
    except ValueError:
        return []
    return [
        f"{link['ifname']} {address['local']}/{address['prefixlen']}"
        for link in links
        for address in link.get("addr_info", [])
        if address.get("scope") != "host" and not str(address.get("local", "")).startswith("fe80")
    ]


def make(report: Report) -> None:
    options(str(__doc__))
    system, host, (model, count) = release(), platform.node(), processors()
    info, booted = memory.meminfo(), boot_time()
    up = span(time.time() - booted)
    name = system.get("PRETTY_NAME", platform.system())
    total = human(info.get("MemTotal", 0))
    report.finding = (
        f"{host} is {name} with kernel {platform.release()}, {plural(count, 'processor')} and {total} of"
        f" memory, up for {up}."
    )
    disks, _ = space.filesystems()
    root = next((each for each in disks if each.folder == "/"), None)
    rows = [
        ("Host name", host),
        ("System", name),
        ("Kernel", f"{platform.release()} ({platform.machine()})"),
        ("Up", f"{up}, since {show(booted)}"),
        ("Hardware", hardware()),
        ("Virtual", virtualization()),
        ("Processors", f"{count}: {model}"),
        ("Memory", f"{human(info.get('MemAvailable', 0))} of {total} available"),
        ("Swap", human(info.get("SwapTotal", 0)) if info.get("SwapTotal") else "none"),
        ("Root file system", f"{root.entry.kind}, {root.state}" if root else ""),
        ("Addresses", ", ".join(addresses()[:8]) or "none but the loopback"),
        ("Load", ", ".join(f"{value:.2f}" for value in os.getloadavg())),
        ("Time", f"{show(time.time())} {time.strftime('%Z')}"),
    ]
    report.table("This machine", ("What", "Value"), [row for row in rows if row[1]])


run(make)
