"""Runs a daemon until a signal ends it: the command lightagentd.

`serve` owns the `Daemon`. SIGTERM and SIGINT end it, SIGHUP reloads, SIGUSR1 is an emergency stop.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Iterable

from lightagentd.daemon.daemon import Daemon
from lightagentd.daemon.options import parsed, told
from lightagentd.errors import LightagentError
from lightagentd.events.journal import log as journal_log
from lightagentd.host.libc import return_large_buffers
from lightagentd.host.paths import Paths
from lightagentd.host.systemd import feeding_watchdog, keep_status, notify, notify_stopping, status_line

_log = logging.getLogger("lightagentd.daemon")


async def serve(paths: Paths) -> None:
    """Run a daemon until SIGTERM or SIGINT; SIGHUP reloads, SIGUSR1 is an emergency stop."""
    loop = asyncio.get_running_loop()
    stop, hangup, alarm = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, alarm.set)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    async with feeding_watchdog(), Daemon(paths) as daemon:

        def line() -> str:
            return status_line(len(daemon.registry.agents), daemon.problems(), stopped=daemon.panic.on)

        notify("READY=1", f"STATUS={line()}")
        _log.info("ready: %s", paths.socket)
        _warn(daemon.problems())
        async with asyncio.TaskGroup() as tasks:
            panicker = tasks.create_task(_panic_on(alarm, daemon))
            reloader = tasks.create_task(_reload_on(hangup, daemon))
            reporter = tasks.create_task(keep_status(line))
            await stop.wait()
            reloader.cancel()
            reporter.cancel()
            notify_stopping(daemon.now.config.daemon.drain_timeout_s)
            await daemon.drain()
            panicker.cancel()


def _warn(problems: Iterable[str]) -> None:
    """Log what `lactl status` shows as problems."""
    for problem in problems:
        _log.warning("%s", problem)


async def _panic_on(alarm: asyncio.Event, daemon: Daemon) -> None:
    """Stop everything on SIGUSR1: the way to stop when the control socket does not answer."""
    while True:
        await alarm.wait()
        alarm.clear()
        await daemon.service.safety.stop_everything(None, "The daemon got SIGUSR1.")


async def _reload_on(hangup: asyncio.Event, daemon: Daemon) -> None:
    while True:
        await hangup.wait()
        hangup.clear()
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            done = await daemon.service.manager.reload_content()
            _log.info("reloaded: %s", "; ".join([*done.applied, *done.needs_restart]))
            for refused in done.refused:
                _log.error("refused: %s", refused)
            _warn(problem for problem in done.problems if problem not in done.refused)
        except LightagentError as err:
            _log.error("the reload changed nothing: %s", err.message)
        notify("READY=1")


def main() -> None:
    paths = parsed()
    return_large_buffers()
    logging.basicConfig(level=logging.INFO, handlers=[journal_log.handler()])
    # Where the loop hung, when the watchdog of the service manager sends SIGABRT. The loop's thread alone: to
    # walk the frames of threads that run meanwhile can end in SIGSEGV.
    faulthandler.enable(all_threads=False)
    try:
        asyncio.run(serve(paths))
    except (LightagentError, OSError) as err:
        said = told(err)
        notify(f"STATUS=ended: {' '.join(said.split())}")
        sys.exit(getattr(err, "exit_status", 1))
