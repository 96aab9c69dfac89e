"""The checks of `lactl doctor` beside the sandboxes: the machine, the units, the files and their modes.

All of it works without a daemon too: `lactl` runs it as the user who asks, and a daemon runs it as its own.
`control/operations/doctor` adds what only a running daemon knows. Nothing is changed, and no model is asked.
A thing that the user may not see is `not_tried`, never `ok`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lightagentd.api import Finding
from lightagentd.doctor import access, files, history, machine, models, records, units
from lightagentd.doctor.finding import in_order
from lightagentd.doctor.machine import REPORT_COMMANDS
from lightagentd.host.paths import Paths

__all__ = ["REPORT_COMMANDS", "Running", "look"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """What is known of a daemon that runs: its process, and the newest event that the journal must have."""

    pid: int
    seq: int


async def look(
    paths: Paths,
    running: Running | None,
    *,
    socket: Path | None = None,
    in_daemon: bool = False,
    reach: bool = False,
) -> list[Finding]:
    """Look at everything that can be looked at from here; `socket` is the daemon's, if it lies elsewhere.

    `in_daemon` says that this process is the daemon; with `reach` it is tried whether the endpoints of the
    models answer at all.
    """
    found = await asyncio.to_thread(_files_and_machine, paths)
    found.append(access.control_socket(socket or paths.socket))
    found += await access.bus(paths, running.pid if running else None)
    found += await access.polkit()
    found += await units.check(paths, running.pid if running else None)
    found += await models.check(paths, in_daemon=in_daemon, reach=reach)
    found += await asyncio.to_thread(
        records.check,
        running.pid if running else None,
        running.seq if running else None,
        in_daemon=in_daemon,
    )
    return in_order(found)


def _files_and_machine(paths: Paths) -> list[Finding]:
    return [*files.check(paths), *history.of_files(paths), *machine.check(paths)]
