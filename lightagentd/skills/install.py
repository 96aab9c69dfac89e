"""Puts a skill into a folder of the search path, and removes it: whole or not at all.

A skill is unpacked and checked in a hidden folder beside its place, which the loader passes over, then
renamed. Its files belong to whoever runs this, root for the system's, and nobody else can write them.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lightagentd import frontmatter
from lightagentd.errors import ConfigError, Conflict, NotFound, PermissionDenied, StorageError
from lightagentd.host.renaming import exchange, rename_new, sync_folder
from lightagentd.skills.catalog import load_skill
from lightagentd.skills.front_matter import NAME
from lightagentd.skills.skill import Skill
from lightagentd.skills.unpacking import unpack


def install(source: Path, folder: Path, *, replace: bool = False, shown: str = "") -> Skill:
    """Check the skill of a folder or an archive, and put it below `folder`; gives it as it is there.

    `shown` stands for the source in messages. Raises ConfigError for a skill that could not be used,
    Conflict when there is one of the name and it is not to be replaced, what `unpack` raises,
    PermissionDenied and StorageError.
    """
    with _written(folder):
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o755)  # whatever the umask: the daemon reads it
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as draft:
            top = Path(draft, ".unpacked")
            top.mkdir()
            named = _named(unpack(source, top), Path(draft), shown or str(source))
            target = folder / named.name
            if replace and target.is_dir() and exchange(named, target):
                sync_folder(folder)
                return load_skill(target)
            if replace and os.path.lexists(target):
                target.rename(Path(draft, "old"))
            try:
                rename_new(named, target)
            except FileExistsError:
                raise Conflict(
                    f"The skill {target.name} is there already, in {folder}.",
                    suggestion="Replace it with --force.",
                    field="name",
                ) from None
            sync_folder(folder)
    return load_skill(target)


def remove(name: str, folder: Path) -> None:
    """Remove a skill from `folder`. Raises NotFound, PermissionDenied and StorageError."""
    target = folder / name
    if not NAME.fullmatch(name) or not os.path.lexists(target):
        raise NotFound(f"There is no skill {name[:60]!r} in {folder}.", suggestion="Run: lactl skills list")
    with _written(folder):
        if target.is_symlink() or not target.is_dir():
            target.unlink()
            return
        with tempfile.TemporaryDirectory(prefix=".old-", dir=folder) as old:
            target.rename(Path(old, name))
            sync_folder(folder)


def _named(found: Path, draft: Path, shown: str) -> Path:
    """The unpacked skill in a folder of its own name. Raises ConfigError when it could not be used."""
    try:
        name = frontmatter.read(found / "SKILL.md", quote=True).data.get("name", "")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            said = repr(name[:80]) if isinstance(name, str) else "what it gives"
            raise ConfigError(f"{found / 'SKILL.md'}: {said} is not the name of a skill.")
        load_skill(found.rename(draft / name))
    except ConfigError as err:
        message = re.sub(rf"{re.escape(str(draft))}/[^/]+", lambda _: shown, err.message)
        raise ConfigError(message, suggestion="Mend it, and add it then.") from None
    return draft / name


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        if err.filename and not str(err.filename).startswith(str(folder)):
            raise StorageError(f"{err.filename} cannot be read: {err.strerror}.") from err
        if not isinstance(err, PermissionError):
            raise StorageError(f"{err.filename or folder} cannot be written: {err.strerror}.") from err
        raise PermissionDenied(f"You may not write in {folder}.", suggestion="Use sudo.") from err
