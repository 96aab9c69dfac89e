"""Skills of folders and archives are copied safely, and installed or removed whole."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lightagentd.errors import ConfigError, Conflict, InvalidArgument, MessageTooLarge, NotFound
from lightagentd.skills import load_skills, unpacking
from lightagentd.skills.install import install, remove
from tests.conftest import write

SKILL = b"---\nname: ping-check\ndescription: Pings.\n---\nPing.\n"
RUN = b"#!/bin/sh\necho fine\n"

Make = Callable[[Path], Path]


def tar(path: Path, *members: tuple[str, bytes, dict[str, object]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content, more in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in more.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, *members: tuple[str, bytes, int], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = method
            archive.writestr(info, content)
    return path


def folder(path: Path) -> Path:
    write(path / "given" / "SKILL.md", SKILL.decode())
    write(path / "given" / "scripts" / "run.sh", RUN.decode()).chmod(0o4777)
    (path / "given" / "scripts" / "again.sh").symlink_to("run.sh")
    write(path / "given" / ".git" / "config", "x")
    return path / "given"


GOOD: dict[str, Make] = {
    "folder": folder,
    "tar.gz": lambda at: tar(
        at / "a.tar.gz",
        ("./top/SKILL.md", SKILL, {"mode": 0o666, "uid": 1000}),
        ("top/scripts/run.sh", RUN, {"mode": 0o4777}),
        ("top/scripts/again.sh", b"", {"type": tarfile.SYMTYPE, "linkname": "run.sh"}),
    ),
    "tar": lambda at: tar(
        at / "a.tar",
        ("SKILL.md", SKILL, {}),
        ("scripts", b"", {"type": tarfile.DIRTYPE}),
        ("scripts/run.sh", RUN, {"mode": 0o755}),
        ("scripts/again.sh", b"", {"type": tarfile.LNKTYPE, "linkname": "./scripts/run.sh"}),
        mode="w",
    ),
    "zip": lambda at: zipped(
        at / "a.skill",
        ("x/ping/SKILL.md", SKILL, 0o100644),
        ("x/ping/scripts/run.sh", RUN, 0o100755),
        ("x/ping/scripts/again.sh", b"run.sh", stat.S_IFLNK | 0o777),
        ("__MACOSX/x/SKILL.md", b"", 0),
    ),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD)
def test_a_skill_is_installed_with_safe_modes_and_nothing_else_is_left(tmp_path: Path, make: Make) -> None:
    target = tmp_path / "etc" / "skills"
    old = os.umask(0o077)
    try:
        skill = install(make(tmp_path), target)
    finally:
        os.umask(old)
    assert skill.folder == target / "ping-check"
    assert [path.name for path in target.iterdir()] == ["ping-check"]
    modes = {str(path.relative_to(target)): stat.S_IMODE(path.lstat().st_mode) for path in target.rglob("*")}
    assert modes == {
        "ping-check": 0o755,
        "ping-check/SKILL.md": 0o644,
        "ping-check/scripts": 0o755,
        "ping-check/scripts/run.sh": 0o755,
        "ping-check/scripts/again.sh": 0o755,
    }
    assert (skill.folder / "scripts" / "again.sh").read_bytes() == RUN
    assert not (skill.folder / "scripts" / "again.sh").is_symlink()
    assert skill.trusted()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


S = ("SKILL.md", SKILL)
BAD: dict[str, tuple[Make, str]] = {
    "absolute": (lambda at: tar(at / "a", ("/etc/x", b"", {}), (*S, {})), "not a path inside"),
    "up": (lambda at: tar(at / "a", ("a/../../x", b"", {}), (*S, {})), "not a path inside"),
    "zip up": (lambda at: zipped(at / "a", ("../x", b"", 0), (*S, 0)), "not a path inside"),
    "control": (lambda at: tar(at / "a", ("a\x1b[2J", b"", {}), (*S, {})), "not a path inside"),
    "link out": (
        lambda at: tar(at / "a", (*S, {}), ("x", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})),
        "is a link to something",
    ),
    "link up": (
        lambda at: tar(at / "a", (*S, {}), ("x", b"", {"type": tarfile.SYMTYPE, "linkname": "../../y"})),
        "is a link to something",
    ),
    "hard link out": (
        lambda at: tar(at / "a", (*S, {}), ("x", b"", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})),
        "is a link to something",
    ),
    "zip link out": (
        lambda at: zipped(at / "a", (*S, 0), ("x", b"/etc/passwd", stat.S_IFLNK | 0o777)),
        "is a link to something",
    ),
    "write through a link": (
        lambda at: tar(
            at / "a",
            (*S, {}),
            ("x", b"", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}),
            ("x/y", b"", {}),
        ),
        "is a link to something",
    ),
    "device": (
        lambda at: tar(at / "a", (*S, {}), ("x", b"", {"type": tarfile.CHRTYPE})),
        "is not a file or folder",
    ),
    "pipe": (
        lambda at: tar(at / "a", (*S, {}), ("x", b"", {"type": tarfile.FIFOTYPE})),
        "is not a file or folder",
    ),
    "zip device": (lambda at: zipped(at / "a", (*S, 0), ("x", b"", stat.S_IFBLK)), "is not a file or folder"),
    "twice": (lambda at: tar(at / "a", (*S, {}), (*S, {})), "in it twice"),
    "file as folder": (lambda at: tar(at / "a", (*S, {}), ("SKILL.md/x", b"", {})), "in it twice"),
    "two skills": (lambda at: tar(at / "a", ("a/SKILL.md", SKILL, {}), ("b/SKILL.md", SKILL, {})), "a, b"),
    "no skill": (lambda at: tar(at / "a", ("x", b"", {})), "no SKILL.md"),
    "text": (lambda at: write(at / "a", "x" * 5000), "is not a whole tar"),
    "cut": (
        lambda at: write_bytes(at / "a", tar(at / "b", (*S, {})).read_bytes()[:60]),
        "is not a whole tar",
    ),
    "name in no encoding": (
        lambda at: mangled(zipped(at / "a", (*S, 0), ("\u00e9", b"", 0)), "\u00e9".encode(), b"\xff\xff"),
        "is not a whole tar",
    ),
    "broken lzma": (
        lambda at: mangled(
            zipped(at / "a", (*S, 0), method=zipfile.ZIP_LZMA), b"\x05\x00\x5d", b"\x05\x00\xff"
        ),
        "is not a whole tar",
    ),
    "broken bzip2": (
        lambda at: mangled(zipped(at / "a", (*S, 0), method=zipfile.ZIP_BZIP2), b"BZh9", b"BZh0"),
        "is not a whole tar",
    ),
    "name": (
        lambda at: tar(at / "a", ("SKILL.md", SKILL.replace(b"ping-check", b"../x"), {})),
        "is not the name of a skill",
    ),
    "broken": (
        lambda at: tar(at / "a", (*S, {}), ("runbook.yaml", b"script: x\n", {})),
        "a/runbook.yaml, line 1",
    ),
}


def mangled(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    return write_bytes(path, content.replace(old, new))


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("make", "said"), BAD.values(), ids=BAD)
def test_what_is_unsafe_or_broken_is_refused(tmp_path: Path, make: Make, said: str) -> None:
    source, target = make(tmp_path), tmp_path / "skills"
    with pytest.raises(InvalidArgument, match=said) as caught:
        install(source, target)
    assert str(source) in caught.value.message
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda at: tar(at / "a", (*S, {}), ("x", b"\0" * (51 << 20), {})),
        lambda at: zipped(at / "a", (*S, 0), ("x", b"\0" * (51 << 20), 0)),
        lambda at: tar(at / "a", (*S, {"pax_headers": {"x": "y" * (55 << 20)}})),
    ],
    ids=["tar", "zip", "header"],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, make: Make) -> None:
    with pytest.raises(MessageTooLarge):
        install(make(tmp_path), tmp_path / "skills")


@pytest.mark.parametrize(
    "make",
    [folder, lambda at: tar(at / "a", (*S, {}), ("x", b"", {}), ("y", b"", {}))],
    ids=["link", "empty"],
)
def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(unpacking, "MOST_FILES", 2)
    with pytest.raises(MessageTooLarge):
        install(make(tmp_path), tmp_path / "skills")


def test_a_skill_that_is_there_is_replaced_only_on_request(tmp_path: Path) -> None:
    target, source = tmp_path / "skills", folder(tmp_path)
    install(source, target)
    write(source / "SKILL.md", SKILL.decode().replace("Pings.", "Anew."))
    with pytest.raises(Conflict, match="is there already"):
        install(source, target)
    assert install(source, target, replace=True).description == "Anew."
    assert [path.name for path in target.iterdir()] == ["ping-check"]


def test_a_broken_replacement_leaves_the_old_one(tmp_path: Path) -> None:
    target, source = tmp_path / "skills", folder(tmp_path)
    install(source, target)
    write(source / "examples.txt", "{unit:x")
    with pytest.raises(ConfigError, match=r"given/examples\.txt, line 1"):
        install(source, target, replace=True)
    assert load_skills([target]).skills["ping-check"].examples == ()


def test_removing_takes_a_skill_or_a_link_to_one_and_nothing_else(tmp_path: Path) -> None:
    target, source = tmp_path / "skills", folder(tmp_path)
    install(source, target)
    (target / "linked").symlink_to(source)
    for name in ("ping-check", "linked"):
        remove(name, target)
    assert list(target.iterdir()) == []
    assert source.is_dir()
    for name in ("ping-check", "../given", "", ".", "/etc"):
        with pytest.raises(NotFound):
            remove(name, target)
