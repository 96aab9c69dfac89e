"""Copies a skill or a kit out of a folder or an archive (tar, tar.gz, tar.xz, zip) that somebody else made.

Only files and folders come out of it, and only below the new folder. A device, an absolute path and `..` are
refused, and so is more than `Terms` allow. In a skill a link to a file in it becomes a copy; any other link
is refused, and in a kit every one.
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
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from lightagentd.errors import InvalidArgument, MessageTooLarge
from lightagentd.text.reason import reason

MOST_BYTES = 50 << 20
MOST_FILES = 2000
_HEADERS_BYTES = 4 << 20
"""How much a tar archive may have beside the content of its files."""
_XZ_BYTES = 128 << 20
"""How much memory a tar.xz may take to unpack, which its maker chooses: xz -9 takes half of it."""
_DEEPEST, _NAME_BYTES = 32, 1024
_LEFT_OUT = frozenset((".git", "__pycache__", "__MACOSX", ".DS_Store"))
_SMALL = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What takes no more memory to unpack than anything else does."""
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError),
    *(NotImplementedError, ValueError, LookupError, OverflowError, struct.error),
)
"""What the library's readers raise for one that is not whole, or made up."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is taken."""

    kind: str = "skill"
    marker: str = "SKILL.md"
    """The file that the folder begins with."""
    most_bytes: int
    most_files: int
    links: bool = True
    """Whether a link to a file becomes a copy of it."""
    hint: str = "For a page or a script: lactl skills new NAME --from FILE"
    """What to do with a file that is not an archive."""


def unpack(source: Path, into: Path, terms: Terms | None = None, *, shown: str = "") -> Path:
    """Copy into an empty folder that nobody else can write; gives the folder of the skill in it, or of what
    the terms say. `shown` stands for the source in messages.

    Raises InvalidArgument for what is not one skill, MessageTooLarge, and OSError.
    """
    draft = Draft(shown or str(source), into, terms or Terms(most_bytes=MOST_BYTES, most_files=MOST_FILES))
    if source.is_dir():
        _copy(source, draft)
    else:
        if source.stat().st_size > draft.terms.most_bytes:
            raise draft.too_large(source.name)
        try:
            _extract(source, draft)
        except (*_BROKEN, OSError) as err:
            if isinstance(err, OSError) and err.errno not in (None, errno.EINVAL):
                raise  # not that of a bz2 stream, a gzip header or a position before the file
            raise InvalidArgument(
                f"{draft.shown} is not a whole tar, tar.gz, tar.xz or zip archive: {reason(err)}.",
                suggestion=draft.terms.hint,
                field="source",
            ) from err
    draft.link()
    for folder in (into, *(path for path in into.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return _top_of(draft, into)


class Draft:
    """What was written so far."""

    def __init__(self, shown: str, into: Path, terms: Terms) -> None:
        self.shown, self.terms, self._into = shown, terms, into
        self._bytes = self._files = 0
        self._links: list[tuple[str, str]] = []

    def too_large(self, name: str = "") -> MessageTooLarge:
        most = self.terms.most_bytes
        size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
        at = f": {name[:200]!r} is beyond that" if name else ""
        return MessageTooLarge(
            f"{self.shown} has more than {size} or {self.terms.most_files} files{at}.", field="source"
        )

    def refuse(self, name: str, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self.shown}: {name[:200]!r} {why}.", field="source")

    def check(self, name: str) -> tuple[str, ...]:
        """The parts of a path in it. Raises InvalidArgument."""
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or not name.isprintable():
            raise self.refuse(name, "is not a path inside of it")
        if len(parts) > _DEEPEST or len(name.encode()) > _NAME_BYTES:
            raise self.refuse(name, f"lies more than {_DEEPEST} folders deep, or has too long a name")
        return parts

    def add(self, name: str, content: IO[bytes], *, executable: bool) -> None:
        """Write a file of the archive."""
        if not (parts := self.check(name)):
            raise self.refuse(name, "is not a path inside of it")
        if not _LEFT_OUT.isdisjoint(parts):
            return
        self._files += 1
        if self._files > self.terms.most_files:
            raise self.too_large(name)
        path = self._into.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while chunk := content.read(1 << 16):
                    self._bytes += len(chunk)
                    if self._bytes > self.terms.most_bytes:
                        raise self.too_large(name)
                    file.write(chunk)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise self.refuse(name, "is in it twice") from None
        except OSError as err:
            if err.errno == errno.ENAMETOOLONG:
                raise self.refuse(name, "has too long a name") from None
            raise
        path.chmod(0o755 if executable else 0o644)

    def add_link(self, name: str, target: str) -> None:
        """Remember a link; `target` is a path from the top."""
        if not self.terms.links:
            raise self.refuse(name, f"is a link, and a {self.terms.kind} has none")
        if len(self._links) >= self.terms.most_files:
            raise self.too_large(name)
        self._links.append((name, target))

    def link(self) -> None:
        """Copy what links lead to, now that all files are there."""
        for name, target in self._links:
            path = self._into / target
            if target.startswith(("/", "../")) or not path.is_file():
                raise self.refuse(name, "is a link to something that is not a file of it")
            with path.open("rb") as content:
                self.add(name, content, executable=os.access(path, os.X_OK))


def _copy(source: Path, draft: Draft) -> None:
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


def _extract(source: Path, draft: Draft) -> None:
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if stat.S_ISLNK(mode):
                    draft.add_link(info.filename, _target(archive, info))
                elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise draft.refuse(info.filename, "is not a file or folder")
                elif info.is_dir():
                    draft.check(info.filename)
                elif not draft.terms.links and info.compress_type not in _SMALL:
                    raise draft.refuse(info.filename, "is not stored or deflated")
                else:
                    with archive.open(info) as content:
                        draft.add(info.filename, content, executable=bool(mode & 0o100))
        return
    with source.open("rb") as file:
        magic = file.read(6)
        file.seek(0)
        unpacked: Any = file
        if magic.startswith(b"\x1f\x8b"):
            unpacked = gzip.GzipFile(fileobj=file)
        elif magic == b"\xfd7zXZ\0":
            unpacked = _Xz(file)
        stream = _Bounded(cast(IO[bytes], unpacked), draft)
        with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as archive:
            for member in archive:
                if member.issym():
                    draft.add_link(member.name, _beside(member.name, member.linkname))
                elif member.islnk():
                    draft.add_link(member.name, posixpath.normpath(member.linkname))
                elif member.isreg() and (inside := archive.extractfile(member)) is not None:
                    draft.add(member.name, inside, executable=bool(member.mode & 0o100))
                elif member.isdir():
                    draft.check(member.name)
                else:
                    raise draft.refuse(member.name, "is not a file or folder")


class _Bounded(io.RawIOBase):
    """A stream that ends with an error where it is too long: tarfile reads whole headers into memory."""

    def __init__(self, stream: IO[bytes], draft: Draft) -> None:
        self._stream, self._draft = stream, draft
        self._left = draft.terms.most_bytes + _HEADERS_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise self._draft.too_large()
        buffer[: len(data)] = data
        return len(data)


class _Xz:
    """Reads an xz stream, with a bound for the memory that it asks for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)

    def read(self, size: int) -> bytes:
        while not self._decoder.eof:
            given = self._file.read(1 << 16) if self._decoder.needs_input else b""
            if found := self._decoder.decompress(given, size):
                return found
            if self._decoder.needs_input and not given:
                raise EOFError("it ends too early")
        return b""


def _target(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    with archive.open(info) as content:
        return _beside(info.filename, content.read(4096).decode(errors="replace"))


def _beside(name: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def _top_of(draft: Draft, into: Path) -> Path:
    """The folder of the marker that is nearest to the top."""
    terms = draft.terms
    found = sorted(into.rglob(terms.marker), key=lambda path: len(path.parts))
    nearest = [path.parent for path in found if len(path.parts) == len(found[0].parts)]
    if len(nearest) == 1:
        return nearest[0]
    names = ", ".join(sorted(folder.name for folder in nearest)[:10])
    raise InvalidArgument(
        f"{draft.shown} has {f'several {terms.kind}s: {names}' if names else f'no {terms.marker}'}.",
        suggestion="Name the folder of one." if names else "",
        field="source",
    )
