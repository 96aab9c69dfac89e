"""The folder with the kits that were added at run time: each is there whole or not at all.

    kits/NAME/          what workers and the daemon read
    kits/.new/          drafts, and kits that are being removed
    kits/.old/NAME      a kit that is being replaced, where the file system cannot exchange two names

A kit is unpacked below `.new`, synced and renamed. `recover` takes what a killed daemon left there: the
daemon calls it before it starts any worker. Everything belongs to its user, and nobody else can write it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lightagentd.agents.definition import check_name
from lightagentd.errors import Conflict, InvalidArgument, StorageError
from lightagentd.host.renaming import exchange, rename_new, sync_folder
from lightagentd.skills.unpacking import Terms, unpack
from lightagentd.text.reason import reason

_log = logging.getLogger(__name__)

_NEW, _OLD = ".new", ".old"


def terms(most_bytes: int, most_files: int) -> Terms:
    """What a kit may be."""
    hint = "Give a folder, or an archive of one: tar czf KIT.tar.gz KIT"
    return Terms(
        kind="kit",
        marker="AGENT.md",
        most_bytes=most_bytes,
        most_files=most_files,
        links=False,
        hint=hint,
    )


def recover(folder: Path) -> None:
    """Make the folder, put back what was being replaced, and remove drafts. Errors go to the log."""
    try:
        _make(folder)
        for old in sorted((folder / _OLD).glob("*")):
            with contextlib.suppress(FileExistsError):
                rename_new(old, folder / old.name)
                _log.warning("the kit %s is back: it was not replaced before the last stop", old.name)
        for left in (_NEW, _OLD):
            if (folder / left).exists():
                shutil.rmtree(folder / left)
    except OSError as err:
        _log.error("the folder of kits cannot be put in order: %s", reason(err, at=True))


@contextlib.contextmanager
def unpacked(archive: bytes, name: str, folder: Path, limits: Terms) -> Iterator[Path]:
    """A kit in a draft, in a folder of its name, which goes with the block unless `place` took it.

    Without a name it is that of its folder in the archive. Raises InvalidArgument, MessageTooLarge and
    StorageError.
    """
    with _written(folder):
        _make(folder)
        drafts = readable_folder(folder / _NEW)
        with tempfile.TemporaryDirectory(dir=drafts) as draft:
            Path(draft).chmod(0o755)  # a worker reads it to describe the tools
            source, top = Path(draft, ".archive"), Path(draft, ".top")
            source.write_bytes(archive)
            top.mkdir()
            found = unpack(source, top, limits, shown="The archive")
            name = name or ("" if found == top else found.name)
            if not name:
                raise InvalidArgument(
                    "The archive has no folder around AGENT.md that could give the kit its name.",
                    suggestion="Name it: lactl kits add --name NAME",
                    field="name",
                )
            check_name(name)
            named = Path(draft, name)
            found.rename(named)
            yield named


def place(draft: Path, folder: Path, *, replace: bool) -> Path:
    """Put an unpacked kit into its place, in one step; gives that. Raises Conflict, StorageError."""
    target = folder / draft.name
    with _written(folder):
        for path, _, files in os.walk(draft):
            for file in files:
                _sync_file(Path(path, file))
            sync_folder(Path(path))
        if not (replace and target.is_dir() and exchange(draft, target)):
            if replace and os.path.lexists(target):
                target.rename(readable_folder(folder / _OLD) / draft.name)
            try:
                rename_new(draft, target)
            except FileExistsError:
                raise Conflict(
                    f"There is a kit {target.name} already.",
                    suggestion="Replace it with --replace.",
                    field="name",
                ) from None
        sync_folder(folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder / _OLD)
    return target


def remove(name: str, folder: Path) -> None:
    """Remove a kit that is there. Raises StorageError."""
    with _written(folder), tempfile.TemporaryDirectory(dir=readable_folder(folder / _NEW)) as gone:
        (folder / name).rename(Path(gone, name))
        sync_folder(folder)


def _make(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    readable_folder(folder)


def readable_folder(folder: Path) -> Path:
    """A folder that workers can read, whatever the umask."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise StorageError(
            f"{err.filename or folder} cannot be written: {reason(err)}.",
            suggestion="Make room, or look at the folder, and ask for it again.",
        ) from err
