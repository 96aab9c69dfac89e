"""Kits are unpacked safely, and are there whole or not at all, whatever kills the daemon."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lightagentd.agents.kits import store
from lightagentd.errors import Conflict, InvalidArgument, LightagentError, MessageTooLarge
from tests.agents.kits.made import dba, everything, member, tarred, zipped

TERMS = store.terms(1 << 20, 100)
FRONT = {"AGENT.md": "---\n---\nx\n"}
_NEW_KIT = {**FRONT, "references/new.md": "new"}


def add(archive: bytes, folder: Path, *, replace: bool = False, name: str = "") -> Path:
    with store.unpacked(archive, name, folder, TERMS) as draft:
        return store.place(draft, folder, replace=replace)


def kits(folder: Path) -> list[str]:
    return [name for name in everything(folder) if not name.startswith(".new")]


@pytest.mark.parametrize(
    "archive",
    [tarred(dba()), tarred(dba(), mode="w"), tarred(dba(), mode="w:xz"), zipped(dba())],
    ids=["tar.gz", "tar", "tar.xz", "zip"],
)
def test_each_kind_of_archive_gives_the_files_with_safe_modes(tmp_path: Path, archive: bytes) -> None:
    old = os.umask(0o077)
    try:
        add(archive, tmp_path / "state" / "kits")
    finally:
        os.umask(old)
    there = tmp_path / "state" / "kits" / "dba"
    assert {name for name in everything(there) if (there / name).is_file()} == dba().keys()
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in (there, there.parent, *there.rglob("*"))}
    assert modes <= {0o755, 0o644}
    assert everything(there.parent / ".new") == []


def sparse_bomb() -> bytes:
    """A member of 10 GiB of zeros, packed."""
    head = tarfile.TarInfo("dba/references/zeros")
    head.size = 10 << 30
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(tarred(FRONT, mode="w")[:1024])
        file.write(head.tobuf())
        file.write(b"\0" * (8 << 20))  # nobody reads as far as the end
    return packed.getvalue()


def xz_that_wants_memory() -> bytes:
    """A stream whose header says that it takes 4 GiB to unpack (xz-file-format.txt, 5.3.1)."""
    content = bytearray(lzma.compress(tarred(FRONT, mode="w")))
    start, end = 12, 12 + content[12] * 4
    assert content[start + 2 : start + 4] == b"\x21\x01"
    content[start + 4] = 40
    content[end : end + 4] = struct.pack("<I", zlib.crc32(content[start:end]))
    return bytes(content)


BAD: dict[str, tuple[Callable[[], bytes], type[LightagentError], str]] = {
    "up": (lambda: tarred({**FRONT, "../../x": ""}), InvalidArgument, "dba/../../x"),
    "folder up": (lambda: tarred(FRONT, member("../x", tarfile.DIRTYPE)), InvalidArgument, "'../x'"),
    "absolute": (lambda: tarred({**FRONT, "/etc/x": ""}, name=""), InvalidArgument, "'/etc/x'"),
    "zip up": (lambda: zipped(FRONT, ("../x", 0o100644, b"")), InvalidArgument, "'../x'"),
    "control": (lambda: tarred({**FRONT, "a\x1b[2J": ""}), InvalidArgument, "a\\x1b"),
    "symbolic link": (
        lambda: tarred(FRONT, member("dba/x", tarfile.SYMTYPE, "AGENT.md")),
        InvalidArgument,
        "'dba/x' is a link",
    ),
    "hard link": (
        lambda: tarred(FRONT, member("dba/x", tarfile.LNKTYPE, "dba/AGENT.md")),
        InvalidArgument,
        "'dba/x' is a link",
    ),
    "zip link": (
        lambda: zipped(FRONT, ("dba/x", stat.S_IFLNK | 0o777, b"AGENT.md")),
        InvalidArgument,
        "'dba/x' is a link",
    ),
    "device": (lambda: tarred(FRONT, member("dba/x", tarfile.CHRTYPE)), InvalidArgument, "'dba/x' is not a"),
    "pipe": (lambda: tarred(FRONT, member("dba/x", tarfile.FIFOTYPE)), InvalidArgument, "'dba/x' is not a"),
    "zip device": (
        lambda: zipped(FRONT, ("dba/x", stat.S_IFBLK | 0o600, b"")),
        InvalidArgument,
        "'dba/x' is not a",
    ),
    "twice": (lambda: tarred(FRONT, member("dba/AGENT.md", tarfile.REGTYPE)), InvalidArgument, "in it twice"),
    "too many": (
        lambda: tarred({**FRONT, **{f"references/{n}": "" for n in range(100)}}),
        MessageTooLarge,
        "references/99",
    ),
    "too large": (
        lambda: tarred({**FRONT, "references/x": b"\0" * (1 << 20)}),
        MessageTooLarge,
        "'dba/references/x'",
    ),
    "zip too large": (
        lambda: zipped({**FRONT, "references/x": b"\0" * (1 << 20)}),
        MessageTooLarge,
        "'dba/references/x'",
    ),
    "10 GiB": (sparse_bomb, MessageTooLarge, "zeros"),
    "header": (
        lambda: tarred(FRONT, _with_header("y" * (6 << 20))),
        MessageTooLarge,
        "more than 1 MiB or 100 files",
    ),
    "memory": (xz_that_wants_memory, InvalidArgument, "Memory usage limit"),
    "bzip2 in zip": (
        lambda: zipped(FRONT, method=zipfile.ZIP_BZIP2),
        InvalidArgument,
        "'dba/AGENT.md' is not stored",
    ),
    "deep": (lambda: tarred({**FRONT, "d/" * 40 + "x": ""}), InvalidArgument, "folders deep"),
    "long": (lambda: tarred({**FRONT, "x" * 300: ""}), InvalidArgument, "too long a name"),
    "no agent": (lambda: tarred({"x": ""}), InvalidArgument, "no AGENT.md"),
    "two": (lambda: tarred({"a/AGENT.md": "", "b/AGENT.md": ""}, name=""), InvalidArgument, "several kits"),
    "no name": (lambda: tarred(FRONT, name=""), InvalidArgument, "no folder around"),
    "name": (lambda: tarred(FRONT, name="Über"), InvalidArgument, "is not an agent's name"),
    "text": (lambda: b"x" * 5000, InvalidArgument, "not a whole tar"),
    "cut": (lambda: tarred(dba())[:200], InvalidArgument, "not a whole tar"),
    "cut xz": (lambda: tarred(dba(), mode="w:xz")[:300], InvalidArgument, "not a whole tar"),
    "empty": (lambda: b"", InvalidArgument, "not a whole tar"),
}


def _with_header(text: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo("dba/x")
    info.pax_headers = {"x": text}
    return info


@pytest.mark.parametrize(("make", "error", "said"), BAD.values(), ids=BAD)
def test_a_forged_archive_is_refused_by_the_name_of_the_entry_and_leaves_nothing(
    tmp_path: Path, make: Callable[[], bytes], error: type[LightagentError], said: str
) -> None:
    with pytest.raises(error) as caught:
        add(make(), tmp_path / "kits")
    assert said in caught.value.message
    assert everything(tmp_path) == ["kits", "kits/.new"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", ".", "a\n", "a.b", "A", "x" * 300, "-x"])
def test_a_name_that_no_agent_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not an agent's name"):
        add(tarred(FRONT), tmp_path / "kits", name=name)
    assert everything(tmp_path) == ["kits", "kits/.new"]


def test_a_kit_is_replaced_only_on_request_and_removed_whole(tmp_path: Path) -> None:
    add(tarred(FRONT), tmp_path / "kits")
    with pytest.raises(Conflict, match="There is a kit dba already"):
        add(tarred(_NEW_KIT), tmp_path / "kits")
    assert kits(tmp_path / "kits") == ["dba", "dba/AGENT.md"]
    add(tarred(_NEW_KIT), tmp_path / "kits", replace=True)
    assert "dba/references/new.md" in kits(tmp_path / "kits")
    store.remove("dba", tmp_path / "kits")
    assert kits(tmp_path / "kits") == []


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Whether a process that does this work was killed before it did this thing to a file."""
    child = os.fork()
    if not child:
        left = [number]

        def step(event: str, _args: object) -> None:
            if event in (
                "open",
                "os.mkdir",
                "os.chmod",
                "os.rename",
                "os.rmdir",
                "os.remove",
                "ctypes.call_function",
            ):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), 9)

        try:
            sys.addaudithook(step)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "rename"])
@pytest.mark.parametrize(
    ("before", "after"),
    [({}, _NEW_KIT), (FRONT, _NEW_KIT), (_NEW_KIT, {})],
    ids=["add", "replace", "remove"],
)
def test_a_kill_at_any_step_leaves_the_old_kit_or_the_new_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Mapping[str, str],
    after: Mapping[str, str],
    exchanges: bool,
) -> None:
    if not exchanges:
        monkeypatch.setattr(store, "exchange", lambda *_: False)
    expected = [
        sorted(
            ["dba", *({"dba/references"} if len(files) > 1 else set()), *(f"dba/{name}" for name in files)]
        )
        if files
        else []
        for files in (before, after)
    ]
    archive, number, seen = tarred(after or FRONT), 0, set()
    while True:
        folder = tmp_path / str(number)
        store.recover(folder)
        if before:
            add(tarred(before), folder)
        work = (lambda at=folder: add(archive, at, replace=True)) if after else (
            lambda at=folder: store.remove("dba", at)
        )  # fmt: skip
        killed = killed_at(number, work)
        store.recover(folder)
        found = kits(folder)
        assert found in expected, number
        assert everything(folder) == found, number  # no draft is left
        seen.add(tuple(found))
        if not killed:
            break
        number += 1
    assert number > 5
    assert seen == {tuple(one) for one in expected}
