"""The kernel's messages of this boot, from the journal or from the files of rsyslog."""

from __future__ import annotations

import functools
import re
import threading
import time

import clock
from checks import CannotSee
from commands import journal, message, read, run, stamp

Line = tuple[float, str]
"""When, in seconds since 1970, and the text."""
_LIMIT = 6000
_CONTAINERS = re.compile(r"docker|podman|lxc|nspawn|openvz|rkt|wsl|proot|pouch|container")
_SYSLOG = re.compile(
    r"(?:(?P<day>\d{4}-\d\d-\d\d)T|(?P<month>[A-Z][a-z]{2} [ \d]\d) )(?P<clock>\d\d:\d\d):\S+ \S+ kernel: "
    r"(?:\[[ \d.]+\] )?(?P<text>.*)"
)
_reading = threading.Lock()


def lines(since: float = 0.0) -> list[Line]:
    """The newest messages since then, oldest first. Raises CannotSee where there are none to be seen."""
    with _reading:
        return [line for line in _lines() if line[0] >= since]


@functools.lru_cache(maxsize=1)
def _lines() -> tuple[Line, ...]:
    wanted = ("_TRANSPORT=kernel", "-b", "--output-fields=MESSAGE,PRIORITY")
    entries, problem = journal(*wanted, limit=_LIMIT, timeout_s=8)
    if entries:
        return tuple((stamp(entry), message(entry)) for entry in entries)
    if text := read("/var/log/kern.log"):
        return tuple(_rsyslog(text[-2_000_000:]))
    if is_container():
        raise CannotSee("The kernel's log is the host's and not visible in this container.")
    raise CannotSee(problem or "The kernel's log is not in the journal.")


def is_container() -> bool:
    """Whether this system is a container, as its systemd knows."""
    return bool(_CONTAINERS.search(run("systemctl", "show", "--property=Virtualization", timeout_s=5).stdout))


def _rsyslog(text: str) -> list[Line]:
    found = []
    for line in text.splitlines():
        match = _SYSLOG.match(line)
        if match:
            day = match["day"] or _of_this_year(match["month"])
            found.append((clock.since(f"{day} {match['clock']}"), match["text"]))
    return found


def _of_this_year(month_and_day: str) -> str:
    year = time.localtime().tm_year
    return time.strftime("%Y-%m-%d", time.strptime(f"{year} {month_and_day}", "%Y %b %d"))
