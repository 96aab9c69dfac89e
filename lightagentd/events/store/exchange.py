"""Puts a new store in the history's place, as one atomic step.

The folder of an LMDB environment is exchanged as a whole: its lock file says which of the two root pages of
the data file is valid, so the data of one store must never lie beside the lock file of another that a process
may have open.

In the state folder, `history.compacting` is an unfinished, useless store; `history.compacted` is whole. If
the file system can exchange two names (renameat2(2), RENAME_EXCHANGE), `history.compacted` is the old store a
moment later, and is removed. Otherwise the old store first becomes `history.replaced`; a start that finds
that and no `history` finishes the exchange.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from lightagentd.errors import StorageError
from lightagentd.host import renaming
from lightagentd.host.renaming import sync_folder

_log = logging.getLogger(__name__)


def being_made(history: Path) -> Path:
    """The folder of an unfinished new store."""
    return history.with_name(f"{history.name}.compacting")


def made(history: Path) -> Path:
    """The folder of a whole new store."""
    return history.with_name(f"{history.name}.compacted")


def replaced(history: Path) -> Path:
    """The folder of the old store between two steps."""
    return history.with_name(f"{history.name}.replaced")


def exchange(history: Path) -> None:
    """Put the whole store in `made` in the place of the one in `history`, which moves to `made`.

    This process may have neither open. Raises OSError; then both are in their old places.
    """
    new, old = made(history), replaced(history)
    try:
        exchanged = renaming.exchange(new, history)
    except (ImportError, MemoryError):  # ctypes where no memory may be made executable
        exchanged = False
    if not exchanged:
        history.rename(old)
        try:
            new.rename(history)
        except OSError:
            old.rename(history)
            raise
        old.rename(new)
    sync_folder(history.parent)


def finish_exchange(history: Path) -> None:
    """At a start: finish or undo an exchange that a crash interrupted. Raises StorageError."""
    try:
        old = replaced(history)
        if not history.exists() and old.exists():
            if made(history).exists():
                made(history).rename(history)
            else:
                old.rename(history)
            sync_folder(history.parent)
    except OSError as err:
        raise StorageError(
            f"An interrupted compaction of {history} cannot be finished: {err.strerror or err}.",
            suggestion="Look at the disk and its mount.",
        ) from err
    for left in (old, made(history), being_made(history)):
        if history.exists() and left.exists():
            try:
                shutil.rmtree(left)
            except OSError as err:  # it takes room and harms nothing
                _log.warning("%s, left of a compaction, cannot be removed: %s", left, err)
