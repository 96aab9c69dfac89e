"""Changes one file atomically: a reader sees the old or the new content, and no other file is touched.

A path is walked folder by folder with O_NOFOLLOW from the root, and everything then happens relative to the
folder's descriptor: what openat2(2) does with RESOLVE_NO_SYMLINKS, but under every kernel and seccomp filter.
So nobody can replace a folder by a symbolic link between an approval and the change. A path through a link is
refused, and the error names the real path, which a person should approve instead.

New content goes to a temporary file in the same folder, gets owner, mode and extended attributes of the old
one, is synced, and takes its name with rename(2); a new file takes its name with link(2), which fails when
somebody else was first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lightagentd.errors import Conflict, InvalidArgument, LightagentError, NotFound, Refused, ToolError
from lightagentd.host.renaming import sync_folder
from lightagentd.toolkit.files.search import kind_of

CONTENT_LIMIT_BYTES = 16 * 1024 * 1024
"""The largest file that can be written or edited: its old and new content are held in memory."""
NEW_FILE_MODE, NEW_FOLDER_MODE = 0o644, 0o755
_TEMPORARY = ".lightagent-"
_NOT_COPIED = ("security.capability",)
"""write(2) takes the capabilities of a program away, so a replacement must not keep them either."""


@dataclass(frozen=True, kw_only=True)
class Present:
    """A file or a symbolic link as it was found."""

    kind: str
    data: bytes
    """The content, or the target of a link."""
    info: os.stat_result
    attributes: dict[str, bytes] = field(default_factory=dict)

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.info.st_mode)


@contextlib.contextmanager
def folder_of(path: str, make: list[str] | None = None) -> Iterator[tuple[int, str]]:
    """The descriptor of the folder that holds `path`, reached without symbolic links, and the last name.

    With a list, folders that are missing are made and added to it, and removed again when the block fails.
    """
    parts = _parts(path)
    handle = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, part in enumerate(parts[:-1], 1):
            folder = "/" + "/".join(parts[:depth])
            try:
                below = _open_folder(handle, part, folder, make)
            except OSError as err:
                raise _no_folder(path, folder, err) from err
            os.close(handle)
            handle = below
        yield handle, parts[-1]
    except BaseException:
        remove_folders(make or ())
        raise
    finally:
        os.close(handle)


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or path.endswith("/"):
        raise InvalidArgument(
            f"{path} does not name a file.",
            field="path",
            suggestion="Give a path without '..' and a last '/'.",
        )
    return parts


def _open_folder(above: int, name: str, folder: str, make: list[str] | None) -> int:
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_PATH, dir_fd=above)
    except FileNotFoundError:
        if make is None:
            raise
    os.mkdir(name, 0o700, dir_fd=above)
    make.append(folder)
    handle = os.open(name, flags | os.O_RDONLY, dir_fd=above)
    os.fchmod(handle, NEW_FOLDER_MODE)
    _sync(above)
    return handle


def missing_folders(path: str) -> list[str]:
    """The folders above a file that do not exist, the topmost first. Raises what `folder_of` raises."""
    parts = _parts(path)
    folders = ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts))]
    for depth, folder in enumerate(folders):
        with folder_of(folder) as (above, name):
            try:
                os.stat(name, dir_fd=above, follow_symlinks=False)
            except FileNotFoundError:
                return folders[depth:]
    return []


def remove_folders(folders: Sequence[str]) -> list[str]:
    """Remove folders that were made, the last one first, as long as they are empty; gives the others."""
    left = [*folders]
    with contextlib.suppress(OSError, LightagentError):
        while left:
            with folder_of(left[-1]) as (above, name):
                os.rmdir(name, dir_fd=above)
            left.pop()
    return left


def _no_folder(path: str, folder: str, err: OSError) -> Exception:
    if err.errno == errno.ENOENT:
        hint = "A write with parents makes it."
        return NotFound(f"The folder {folder} does not exist.", field="path", suggestion=hint)
    if err.errno not in (errno.ENOTDIR, errno.ELOOP):
        return err
    real = os.path.realpath(path)
    if os.path.islink(folder):  # noqa: PTH114 - only to word the message
        return link_refused(path, folder, real)
    return InvalidArgument(f"{folder} is not a folder.", field="path")


def link_refused(path: str, link: str, real: str) -> Refused:
    return Refused(
        f"{path} is not changed, because {link} is a symbolic link.",
        field="path",
        suggestion=f"Name the file itself, which is now {real}.",
    )


def look(folder: int, name: str, path: str, *, limit_bytes: int = CONTENT_LIMIT_BYTES) -> Present | None:
    """The file or link with this name; None if there is none. A file beyond the limit has no content here.

    Raises InvalidArgument for a folder or a special file.
    """
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        info = os.fstat(handle)
        kind = kind_of(info.st_mode)
        if kind == "link":
            return Present(kind=kind, data=os.fsencode(os.readlink("", dir_fd=handle)), info=info)
        if kind != "file":
            raise InvalidArgument(f"{path} is a {kind}, not a file.", field="path")
        if info.st_size > limit_bytes:
            return Present(kind="large file", data=b"", info=info)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with os.fdopen(os.open(f"/proc/self/fd/{handle}", flags), "rb") as file:
            data = file.read(limit_bytes + 1)
            return Present(
                kind=kind, data=data, info=os.fstat(file.fileno()), attributes=_attributes(file.fileno())
            )
    finally:
        os.close(handle)


def _attributes(handle: int) -> dict[str, bytes]:
    found = {}
    with contextlib.suppress(OSError):  # a file system without extended attributes
        for name in os.listxattr(handle):
            if name not in _NOT_COPIED:
                found[name] = os.getxattr(handle, name)
    return found


def put(
    folder: int,
    name: str,
    path: str,
    data: bytes,
    *,
    was: Present | None,
    mode: int | None = None,
    owner: tuple[int, int] | None = None,
) -> list[str]:
    """Give `name` this content, atomically; returns the extended attributes that could not be kept.

    `was` is what `look` found: if something else has the name by now, Conflict is raised and nothing
    changed. Owner (uid, gid) and mode stay as they were unless they are given.
    """
    temporary = _TEMPORARY + secrets.token_hex(8)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            lost = _dress(handle, path, was, mode, owner)
            os.fsync(handle)
        _check_unchanged(folder, name, path, was)
        if was is None:
            _take_free_name(folder, temporary, name, path)
        else:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
    _sync(folder)
    return lost


def _dress(
    handle: int, path: str, was: Present | None, mode: int | None, owner: tuple[int, int] | None
) -> list[str]:
    """Owner first, since a change of it takes the set-user-ID bit away."""
    if was is not None:
        owner = owner or (was.info.st_uid, was.info.st_gid)
        mode = was.mode if mode is None else mode
    made = os.fstat(handle)
    if owner is not None and owner != (made.st_uid, made.st_gid):
        try:
            os.fchown(handle, *owner)
        except PermissionError as err:
            raise ToolError(
                f"{path} belongs to {owner[0]}:{owner[1]}, which a replacement could not keep.",
                suggestion="Change it with the rights of its owner.",
            ) from err
    lost = []
    for attribute, value in (was.attributes if was else {}).items():
        try:
            os.setxattr(handle, attribute, value)
        except OSError:
            lost.append(attribute)
    os.fchmod(handle, NEW_FILE_MODE if mode is None else mode)
    return lost


def _check_unchanged(folder: int, name: str, path: str, was: Present | None) -> None:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if was is None:
            return
        raise Conflict(f"{path} was removed meanwhile.", suggestion="Look again.") from None
    if was is None or _identity(info) != _identity(was.info):
        raise Conflict(f"{path} was changed meanwhile; it is left as it is.", suggestion="Read it again.")


def _identity(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _take_free_name(folder: int, temporary: str, name: str, path: str) -> None:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise Conflict(f"{path} was made by somebody else meanwhile.", suggestion="Read it.") from None
    except OSError as err:
        if err.errno not in (errno.EPERM, errno.EOPNOTSUPP):
            raise
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)  # no hard links here, as on FAT


def put_link(folder: int, name: str, path: str, target: bytes) -> None:
    """Make a symbolic link where nothing is; Conflict when something is."""
    try:
        os.symlink(target, os.fsencode(name), dir_fd=folder)
    except FileExistsError:
        raise Conflict(f"{path} exists again.", suggestion="Look at it.") from None
    _sync(folder)


def remove(folder: int, name: str, path: str, was: Present) -> None:
    """Remove a file or a link, if it is still what `look` found."""
    _check_unchanged(folder, name, path, was)
    os.unlink(name, dir_fd=folder)
    _sync(folder)


def _sync(folder: int) -> None:
    """Make the new name survive a power failure; an unreadable folder cannot be synced."""
    with contextlib.suppress(PermissionError):
        sync_folder(folder)
