"""Where a process runs, and for whose login: what tells a person from a program that a command started.

A process is named by a pidfd (pidfd_open(2)), and must still be there when all is read, so that no other has
got its number meanwhile. The login is the kernel's own mark (proc_pid_loginuid(5)): it is inherited, and a
service has none.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

_UNSET = (1 << 32) - 1
"""The login of a process that nobody logged in for."""
_OWN_UNIT = re.compile(r"lightagent(?:-.*|d)\.service")
_CGROUP = re.compile(r"^(?:0::|\d+:name=systemd:)(/.*)$", re.MULTILINE)
_PTS, _PTS_LAST, _CONSOLES = 136, 143, 4
"""Major numbers of terminals (https://docs.kernel.org/admin-guide/devices.html)."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """`unit` is the system's unit, empty where there is none, or `token:NAME`; `tty` such as pts/0, empty for
    none. The logins are None for a process that nobody logged in for.
    """

    unit: str = ""
    tty: str = ""
    login_uid: int | None = None
    login_session: int | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is in a unit of this program, as what an agent's command starts is."""
        return _OWN_UNIT.fullmatch(self.unit) is not None


def seat_of(pidfd: int) -> Seat:
    """Raises OSError when the process has ended, is in another PID namespace, or is hidden from us."""
    pid = _number(pidfd)
    folder = Path(f"/proc/{pid}")
    seat = Seat(
        unit=unit_in((folder / "cgroup").read_text()),
        tty=_tty((folder / "stat").read_text(errors="replace")),
        login_uid=_login(folder / "loginuid"),
        login_session=_login(folder / "sessionid"),
    )
    _number(pidfd)
    return seat


def unit_in(cgroup: str) -> str:
    """The system's unit in the text of a process's `cgroup` file (cgroups(7)); empty for none."""
    for path in _CGROUP.findall(cgroup):
        for part in str(path).split("/"):
            if part.endswith((".service", ".scope")):
                return part
    return ""


def _number(pidfd: int) -> int:
    """The number of a process that is there (pidfd_open(2), fdinfo)."""
    fields = Path(f"/proc/self/fdinfo/{pidfd}").read_text().split()
    pid = int(fields[fields.index("Pid:") + 1])
    if pid <= 0:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return pid


def _tty(stat: str) -> str:
    number = int(stat.rpartition(")")[2].split()[4])  # tty_nr (proc_pid_stat(5))
    if not number:
        return ""
    major, minor = os.major(number), os.minor(number)
    if _PTS <= major <= _PTS_LAST:
        return f"pts/{(major - _PTS << 8) + minor}"
    return f"tty{minor}" if major == _CONSOLES else f"{major}:{minor}"


def _login(path: Path) -> int | None:
    """A login, or None where there is none, or the kernel keeps none (CONFIG_AUDIT)."""
    try:
        number = int(path.read_text())
    except FileNotFoundError:
        return None
    return None if number == _UNSET else number
