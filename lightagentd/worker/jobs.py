"""What the daemon asks systemd to do with worker units: start, stop, kill, and say how they are.

Each function connects to the bus for the length of its request.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from lightagentd.bus import connection as bus
from lightagentd.errors import LightagentError, NotFound, TimedOut, Unavailable, WorkerUnavailable

JOB_TIMEOUT_S = 15.0
KILL_TIMEOUT_S, KILL_PAUSE_S = 5.0, 0.02
"""How long and how often a killed unit is checked: a process may be stuck in the kernel."""
RUNNING = ["active", "reloading", "activating", "deactivating"]
"""The states of a unit that has processes or is about to (org.freedesktop.systemd1(5))."""

SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
UNIT = "org.freedesktop.systemd1.Unit"


async def job(method: str, unit: str) -> None:
    """Make systemd start or stop a unit, and wait for it.

    Raises WorkerUnavailable, TimedOut, and the errors of the bus.
    """
    try:
        async with asyncio.timeout(JOB_TIMEOUT_S), bus.connect("system") as system:
            result = await _run_job(system, method, unit)
    except TimeoutError as err:
        raise TimedOut(
            f"systemd did not get done with {unit} within {JOB_TIMEOUT_S:g} s.",
            suggestion=f"It asks polkit first. See which of them hangs: systemctl status polkit {unit}",
        ) from err
    if result not in ("done", "skipped"):
        raise WorkerUnavailable(
            f"systemd did not {method.removesuffix('Unit').lower()} {unit}: {result}.",
            suggestion=f"See why: systemctl status {unit}",
        )


async def kill(service: str) -> None:
    """Kill all processes of a worker's service, and wait until it has ended.

    It does not wait for a job of the service manager: a job that waits for the daemon's end would never
    finish. Raises TimedOut and the errors of the bus.
    """
    async with bus.connect("system") as system:
        try:
            await system.call(*SYSTEMD, "KillUnit", "ssi", [service, "all", signal.SIGKILL])
        except NotFound:
            return
        # What is only about to start has no process yet.
        await system.call(*SYSTEMD, "StopUnit", "ss", [service, "replace"])
        [path] = await system.call(*SYSTEMD, "LoadUnit", "s", [service])
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                while True:
                    if await unit_property(system, path, UNIT, "ActiveState") not in RUNNING:
                        return
                    await asyncio.sleep(KILL_PAUSE_S)
        except TimeoutError as err:
            raise TimedOut(f"{service} was killed and has not ended in {KILL_TIMEOUT_S:g} s.") from err


async def unit_property(system: bus.Bus, path: str, interface: str, name: str) -> Any:
    """One property of a unit: all of them would take 30 ms to decode."""
    get = ("org.freedesktop.DBus.Properties", "Get", "ss", [interface, name])
    [value] = await system.call(SYSTEMD[0], path, *get)
    return bus.plain(value)


async def _run_job(system: bus.Bus, method: str, unit: str) -> str:
    """Start or stop a unit; gives the job's result, such as `done`."""
    name, _, interface = SYSTEMD
    await system.call(*SYSTEMD, "Subscribe")
    async with system.signals(sender=name, interface=interface, member="JobRemoved") as ended:
        [path] = await system.call(*SYSTEMD, method, "ss", [unit, "replace"])
        async for signal in ended:
            _, job, _, result = signal.args
            if job == path:
                return str(result)
    raise Unavailable("The bus went away.")


async def main_pid(service: str) -> int:
    """The main process of a service; 0 where systemd does not say."""
    try:
        async with bus.connect("system") as system:
            [path] = await system.call(*SYSTEMD, "LoadUnit", "s", [service])
            return int(await unit_property(system, path, "org.freedesktop.systemd1.Service", "MainPID"))
    except LightagentError:
        return 0
