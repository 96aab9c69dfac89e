"""What `lactl doctor` looks at beside the sandboxes: the machine, the files and who may read and write them.

Everything here works without a daemon too; what only a running daemon knows is in
`control/checkup_operations`. Nothing is changed, and no model is asked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from lightagentd import config as configuration
from lightagentd.api import Finding
from lightagentd.errors import ConfigError
from lightagentd.paths import Paths
from lightagentd.worker import landlock

PACKAGES = (
    "asyncvarlink",
    "click",
    "cryptography",
    "dbus_next",
    "httpx",
    "lmdb",
    "psutil",
    "pydantic",
    "pyinotify",
    "pyudev",
    "systemd",
    "yaml",
)
COMMANDS = ("bwrap", "setpriv", "choom", "xdg-dbus-proxy", "busctl")
REPORT_COMMANDS = ("df", "ip", "ss", "ps", "journalctl", "systemctl", "last", "ping", "openssl")
"""Commands that the shipped skills use; one that is missing makes a report say less."""
_OLDEST_S = 1_735_689_600
"""2025-01-01: before this program was made."""
_SHARED_WRITE = stat.S_IWGRP | stat.S_IWOTH


def local_checks(paths: Paths) -> list[Finding]:
    """What can be looked at without the daemon."""
    return [
        *_configuration(paths),
        *_permissions(paths),
        _packages(),
        _commands("commands", COMMANDS, "the sandbox needs them"),
        _commands("commands of reports", REPORT_COMMANDS, "reports say less without them"),
        *_kernel(),
        *_buses(),
        _clock(),
    ]


def ok(name: str, detail: str) -> Finding:
    return Finding(name=name, status="ok", detail=detail)


def wrong(name: str, detail: str) -> Finding:
    return Finding(name=name, status="wrong", detail=detail)


def note(name: str, detail: str) -> Finding:
    return Finding(name=name, status="note", detail=detail)


def _configuration(paths: Paths) -> list[Finding]:
    try:
        loaded, _ = configuration.load(paths.config)
    except (ConfigError, OSError) as err:
        hint = getattr(err, "suggestion", "")
        return [wrong("configuration", f"{err} {hint}".strip())]
    files = configuration.files(paths.config)
    names = ", ".join(str(path) for path in files) or f"no file in {paths.config}: the defaults apply"
    found = [ok("configuration", names)]
    keys = [provider.api_key_file for provider in loaded.models.providers.values() if provider.api_key_file]
    for path in [key for key in keys if len(key.parts) > 1]:
        try:
            mode = path.stat().st_mode
        except OSError as err:
            found.append(wrong("key file", f"{path}: {err.strerror}"))
            continue
        if mode & (stat.S_IROTH | _SHARED_WRITE):
            found.append(wrong("key file", f"{path} is open to others: chmod 600 {path}"))
        else:
            found.append(ok("key file", str(path)))
    return found


def _permissions(paths: Paths) -> list[Finding]:
    trusted = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        trusted.add(paths.state.stat().st_uid)  # the daemon's user, when root asks about its folders
    found = []
    kept = [paths.config, *configuration.files(paths.config)]
    for kind in ("agent", "tools", "skills", "policy.d"):
        folder = paths.config / kind
        kept += [folder, *folder.rglob("*")] if folder.is_dir() else []
    bad = [text for path in kept if (text := _too_open(path, trusted, _SHARED_WRITE))]
    found.append(
        wrong("configuration's modes", "; ".join(bad[:5])) if bad else ok("configuration's modes", "closed")
    )
    for name, path, forbidden in (
        ("state folder", paths.state, stat.S_IRWXG | stat.S_IRWXO),
        ("history's folder", paths.history, stat.S_IRWXG | stat.S_IRWXO),
        ("history's file", paths.history / "data.mdb", stat.S_IRWXG | stat.S_IRWXO),
        ("private keys", paths.keys, stat.S_IRWXG | stat.S_IRWXO),
        ("runtime folder", paths.runtime, _SHARED_WRITE),
        ("workers' sockets", paths.workers, _SHARED_WRITE | stat.S_IROTH | stat.S_IXOTH),
        ("control socket", paths.socket, stat.S_IRWXO),
    ):
        if not path.exists():
            continue
        text = _too_open(path, trusted, forbidden)
        found.append(wrong(name, text) if text else ok(name, f"{path} {stat.filemode(path.stat().st_mode)}"))
    return found


def _too_open(path: Path, trusted: set[int], forbidden: int) -> str:
    """What is wrong with the owner or mode of a path; empty when nothing is."""
    try:
        info = path.stat()
    except OSError as err:
        return "" if isinstance(err, FileNotFoundError) else f"{path}: {err.strerror}"
    if info.st_uid not in trusted:
        return f"{path} belongs to uid {info.st_uid}: chown it"
    if info.st_mode & forbidden:
        better = stat.S_IMODE(info.st_mode) & ~forbidden
        return f"{path} has the mode {stat.S_IMODE(info.st_mode):04o}: chmod {better:04o} {path}"
    return ""


def _packages() -> Finding:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return wrong("Python packages", f"not installed: {', '.join(missing)}")
    return ok("Python packages", f"{len(PACKAGES)} are there")


def _commands(name: str, wanted: Iterable[str], why: str) -> Finding:
    missing = [command for command in wanted if shutil.which(command) is None]
    return note(name, f"not installed: {', '.join(missing)}; {why}") if missing else ok(name, "all are there")


def _kernel() -> list[Finding]:
    level = landlock.abi()
    release = os.uname().release
    if level >= landlock.SCOPED_ABI:
        kernel = ok("kernel", f"Linux {release}, Landlock ABI {level}")
    else:
        kernel = note(
            "kernel",
            f"Linux {release}, Landlock ABI {level}: {landlock.SCOPED_ABI} (Linux 6.12) holds signals better",
        )
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    cgroups = ok("cgroups", "version 2") if unified else note("cgroups", "version 2 is not mounted here")
    return [kernel, cgroups, _namespaces()]


def _namespaces() -> Finding:
    for path, closed in (
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == closed:
                text = f"{path} is {closed}, so bwrap works for root alone"
                return note("user namespaces", text)
    return ok("user namespaces", "allowed")


def _buses() -> list[Finding]:
    bus = Path("/run/dbus/system_bus_socket").exists()
    polkit = Path("/usr/share/dbus-1/system-services/org.freedesktop.PolicyKit1.service").exists()
    systemd = Path("/run/systemd/system").is_dir()
    return [
        ok("systemd", "runs") if systemd else note("systemd", "does not run here"),
        ok("D-Bus", "the system bus is there") if bus else note("D-Bus", "there is no system bus here"),
        ok("polkit", "is installed")
        if polkit
        else note("polkit", "is not installed: root and the daemon's user alone may administer"),
    ]


def _clock() -> Finding:
    now = time.time()
    if now < _OLDEST_S:
        return wrong("clock", f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}, which is in the past")
    return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))
