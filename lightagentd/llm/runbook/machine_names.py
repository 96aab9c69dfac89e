"""Collects the `Names` of this machine, and keeps them up to date while prompts come.

`MachineNames` is made with the model clients and does nothing before it is first asked. It then owns a
connection to the bus, over which systemd says which units it loads and unloads, and a task that collects;
both end with `close`, the connection also when nobody has asked for a while. Files are read in a thread.
The daemon has no rights of its own, so only what everybody may read counts: folders of unit files, the
package database, /sys/class/net, passwd, and of containers what they leave as units and folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lightagentd.bus.connection import Bus, Signal, connect
from lightagentd.bus.errors import SYSTEMD_NAME
from lightagentd.errors import LightagentError
from lightagentd.host.systemd import BOOTED
from lightagentd.host.users import user_name
from lightagentd.llm.runbook.names import Names

WAIT_S = 0.2
"""How long a prompt waits for names at the most; after that those of the last time count."""
IDLE_S = 600.0
_CALL_S = 10.0
_OBJECT, _MANAGER = "/org/freedesktop/systemd1", f"{SYSTEMD_NAME}.Manager"
_TYPES = ("service", "timer", "socket", "path", "mount", "automount", "swap", "target")
"""The types of units that are listed. Sessions and devices come and go, and their names have a suffix."""
_OWN = "lightagent-"
"""The daemon's own workers come and go with each prompt."""
_UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "run/systemd/generator.late",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
)
_DPKG, _DPKG_LISTS = "var/lib/dpkg/status", "var/lib/dpkg/info"
_RPM = ("usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/rpm/rpmdb.sqlite")
_PASSWD, _LOGGED_IN = "etc/passwd", "run/systemd/users"
_INTERFACES, _MOUNTS = "sys/class/net", "proc/self/mountinfo"
_MACHINES, _QUADLETS = "run/systemd/machines", "etc/containers/systemd"
_STAMPED = (*_UNIT_FOLDERS, _DPKG, *_RPM, _PASSWD, _LOGGED_IN, _MACHINES, _QUADLETS)
_CONTAINER_UNIT = re.compile(r"(?:systemd-nspawn@|lxc@|container-)(.+)\.service")
_NOT_DISKS = re.compile(r"/(?:proc|sys|dev|run)(?:/|$)(?!media/)")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What systemd has loaded."""

    units: frozenset[str]
    mounts: frozenset[str]


class MachineNames:
    """The names that are known now; `root` is where the machine's files are."""

    def __init__(self, *, bus: str = "system", root: Path = Path("/")) -> None:
        self._address, self._root = bus, root
        self._names = Names()
        self._state: object = None
        """What the names were made of."""
        self._loaded: Loaded | None = None
        self._changed = True
        """Whether systemd has loaded or unloaded units since they were listed."""
        self._bus: Bus | None = None
        self._connected = asyncio.Event()
        self._idle: asyncio.Timeout | None = None
        self._following: asyncio.Task[None] | None = None
        self._collecting: asyncio.Task[None] | None = None

    async def current(self, wait_s: float = WAIT_S) -> Names:
        """The names of now; when collecting them takes longer than `wait_s`, those of the last time."""
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect(), name="names of this machine")
        await asyncio.wait([self._collecting], timeout=wait_s)
        return self._names

    async def close(self) -> None:
        """End the tasks. Who asks afterwards starts them anew."""
        tasks = [task for task in (self._collecting, self._following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._collecting = self._following = None

    async def _collect(self) -> None:
        if (self._root / BOOTED.relative_to("/")).is_dir():
            with contextlib.suppress(LightagentError):
                await self._list_units()
        self._state, self._names = await asyncio.to_thread(self._read)

    async def _list_units(self) -> None:
        """List the loaded units, unless systemd has changed none since the last time."""
        if self._following is None or self._following.done():
            self._connected.clear()
            self._following = asyncio.create_task(self._follow(), name="units of this machine")
        await self._connected.wait()
        if self._bus is not None and self._idle is not None and not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)
            if self._changed:
                self._changed = False
                try:
                    self._loaded = await _loaded(self._bus)
                except BaseException:
                    self._changed = True
                    raise

    async def _follow(self) -> None:
        """Hold a connection and note when systemd loads or unloads units; end when nobody asks any more."""
        self._changed = True
        try:
            async with (
                asyncio.timeout(IDLE_S) as self._idle,
                connect(self._address, timeout_s=_CALL_S) as bus,
                bus.signals(sender=SYSTEMD_NAME, path=_OBJECT, interface=_MANAGER) as signals,
            ):
                await bus.call(SYSTEMD_NAME, _OBJECT, _MANAGER, "Subscribe", timeout_s=_CALL_S)
                self._bus = bus
                self._connected.set()
                async for signal in signals:
                    self._changed |= _tells_of_change(signal)
        except (LightagentError, TimeoutError):
            pass  # the next prompt tries again; until then the last names count
        finally:
            self._bus = self._idle = None
            self._connected.set()

    def _read(self) -> tuple[object, Names]:
        """What the names are made of, and the names; in a thread."""
        interfaces = frozenset(_listed(self._root / _INTERFACES)) - {"bonding_masters"}
        loaded = self._loaded or Loaded(units=frozenset(), mounts=_mounted(self._root / _MOUNTS))
        state = (interfaces, loaded, [_stamp(self._root / path) for path in _STAMPED])
        if state == self._state:
            return state, self._names
        units = loaded.units.union(*(_unit_files(self._root / folder) for folder in _UNIT_FOLDERS))
        names = Names(
            units=units,
            users=frozenset(_users(self._root)),
            packages=frozenset(_packages(self._root)),
            interfaces=interfaces,
            containers=frozenset(_containers(self._root, units)),
            mounts=loaded.mounts,
        )
        names.find("indexed")  # builds the indexes, here and not on the event loop
        return state, names


async def _loaded(bus: Bus) -> Loaded:
    patterns = [f"*.{kind}" for kind in _TYPES]
    arguments = (SYSTEMD_NAME, _OBJECT, _MANAGER, "ListUnitsByPatterns", "asas", [[], patterns], _CALL_S)
    [rows] = await bus.call(*arguments)
    mounts = [
        _unescaped(name) for name, _, _, active, *_ in rows if active == "active" and name.endswith(".mount")
    ]
    return Loaded(
        units=frozenset(name for name, _, state, *_ in rows if state != "not-found"),
        mounts=frozenset(path for path in mounts if not _NOT_DISKS.match(path)),
    )


def _tells_of_change(signal: Signal) -> bool:
    if signal.member in ("UnitNew", "UnitRemoved"):
        name = str(signal.args[0]) if signal.args else ""
        return name.rpartition(".")[2] in _TYPES and not name.startswith(_OWN)
    return signal.member in ("UnitFilesChanged", "Reloading")


def _unescaped(unit: str) -> str:
    """The path of a mount unit, systemd.unit(5)."""
    name = unit.removesuffix(".mount")
    path = "/" if name == "-" else "/" + name.replace("-", "/")
    return re.sub(r"\\x([0-9a-f]{2})", lambda code: chr(int(code[1], 16)), path)


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names alone: a folder may have 15,000
    except OSError:
        return []


def _unit_files(folder: Path) -> set[str]:
    return {name for name in _listed(folder) if name.rpartition(".")[2] in _TYPES}


def _users(root: Path) -> Iterator[str]:
    """Users of this machine, and who of a directory service is logged in. getpwall(3) is not asked: a slow
    service would stop the whole process, for Python holds its lock meanwhile.
    """
    with contextlib.suppress(OSError):
        text = (root / _PASSWD).read_text(encoding="utf-8", errors="surrogateescape")
        yield from (
            line.partition(":")[0] for line in text.splitlines() if line[:1] not in ("", "+", "-", "#")
        )
    yield from (user_name(int(uid)) for uid in _listed(root / _LOGGED_IN) if uid.isdecimal())


def _packages(root: Path) -> Iterator[str]:
    for name in _listed(root / _DPKG_LISTS):
        if name.endswith(".list"):
            yield name.removesuffix(".list").partition(":")[0]
    for path in _RPM:
        database = root / path
        if not database.is_file():
            continue
        import sqlite3  # a megabyte that only machines with rpm need

        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as rpm,
        ):
            yield from (name for (name,) in rpm.execute("SELECT DISTINCT key FROM Name"))


def _containers(root: Path, units: Iterable[str]) -> Iterator[str]:
    yield from (name for name in _listed(root / _MACHINES) if ":" not in name)
    for name in _listed(root / _QUADLETS):
        if name.endswith(".container"):
            yield name.removesuffix(".container")
    for unit in units:
        if (found := _CONTAINER_UNIT.fullmatch(unit)) is not None:
            yield found[1]


def _mounted(mountinfo: Path) -> frozenset[str]:
    """Mount points, proc_pid_mountinfo(5)."""
    try:
        text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return frozenset()
    paths = [line.split(" ", 5)[4] for line in text.splitlines() if line.count(" ") > 4]
    named = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path) for path in paths)
    return frozenset(path for path in named if not _NOT_DISKS.match(path))
