"""Copies a skill out of a folder or an archive (tar, tar.gz, zip) that somebody else made.

Only files and folders come out of it, and only below the new folder. A link to a file in it becomes a copy;
any other link, a device, an absolute path and `..` are refused, and so is more than `MOST_BYTES` or
`MOST_FILES`.
"""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from lightagentd.errors import InvalidArgument, MessageTooLarge
from lightagentd.text.reason import reason

MOST_BYTES = 50 << 20
MOST_FILES = 2000
_HEADERS_BYTES = 4 << 20
"""How much a tar archive may have beside the content of its files."""
_LEFT_OUT = frozenset((".git", "__pycache__", "__MACOSX", ".DS_Store"))
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError),
    *(NotImplementedError, ValueError, LookupError, OverflowError, struct.error),
)
"""What the library's readers raise for one that is not whole, or made up."""


def unpack(source: Path, into: Path) -> Path:
    """Copy into an empty folder that nobody else can write; gives the folder of the skill in it.

    Raises InvalidArgument for what is not one skill, MessageTooLarge, and OSError.
    """
    draft = _Draft(source, into)
    if source.is_dir():
        _copy(source, draft)
    else:
        if source.stat().st_size > MOST_BYTES:
            raise draft.too_large()
        try:
            _extract(source, draft)
        except (*_BROKEN, OSError) as err:
            if isinstance(err, OSError) and err.errno not in (None, errno.EINVAL):
                raise  # not that of a bz2 stream, a gzip header or a position before the file
            raise InvalidArgument(
                f"{source} is not a whole tar, tar.gz or zip archive: {reason(err)}.",
                suggestion="For a page or a script: lactl skills new NAME --from FILE",
                field="source",
            ) from err
    draft.link()
    for folder in (into, *(path for path in into.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return _skill_in(source, into)


class _Draft:
    """What was written so far."""

    def __init__(self, source: Path, into: Path) -> None:
        self._source, self._into = source, into
        self._bytes = self._files = 0
        self._links: list[tuple[str, str]] = []

    def too_large(self) -> MessageTooLarge:
        return MessageTooLarge(
            f"{self._source} has more than {MOST_BYTES >> 20} MiB or {MOST_FILES} files.", field="source"
        )

    def refuse(self, name: str, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self._source}: {name[:200]!r} {why}.", field="source")

    def add(self, name: str, content: IO[bytes], *, executable: bool) -> None:
        """Write a file of the archive."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or not name.isprintable():
            raise self.refuse(name, "is not a path inside of it")
        if not _LEFT_OUT.isdisjoint(parts):
            return
        self._files += 1
        if self._files > MOST_FILES:
            raise self.too_large()
        path = self._into.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while chunk := content.read(1 << 16):
                    self._bytes += len(chunk)
                    if self._bytes > MOST_BYTES:
                        raise self.too_large()
                    file.write(chunk)
        except (FileExistsError, NotADirectoryError):
            raise self.refuse(name, "is in it twice") from None
        path.chmod(0o755 if executable else 0o644)

    def add_link(self, name: str, target: str) -> None:
        """Remember a link; `target` is a path from the top."""
        if len(self._links) >= MOST_FILES:
            raise self.too_large()
        self._links.append((name, target))

    def link(self) -> None:
        """Copy what links lead to, now that all files are there."""
        for name, target in self._links:
            path = self._into / target
            if target.startswith(("/", "../")) or not path.is_file():
                raise self.refuse(name, "is a link to something that is not a file of it")
            with path.open("rb") as content:
                self.add(name, content, executable=os.access(path, os.X_OK))


def _copy(source: Path, draft: _Draft) -> None:
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in _LEFT_OUT]
        linked = [name for name in names if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in (*linked, *files)):
            name, mode = str(path.relative_to(source)), path.lstat().st_mode
            if stat.S_ISLNK(mode):
                draft.add_link(name, os.path.relpath(path.resolve(), source.resolve()))
            elif stat.S_ISREG(mode):
                with path.open("rb") as content:
                    draft.add(name, content, executable=bool(mode & 0o100))
            else:
                raise draft.refuse(name, "is not a file or folder")


def _extract(source: Path, draft: _Draft) -> None:
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if stat.S_ISLNK(mode):
                    draft.add_link(info.filename, _target(archive, info))
                elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise draft.refuse(info.filename, "is not a file or folder")
                elif not info.is_dir():
                    with archive.open(info) as content:
                        draft.add(info.filename, content, executable=bool(mode & 0o100))
        return
    with source.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=file) if packed else file)
        stream = _Bounded(unpacked, draft)
        with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as archive:
            for member in archive:
                if member.issym():
                    draft.add_link(member.name, _beside(member.name, member.linkname))
                elif member.islnk():
                    draft.add_link(member.name, posixpath.normpath(member.linkname))
                elif member.isreg() and (inside := archive.extractfile(member)) is not None:
                    draft.add(member.name, inside, executable=bool(member.mode & 0o100))
                elif not member.isdir():
                    raise draft.refuse(member.name, "is not a file or folder")


class _Bounded(io.RawIOBase):
    """A stream that ends with an error where it is too long: tarfile reads whole headers into memory."""

    def __init__(self, stream: IO[bytes], draft: _Draft) -> None:
        self._stream, self._draft, self._left = stream, draft, MOST_BYTES + _HEADERS_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise self._draft.too_large()
        buffer[: len(data)] = data
        return len(data)


def _target(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    with archive.open(info) as content:
        return _beside(info.filename, content.read(4096).decode(errors="replace"))


def _beside(name: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def _skill_in(source: Path, into: Path) -> Path:
    """The folder of the SKILL.md that is nearest to the top."""
    found = sorted(into.rglob("SKILL.md"), key=lambda path: len(path.parts))
    nearest = [path.parent for path in found if len(path.parts) == len(found[0].parts)]
    if len(nearest) == 1:
        return nearest[0]
    names = ", ".join(sorted(folder.name for folder in nearest)[:10])
    raise InvalidArgument(
        f"{source} has {f'several skills: {names}' if names else 'no SKILL.md'}.",
        suggestion="Name the folder of one." if names else "",
        field="source",
    )
