"""Talks to the service manager: sd_notify(3) and sd_listen_fds(3).

`feeding_watchdog`, `extending` and `keep_status` run on the daemon's event loop, so a loop that hangs is
silent: after `WatchdogSec=` the service manager then ends the process with SIGABRT, and faulthandler
writes where it hung.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from lightagentd.errors import ConfigError

FIRST_FD = 3
BOOTED = Path("/run/systemd/system")
"""Is there when systemd is the init system, sd_booted(3)."""
EXTENSION_S = 30.0
"""How much time each word of `extending` asks for; a process that hangs in between loses no more."""
EXTENSION_LIMIT_S = 1800.0
"""How long a start is extended at the most."""
STATUS_PERIOD_S = 2.0
STATUS_MAX = 400
"""Characters of a status line; systemctl(1) shows it on one."""
_STOP_MARGIN_S = 30.0
"""What a stop needs beyond draining: ending workers, flushing history and journal."""
_SEND_TIMEOUT_S = 2.0


def notify(*assignments: str) -> bool:
    """Tell systemd the state of the service; False when it is not systemd that started the process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(_SEND_TIMEOUT_S)  # a service manager that reads nothing must not hold the loop
        try:
            sock.connect(address)
            sock.sendall("\n".join(assignments).encode())
        except OSError:
            return False
    return True


def listening_socket() -> socket.socket | None:
    """The one socket that systemd passed to this process, or None when it passed none.

    Raises ConfigError when it passed several: to serve one of them would leave the others' clients waiting.
    """
    try:
        count, pid = int(os.environ["LISTEN_FDS"]), int(os.environ["LISTEN_PID"])
    except (KeyError, ValueError):
        return None
    if pid != os.getpid() or count == 0:
        return None
    if count != 1:
        raise ConfigError(
            f"systemd passed {count} sockets to lightagentd, which serves one.",
            suggestion="Keep one ListenStream= line: systemctl edit lightagentd.socket",
        )
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    passed = socket.socket(fileno=FIRST_FD)
    passed.set_inheritable(False)
    return passed


def watchdog_timeout_s() -> float | None:
    """The watchdog timeout of systemd (sd_watchdog_enabled(3)); None if there is no watchdog."""
    try:
        timeout_us = int(os.environ["WATCHDOG_USEC"])
        pid = int(os.environ.get("WATCHDOG_PID", os.getpid()))
    except (KeyError, ValueError):
        return None
    return timeout_us / 1e6 if timeout_us > 0 and pid == os.getpid() else None


@contextlib.asynccontextmanager
async def feeding_watchdog() -> AsyncIterator[None]:
    """Send keep-alives from the event loop, twice in each watchdog timeout, if systemd wants them."""
    timeout_s = watchdog_timeout_s()
    if timeout_s is None:
        yield
        return
    async with _beside(_repeat("WATCHDOG=1", timeout_s / 2)):
        yield


@contextlib.asynccontextmanager
async def extending() -> AsyncIterator[None]:
    """Extend systemd's timeout during long work, such as a migration of the history, up to a limit."""
    word = f"EXTEND_TIMEOUT_USEC={int(EXTENSION_S * 1e6)}"
    async with _beside(_repeat(word, EXTENSION_S / 3, limit_s=EXTENSION_LIMIT_S)):
        yield


def notify_stopping(drain_timeout_s: float) -> None:
    """Say that a stop began. systemd waits for as long as turns may drain, even where that is more than
    `TimeoutStopSec=`; it never shortens its own time.
    """
    wait_us = int((drain_timeout_s + _STOP_MARGIN_S) * 1e6)
    notify("STOPPING=1", "STATUS=waiting for running turns", f"EXTEND_TIMEOUT_USEC={wait_us}")


def status_line(agents: int, problems: list[str], *, stopped: bool = False) -> str:
    """The line that `systemctl status` shows: the work, and the first problem. `stopped`: by a panic."""
    line = f"serving {agents} agent{'' if agents == 1 else 's'}"
    if stopped:
        line = "stopped by an administrator: nothing runs until 'lactl panic --off'"
    if problems:
        more = f" (and {len(problems) - 1} more: lactl status)" if len(problems) > 1 else ""
        first = " ".join(problems[0].split())
        room = STATUS_MAX - len(line) - len(more) - 2
        line += f"; {first if len(first) <= room else first[: room - 1] + '…'}{more}"
    return line


async def keep_status(line: Callable[[], str], *, period_s: float = STATUS_PERIOD_S) -> None:
    """Tell systemd the status line whenever it has changed, until cancelled."""
    told = ""
    while True:
        now = line()
        if now != told and notify(f"STATUS={now}"):
            told = now
        await asyncio.sleep(period_s)


async def _repeat(word: str, period_s: float, *, limit_s: float | None = None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while True:
                notify(word)
                await asyncio.sleep(period_s)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something for as long as the body does."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
