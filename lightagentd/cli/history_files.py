"""`lactl history backup`, `restore`, `export` and `import`: the store as a file.

All four work on the store itself, with the rights of its owner (`events.backup.stored`), and need no daemon;
restore and import need a stopped one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.filters import filter_options, time_options, wanted
from lightagentd.cli.named_file import unreadable
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import fields, print_json, say, warn
from lightagentd.cli.progress import Progress
from lightagentd.cli.stored import state_dir_option, state_folder, stored_client
from lightagentd.cli.terminal import is_terminal
from lightagentd.cli.when import size
from lightagentd.cli.whole_file import new_file
from lightagentd.errors import HistoryDamaged, InvalidArgument, StorageError

_START = "Start the daemon: systemctl start lightagentd"


@click.command("backup", cls=Command)
@click.argument("file", type=click.Path())
@click.option("--force", is_flag=True, help="Replace FILE when there is one.")
@click.option("--no-verify", is_flag=True, help="Do not check afterwards what was written.")
@state_dir_option
@click.pass_obj
def backup(settings: Settings, file: str, force: bool, no_verify: bool) -> None:
    """Copy the whole store to FILE, while the daemon goes on or without it.

    The copy is one moment of the history, with the state that belongs to it, without free space. It has mode
    0600 and is there whole or not at all, and its chain is checked. With - it goes to standard output,
    unchecked. The key that signs the history is not in it. 'lactl history restore' puts it in place again.
    """
    from lightagentd.events.backup.backup import copy_store
    from lightagentd.events.backup.stored import run_as_owner

    state = state_folder(settings)
    copying = run_as_owner(state, copy_store, str(state / "history"))
    if file == "-":
        with _output() as fd:
            found = _written(copying, fd)
        if not settings.json:
            warn(f"The copy has everything up to event {found['seq']}, or more.")
        return
    path = Path(file).absolute()
    _check_outside(path, state)
    with new_file(path, force=force) as fd:
        found = _written(copying, fd)
        if not no_verify:
            found = _examined(state, fd, file)
        size_bytes = os.fstat(fd).st_size
    shown = {"file": str(path), **_shown(found), "verified": not no_verify}
    checked = "not checked" if no_verify else "its chain verifies"
    _told(settings, shown, f"{file} has {_events(found)}, {size(size_bytes)}; {checked}.")


def _written(pieces: Iterator[Any], fd: int) -> dict[str, Any]:
    """Write the bytes among a child's messages; returns its last message. Raises StorageError."""
    from lightagentd.events.backup.backup import copy_error

    found: dict[str, Any] = {}
    written, progress = 0, Progress()
    with contextlib.closing(progress), os.fdopen(os.dup(fd), "wb", buffering=0) as file:
        for piece in pieces:
            if not isinstance(piece, bytes):
                found = piece
                continue
            written, at = written + len(piece), 0
            progress.tell(f"{size(written)} written")
            try:
                while at < len(piece):
                    at += file.write(memoryview(piece)[at:])
            except OSError as err:
                raise copy_error(err) from err
    return found


def _examined(state: Path, fd: int, name: str) -> dict[str, Any]:
    """The content of the written file, examined as the store's owner. Raises StorageError, HistoryDamaged."""
    from lightagentd.events.backup.store_file import examine
    from lightagentd.events.backup.stored import owner_of, result_as_owner

    owner, mine = owner_of(state), os.fstat(fd)
    reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if owner.uid != mine.st_uid:  # they may read it while they check it, and never write it
            os.fchown(fd, -1, owner.gid)
            os.fchmod(fd, 0o640)
        seen = f"/proc/self/fd/{reading}"
        found: dict[str, Any] = result_as_owner(state, examine, seen, name, pass_fds=[reading])
        if owner.uid != mine.st_uid:
            os.fchmod(fd, 0o600)
            os.fchown(fd, -1, mine.st_gid)
    except OSError as err:
        raise StorageError(
            f"{name} cannot be checked: its file system does not let others read it ({err.strerror}).",
            suggestion="Write it to another one, or without a check: --no-verify",
        ) from err
    finally:
        os.close(reading)
    if found["problem"]:
        raise HistoryDamaged(
            f"The backup does not verify: {found['problem']}.",
            suggestion="See what is wrong with 'lactl audit verify'. --no-verify writes it all the same.",
        )
    return found


@click.command("restore", cls=Command)
@click.argument("file", type=click.Path())
@click.option("--force", is_flag=True, help="Also one whose chain does not verify; the history says so.")
@state_dir_option
@click.pass_obj
def restore(settings: Settings, file: str, force: bool) -> None:
    """Put the backup FILE in the place of the store, while the daemon is stopped.

    FILE is checked before anything changes. The present store is not removed: it gets the name that is
    printed. The next start of the daemon records the restore in the history.
    """
    from lightagentd.events.backup.installing import install_backup

    with _input(file) as fd:
        _install(settings, install_backup, fd, file, force=force)


@click.command("export", cls=Command)
@click.argument("file", type=click.Path(), default="-")
@filter_options()
@time_options
@click.option(
    "--state/--no-state",
    default=None,
    help="With the entries of state, such as sessions and approvals; the default for a whole export.",
)
@click.option("--force", is_flag=True, help="Replace FILE when there is one.")
@state_dir_option
@click.pass_obj
def export(settings: Settings, /, file: str, force: bool, state: bool | None, **options: Any) -> None:
    """Write the history as lines of JSON, to standard output or to FILE.

    The first line says what it is, then each event is a line as 'lactl history --json' prints it, each entry
    of state one with state, key and value, and the last line has the counts and the head. Options that say
    which events are meant make it the export of a part. A whole one can be imported again.
    """
    from lightagentd.events.backup.portable import export as write
    from lightagentd.events.backup.stored import run_as_owner

    folder = state_folder(settings)
    settings.store, settings.state_dir = stored_client, str(folder)  # what `wanted` asks about sessions, too
    which = {name: value for name, value in wanted(settings, options).items() if value is not None}
    writing = run_as_owner(folder, write, str(folder / "history"), which, state)
    if file == "-":
        with _output() as fd:
            _written(writing, fd)
        return
    path = Path(file).absolute()
    _check_outside(path, folder)
    with new_file(path, force=force) as fd:
        found = _written(writing, fd)
    whole = "the whole history" if found["whole"] else "a part of the history"
    shown = {"file": str(path), **_shown(found), "states": found["states"], "whole": found["whole"]}
    _told(settings, shown, f"{file} has {whole}: {_events(found)}.")


@click.command("import", cls=Command)
@click.argument("file", type=click.Path())
@click.option(
    "--force",
    is_flag=True,
    help="Also one that was cut off, or does not verify as a whole; the history says so.",
)
@state_dir_option
@click.pass_obj
def import_(settings: Settings, file: str, force: bool) -> None:
    """Make a store from the whole export FILE and put it in place, while the daemon is stopped.

    FILE may be - for standard input. Every line is checked, and the first one that is wrong is named; then
    nothing changes. The present store is not removed: it gets the name that is printed. The next start of the
    daemon records the import in the history.
    """
    from lightagentd.events.backup.importing import install_export

    with _input(file) as fd:
        _install(settings, install_export, fd, "Standard input" if file == "-" else file, force=force)


def _install(settings: Settings, function: Any, fd: int, name: str, *, force: bool) -> None:
    from lightagentd.events.backup.stored import run_as_owner

    state = state_folder(settings)
    found: dict[str, Any] = {}
    for found in run_as_owner(state, function, str(state), fd, name, os.getuid(), force, pass_fds=[fd]):
        if "said" in found:
            warn(found["said"])
    shown = {**_shown(found), "verified": found["verified"], "set_aside": found["set_aside"]}
    if not found["verified"]:
        warn(f"It does not verify: {found['problem']}.")
    former = f" The former store is {found['set_aside']}." if found["set_aside"] else ""
    _told(settings, shown, f"In place: {_events(found)}.{former}\n{_START}")


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("events", "seq", "hash")}


def _events(found: dict[str, Any]) -> str:
    return f"{found['events']} events up to number {found['seq']} ({found['hash'][:16]}…)"


def _told(settings: Settings, found: dict[str, Any], sentence: str) -> None:
    if settings.json:
        print_json(found)
    elif is_terminal():
        say(sentence)
    else:
        fields(found.items())


def _check_outside(path: Path, state: Path) -> None:
    """A store's folder is the daemon's, and must not get other files. Raises InvalidArgument."""
    parent = path.parent.resolve()
    for folder in (state / "history", *state.glob("history.*")):
        inside = folder.resolve()
        if parent == inside or inside in parent.parents:
            raise InvalidArgument(
                f"{path} would lie in the folder of the history.",
                suggestion="Name a file elsewhere, best on another disk.",
                field="file",
            )


@contextlib.contextmanager
def _output() -> Iterator[int]:
    """The descriptor of standard output. Raises InvalidArgument when that is a terminal."""
    if sys.stdout.isatty():
        raise InvalidArgument(
            "Standard output is a terminal.", suggestion="Name a FILE, or send it into a pipe.", field="file"
        )
    sys.stdout.flush()
    yield sys.stdout.fileno()


@contextlib.contextmanager
def _input(name: str) -> Iterator[int]:
    """The descriptor of a file to read, or of standard input. Raises `unreadable`, InvalidArgument."""
    try:
        fd = os.dup(0) if name == "-" else os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as err:
        raise unreadable(name, err) from err
    try:
        if name != "-" and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidArgument(f"{name} is not a file.", suggestion="Check the path.", field="file")
        yield fd
    finally:
        os.close(fd)


COMMANDS = (backup, restore, export, import_)
"""In the order in which the help lists them."""
