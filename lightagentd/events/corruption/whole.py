"""Examines a whole store in a process of its own: `python -m lightagentd.events.corruption.whole FOLDER HOW`.

It takes about 100 microseconds for each event, in which the daemon's loop should not wait, and a damaged file
may end the process when LMDB has it open. The child prints what it found as JSON; errors go to its standard
error. HOW is `closed`, `known` (closed, and there were events), or `live` for a store that a daemon uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from lightagentd.errors import LightagentError, StorageError
from lightagentd.events.corruption.examination import DATA, Examined, examine, examine_live
from lightagentd.events.store.layout import RESERVE_BYTES
from lightagentd.host import process

LIMIT_S = 1750.0
"""A start is not extended for longer (`host.systemd.EXTENSION_LIMIT_S`)."""
SMALL_BYTES = RESERVE_BYTES + (8 << 20)
"""A closed store that is not larger is examined in a thread: to start a process takes longer."""


async def examine_whole(folder: Path, *, known: bool = False, live: bool = False) -> Examined:
    """As `examine` with no limit of time. The end of the child by a signal is damage, too.

    Raises StorageError.
    """
    if not live and _size_bytes(folder) <= SMALL_BYTES:
        return await asyncio.to_thread(examine, folder, seconds=None, known=known)
    how = "live" if live else "known" if known else "closed"
    argv = [sys.executable, "-m", "lightagentd.events.corruption.whole", os.fspath(folder), how]
    done = await process.run(argv, timeout_s=LIMIT_S, cwd=Path("/"))
    if live and done.signal and not done.timed_out:
        return Examined(problem=f"its examination was ended by {done.signal}")
    if done.status != 0:
        said = done.stderr.text().strip() or done.signal or f"exit status {done.status}"
        raise StorageError(f"The history in {folder} could not be examined: {said}")
    return Examined(**json.loads(done.stdout.text()))


def _size_bytes(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return (folder / DATA).stat().st_blocks * 512
    return 0


def main() -> int:
    """The child."""
    folder, how = Path(sys.argv[1]), sys.argv[2]
    with contextlib.suppress(OSError):  # the unit's filter has no setpriority(2)
        os.nice(10)
    try:
        live, known = how == "live", how == "known"
        found = examine_live(folder) if live else examine(folder, seconds=None, known=known)
    except LightagentError as err:
        sys.stderr.write(f"{err.message}\n")
        return err.exit_status
    sys.stdout.write(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
