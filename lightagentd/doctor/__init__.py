"""The checks of `lactl doctor` beside the sandboxes: the machine, the units, the files and their modes.

The checks also work without a daemon: `lactl` runs them as the calling user, a daemon as its own user.
`control/operations/doctor` adds checks that need a running daemon. The checks change nothing and ask no
model. A thing that the user may not see is `not_tried`, never `ok`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lightagentd.api import Finding
from lightagentd.doctor import access, approver, files, history, machine, models, records, units
from lightagentd.doctor.finding import in_order
from lightagentd.doctor.machine import REPORT_COMMANDS
from lightagentd.host.paths import Paths

__all__ = ["REPORT_COMMANDS", "Running", "look"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """Facts about a running daemon: its process, and the newest event that the journal must have."""

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
    """Run all checks that are possible here; `socket` is the daemon's, if it is not at the default path.

    `in_daemon`: this process is the daemon. With `reach`, it also tests whether the models' endpoints answer.
    """
    found = await asyncio.to_thread(_files_and_machine, paths)
    found.append(access.control_socket(socket or paths.socket))
    found += await access.bus(paths, running.pid if running else None)
    found += await access.polkit()
    if not in_daemon:
        found += await approver.check(paths)
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
