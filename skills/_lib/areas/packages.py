"""The package system: broken packages, locks, updates, and what runs still with what was replaced.

dpkg's own files are read, and rpm is asked; nothing is refreshed and nothing is written.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import clock
import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import read, run
from report import plural, shorten, span
from unit_states import units

STATUS = "/var/lib/dpkg/status"
_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/lib/rpm/.rpm.lock",
)
_LONG_S = 1800.0
"""How long a package manager may hold its lock; an upgrade can take half an hour."""
_ODD_S = 120.0
"""How long something else may, such as a module of a configuration management."""
_MANAGERS = re.compile(
    r"apt|dpkg|aptitude|unattended|packagekit|synaptic|dnf|yum|rpm|zypper|nala|gdebi|software"
)
_OURS = ("lightagent", "console-getty", "getty@", "serial-getty@", "user@")
"""Services that end by themselves, or with a session."""
_STALE_S = 30 * 86400.0
_SHARED = re.compile(r"(libc6|libssl\d\S*|openssl|libgnutls30\S*|libpam0g|libsystemd0|zlib1g|libcrypto\S*)$")
"""Libraries that most services use and that security updates replace."""
_LEFT_OVER = {
    "unpacked": "is unpacked but not configured",
    "half-configured": "is half configured: its configuration failed",
    "half-installed": "is half installed",
    "triggers-awaited": "waits for triggers of other packages",
    "triggers-pending": "has triggers that did not run",
}
ASK = "what is wrong with the package system"


@dataclass(frozen=True)
class Package:
    """One package of dpkg or rpm; `state` is dpkg's third word: installed, half-configured."""

    name: str
    version: str
    wanted: str = "install"
    flag: str = "ok"
    state: str = "installed"

    @property
    def fault(self) -> str:
        if "reinst" in self.flag:
            return "must be installed again: its files are broken"
        return "" if self.state == "installed" else _LEFT_OVER.get(self.state, "")


@dataclass(frozen=True)
class Event:
    """A line of dpkg.log: `install`, `upgrade`, `remove`, `purge`."""

    when: float
    action: str
    package: str
    before: str
    after: str


@dataclass(frozen=True)
class Holder:
    lock: str
    pid: int
    name: str
    started: float | None

    @property
    def is_stopped(self) -> bool:
        seen = procfs.stat(self.pid)
        return seen is not None and seen.state in "Tt"

    @property
    def sentence(self) -> str:
        ran = f", which runs for {span(time.time() - self.started)}" if self.started else ""
        stopped = " but is stopped" if self.is_stopped else ""
        unit = procfs.unit_of(self.pid)
        of = f" of {unit}" if unit else ""
        return f"{self.name} (pid {self.pid}{of}{ran}{stopped}) holds {self.lock}"


def dpkg_packages(text: str | None = None) -> list[Package]:
    """Every package that dpkg's status file knows."""
    found = []
    for block in (read(STATUS) or "" if text is None else text).split("\n\n"):
        pairs = dict(re.findall(r"^(Package|Version|Status): (.*)$", block, re.M))
        words = pairs.get("Status", "").split()
        if len(words) == 3:
            found.append(Package(pairs.get("Package", "?"), pairs.get("Version", ""), *words))
    return found


def rpm_packages(name: str = "") -> list[Package]:
    which = [name] if name else ["-a"]
    rows = run("rpm", "-q", *which, "--queryformat=%{NAME} %{VERSION}-%{RELEASE}\n", timeout_s=8)
    return [Package(*line.split()[:2]) for line in rows.stdout.splitlines() if len(line.split()) == 2]


def all_logs() -> list[str]:
    """Every log of dpkg that is kept, the oldest first."""
    logs = Path("/var/log").glob("dpkg.log*")
    return sorted(map(str, logs), key=lambda path: -int((re.findall(r"\.(\d+)", path) or ["0"])[-1]))


def _text(path: str) -> str:
    if not path.endswith(".gz"):
        return read(path) or ""
    try:
        return gzip.decompress(Path(path).read_bytes()).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return ""


def events(paths: Iterable[str] = ("/var/log/dpkg.log.1", "/var/log/dpkg.log")) -> Iterator[Event]:
    """What dpkg did, oldest first."""
    for path in paths:
        for line in _text(path).splitlines():
            words = line.split()
            if len(words) >= 5 and words[2] in ("install", "upgrade", "remove", "purge"):
                try:
                    when = time.mktime(time.strptime(f"{words[0]} {words[1]}", "%Y-%m-%d %H:%M:%S"))
                except (ValueError, OverflowError):
                    continue
                after = words[5] if len(words) > 5 else ""
                yield Event(when, words[2], words[3].partition(":")[0], words[4], after)


def last_lines(limit: int = 400) -> list[str]:
    """The end of what dpkg printed at its last runs, which group adm may read."""
    return (read("/var/log/apt/term.log") or "")[-(1 << 18) :].splitlines()[-limit:]


def reason_of(package: str, lines: list[str]) -> str:
    """Why dpkg could not configure or install it, by the log of its last runs."""
    found = ""
    for number, line in enumerate(lines):
        if re.search(rf"error processing (package|archive) \S*\b{re.escape(package)}\b", line):
            after = lines[number + 1].strip() if number + 1 < len(lines) else ""
            found = after if line.startswith(("dpkg:", " ")) and after else line.strip()
    return shorten(found)


def holders() -> tuple[list[Holder], bool]:
    """Who holds a lock of the package system, by /proc/locks, and whether that could be read."""
    text = read("/proc/locks")
    inodes = {}
    for lock in _LOCKS:
        try:
            found = Path(lock).stat()
        except OSError:
            continue
        major = os.major(found.st_dev)
        inodes[(major, os.minor(found.st_dev), found.st_ino)] = lock
        if major == 0:  # an overlay or btrfs: the kernel's list may have another number for the device
            inodes[(0, -1, found.st_ino)] = lock
    rows: list[Holder] = []
    for match in re.finditer(r"(?:WRITE|READ)\s+(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+)", text or ""):
        major, inode, pid = int(match[2], 16), int(match[4]), int(match[1])
        file = inodes.get((major, int(match[3], 16), inode)) or inodes.get((major, -1, inode))
        if file and pid > 0 and not any(one.pid == pid for one in rows):
            rows.append(Holder(file, pid, procfs.name(pid), started(pid)))
    return rows, text is not None


def started(pid: int) -> float | None:
    """When a process began, in seconds since 1970."""
    seen = procfs.stat(pid)
    return time.time() - seen.age_s if seen else None


def lists_age() -> float | None:
    """Seconds since the lists of apt or dnf were refreshed, or None where there are none."""
    newest = 0.0
    for folder in ("/var/lib/apt/lists", "/var/cache/libdnf5", "/var/cache/dnf", "/var/cache/zypp/raw"):
        try:
            entries = [entry for entry in Path(folder).iterdir() if entry.name not in ("lock", "auxfiles")]
        except OSError:
            continue
        if any(entry.name != "partial" for entry in entries):
            newest = max([newest, *(entry.stat().st_mtime for entry in entries)])
    for stamp in ("/var/lib/apt/periodic/update-success-stamp", "/var/lib/pacman/sync"):
        try:
            newest = max(newest, Path(stamp).stat().st_mtime)
        except OSError:
            continue
    return time.time() - newest if newest else None


def reboot_reason() -> tuple[str, float | None]:
    """Why a reboot is required, or an empty string, and since when."""
    mark = Path("/run/reboot-required")
    if mark.exists():
        names = sorted(set((read("/run/reboot-required.pkgs") or "").split()))
        because = f"{', '.join(names[:6])} asked for it" if names else "an update asked for it"
        return because, mark.stat().st_mtime
    running = os.uname().release
    flavour = running.rpartition("-")[2]
    try:
        kernels = [entry.name for entry in Path("/lib/modules").iterdir() if entry.is_dir()]
    except OSError:
        return "", None
    alike = [name for name in kernels if name.rpartition("-")[2] == flavour or "." in flavour]
    newest = max(alike, key=_version_key, default="")
    if running in kernels and newest and _version_key(newest) > _version_key(running):
        when = Path("/lib/modules", newest).stat().st_mtime
        return f"the kernel {newest} is installed, and {running} still runs", when
    return "", None


def _version_key(version: str) -> list[tuple[int, str]]:
    parts = re.findall(r"\d+|[A-Za-z]+", version)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def outdated_services() -> list[tuple[str, str, float]]:
    """Services that began before their own package or a library that most use was replaced: unit, package,
    when."""
    boot = clock.boot_time()
    replaced = {one.package: one.when for one in events() if one.action == "upgrade" and one.when > boot}
    own = {unit: package for package in replaced for unit in _units_of(package)}
    shared = max(
        ((when, package) for package, when in replaced.items() if _SHARED.match(package)), default=(0.0, "")
    )
    found = []
    for unit in units("*.service"):
        if not (unit.is_running and unit.pid and unit.started) or unit.name.startswith(_OURS):
            continue
        template = re.sub(r"@[^.]*\.", "@.", unit.name)
        package = own.get(unit.name) or own.get(template) or ""
        if package and unit.started < replaced[package]:
            found.append((unit.name, package, replaced[package]))
        elif unit.started < shared[0]:
            found.append((unit.name, shared[1], shared[0]))
        elif procfs.link(unit.pid, "exe").endswith(" (deleted)"):
            found.append((unit.name, "its program", unit.started))
    return found


def _units_of(package: str) -> set[str]:
    """The services in a package's list of files."""
    text = read(f"/var/lib/dpkg/info/{package}.list") or ""
    return set(re.findall(r"^/\S*/systemd/system/([^/\s]+\.service)$", text, re.M))


def security_updates(lines: list[str]) -> tuple[list[str], int]:
    """Of the output of `apt list --upgradable`: the packages from a security suite, and how many in all."""
    rows = [line for line in lines if "[upgradable from:" in line]
    return [line.partition("/")[0] for line in rows if "-security" in line.split()[0]], len(rows)


@check("packages.state", "packages that are broken or half configured")
def state() -> Iterator[Finding]:
    packages = dpkg_packages()
    broken = [one for one in packages if (one.fault and one.wanted != "hold") or "reinst" in one.flag]
    if broken and holders()[0]:
        return  # a run of dpkg goes on
    lines = last_lines() if broken else []
    for one in broken[:10]:
        reason = reason_of(one.name, lines)
        yield Finding(
            f"The package {one.name} {one.version} {one.fault}" + (f": {reason}." if reason else "."),
            f"is the package {one.name} broken",
            severity=WARNING if one.state.startswith("triggers") else PROBLEM,
        )
    if len(broken) > 10:
        yield Finding(f"{len(broken) - 10} more packages are not configured.", ASK)
    updates = Path("/var/lib/dpkg/updates")
    try:
        if any(entry.name.isdigit() for entry in updates.iterdir()) and not holders()[0]:
            yield Finding("dpkg was interrupted: `dpkg --configure -a` has to be run.", ASK)
    except OSError:
        return


@check("packages.lock", "locks of the package system")
def lock() -> Iterator[Finding]:
    found, could_read = holders()
    if not could_read and Path(STATUS).exists():
        raise CannotSee("/proc/locks cannot be read.")
    for one in found:
        ran_s = time.time() - (one.started or time.time())
        if ran_s > (_LONG_S if _MANAGERS.match(one.name) else _ODD_S) or one.is_stopped:
            yield Finding(
                f"{one.sentence}: no package can be installed meanwhile.",
                ASK,
                since=one.started,
                severity=WARNING,
            )


def stale() -> Iterator[Finding]:
    """Package lists that nobody has refreshed for long."""
    age = lists_age()
    if age is not None and age > _STALE_S:
        yield Finding(
            f"The package lists are {span(age)} old, so newer security updates are not known.",
            ASK,
            since=time.time() - age,
            severity=WARNING,
        )


@check("packages.updates", "security updates and old package lists")
def updates() -> Iterator[Finding]:
    yield from stale()
    if shutil.which("apt") and lists_age() is not None:
        answer = run("apt", "list", "--upgradable", timeout_s=4)
        if answer.problem:
            raise CannotSee(answer.problem)
        names, _ = security_updates(answer.stdout.splitlines())
        if names:
            few = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
            yield Finding(
                f"{plural(len(names), 'security update')} {'waits' if len(names) == 1 else 'wait'}: {few}.",
                "which updates wait",
                severity=WARNING,
            )


@check("packages.restarts", "reboots and restarts that updates need")
def restarts() -> Iterator[Finding]:
    because, since = reboot_reason()
    if because:
        yield Finding(f"A reboot is required: {because}.", "does it need a reboot", since, WARNING)
    found = outdated_services()
    if found:
        few = ", ".join(name for name, _, _ in found[:3]) + (", ..." if len(found) > 3 else "")
        packages = ", ".join(sorted({package for _, package, _ in found})[:3])
        yield Finding(
            f"{plural(len(found), 'service')} began before an update of {packages} and still "
            f"{'runs' if len(found) == 1 else 'run'} what it replaced: {few}.",
            "which services need a restart after updates",
            min(when for _, _, when in found),
            WARNING,
        )
