"""Replaces the present store by a backup or an import, while no daemon runs.

The new store is written to the folder `history.installing` beside the present one. There it is checked, gets
the event it owes (`Environment.owe`: HistoryInstalled), and is marked with the file INSTALLING, which names
the future place of the present store. Then the two folders are exchanged in one step, and the old store gets
that name, `history.before-restore-TIME`. It is never overwritten or removed. After a kill at any point either
the old store or the new one is in place, whole, and `settle` finishes or clears the rest at the next start or
restore. All of it runs as the owner of the state folder (`stored.run_as_owner`), who holds its lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightagentd.errors import Conflict, HistoryDamaged, StorageError
from lightagentd.events.backup import store_file
from lightagentd.events.backup.backup import copy_error
from lightagentd.events.backup.store_file import StoreFacts
from lightagentd.events.store.exchange import finish_exchange
from lightagentd.events.store.layout import Environment
from lightagentd.events.types.history import HistoryInstalled
from lightagentd.host import state_lock
from lightagentd.host.atomic_file import write_whole
from lightagentd.host.renaming import exchange, rename_new, sync_folder
from lightagentd.host.users import called

HISTORY, STAGING = "history", "history.installing"
MARK = "INSTALLING"
"""A file in a store that was put in place, until the one before it has its name."""
_COPY_BYTES = 1 << 20


@contextlib.contextmanager
def held(state: Path) -> Iterator[None]:
    """Hold the lock of a stopped daemon's state folder. Raises Conflict."""
    try:
        fd = state_lock.hold(state)
    except Conflict as err:
        err.message = f"The daemon that uses {state} is running."
        err.suggestion = "Stop it first: systemctl stop lightagentd"
        raise
    try:
        yield
    finally:
        os.close(fd)


def install_backup(state: str, fd: int, name: str, by: int, force: bool) -> Iterator[dict[str, Any]]:
    """Put the backup behind a descriptor in place. Yields the facts as `install` does. `name` is its name in
    messages, `by` the uid of the caller.

    `force` also allows a chain that does not verify. Raises Conflict, InvalidArgument, StorageError,
    HistoryDamaged; the present store is unchanged then.
    """

    def make(folder: Path) -> None:
        _copy(fd, folder / "data.mdb")

    yield from install(Path(state), "restore", by, make, name, force=force)


def install(
    state: Path, how: str, by: int, make: Callable[[Path], None], name: str, *, force: bool
) -> Iterator[dict[str, Any]]:
    """Have `make` write a store's data.mdb into an empty folder, and put that in place if it verifies.

    Yields sentences about the remains of an earlier command (`said`), then the facts with `set_aside`: the
    path of the former store, empty when there was none. Raises the errors of `make`, and Conflict,
    StorageError.
    """
    with held(state):
        if said := settle(state):
            yield {"said": said}
        finish_exchange(state / HISTORY)
        staging = state / STAGING
        placed = False
        try:
            staging.mkdir(mode=0o700)
            make(staging)
            found = store_file.facts(staging / "data.mdb", name)
            if not found.verified and not force:
                verifies, other = (
                    ("verify", "backup") if how == "restore" else ("verify as a whole", "export")
                )
                raise HistoryDamaged(
                    f"{name} does not {verifies}: {found.problem}.",
                    suggestion=f"Use another {other}, or put it in place all the same with --force.",
                )
            aside = _name_aside(state, how) if os.path.lexists(state / HISTORY) else None
            _owe(staging, how, by, found, aside)
            _mark(staging, aside)
            placed = True
            _place(state, aside)
        except OSError as err:
            raise copy_error(err) from err
        finally:
            if not placed:
                shutil.rmtree(staging, ignore_errors=True)
        yield {**asdict(found), "set_aside": str(aside or "")}


def settle(state: Path) -> str:
    """Finish an interrupted installation of a store; returns a sentence about it, or nothing.

    Runs under the lock of the state folder, before the history is opened. Raises StorageError.
    """
    history, staging = state / HISTORY, state / STAGING
    try:
        if (history / MARK).exists():  # exchanged: the store beside it is the former one
            aside = _finish(state)
            former = f"; the former history is {aside}" if aside else ""
            return f"A restore or import was interrupted and is finished{former}."
        if not os.path.lexists(staging):
            return ""
        if not os.path.lexists(history) and (staging / MARK).exists():
            rename_new(staging, history)
            sync_folder(state)
            _finish(state)
            return "A restore or import was interrupted and is finished."
        shutil.rmtree(staging)
        sync_folder(state)
    except OSError as err:
        raise StorageError(
            f"A restore or import in {state} was interrupted and cannot be cleared up: {err.strerror}.",
            suggestion=f"Look at {staging} and {history}, keep the one that is whole as 'history'.",
        ) from err
    return "A restore or import was interrupted before it changed anything; begin it again."


def _name_aside(state: Path, how: str) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = state / f"{HISTORY}.before-{how}-{stamp}"
    number = 1
    while os.path.lexists(name):
        number += 1
        name = state / f"{HISTORY}.before-{how}-{stamp}-{number}"
    return name


def _owe(staging: Path, how: str, by: int, found: StoreFacts, aside: Path | None) -> None:
    """Make the first start with the new store record the installation."""
    done = HistoryInstalled(
        how=how,
        by=by,
        seq=found.seq,
        hash=found.hash,
        set_aside=str(aside or ""),
        verified=found.verified,
        message=_sentence(how, by, found, aside),
    )
    environment = Environment(staging)
    try:
        with environment.env.begin(write=True) as txn:
            environment.owe(txn, done.event())
    finally:
        environment.close()
    (staging / "lock.mdb").unlink(missing_ok=True)


def _sentence(how: str, by: int, found: StoreFacts, aside: Path | None) -> str:
    what = "a backup was restored" if how == "restore" else "an export was imported"
    checked = "" if found.verified else ", though it does not verify"
    former = f"; the former history is {aside}" if aside else ""
    return f"by {called(by)} {what} that ends at event {found.seq}{checked}{former}"


def _mark(staging: Path, aside: Path | None) -> None:
    write_whole(staging / MARK, json.dumps({"set_aside": aside.name if aside else ""}).encode())
    for name in staging.iterdir():
        _sync_file(name)
    sync_folder(staging)


def _place(state: Path, aside: Path | None) -> None:
    history, staging = state / HISTORY, state / STAGING
    if aside is None:
        rename_new(staging, history)
    elif not exchange(staging, history):
        rename_new(history, aside)  # after a kill here no history is in place: `settle` goes on
        rename_new(staging, history)
    sync_folder(state)
    _finish(state)


def _finish(state: Path) -> Path | None:
    """The new store is in place: name the former one, then remove the mark."""
    history, staging = state / HISTORY, state / STAGING
    aside: Path | None = None
    name = ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        name = str(json.loads((history / MARK).read_text())["set_aside"])
    if name and "/" not in name:
        aside = state / name
    if os.path.lexists(staging):
        if aside is None or os.path.lexists(aside):
            aside = _name_aside(state, "restore")
        rename_new(staging, aside)
        sync_folder(state)
    (history / MARK).unlink()
    sync_folder(history)
    return aside


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source: int, target: Path) -> None:
    """Copy a file from its beginning. Raises OSError."""
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        position = 0
        while data := os.pread(source, _COPY_BYTES, position):
            file.write(data)
            position += len(data)
