"""Landlock domains on the running kernel, in processes of their own: there is no way out of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.worker import landlock

REPOSITORY = Path(__file__).resolve().parents[2]
ENTER = "import os, signal, socket, sys\nfrom lightagentd.worker import landlock\n"


def in_a_process(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ENTER + code, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_landlock = pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
needs_scopes = pytest.mark.skipif(not landlock.scoped(), reason="this kernel does not scope signals")


@needs_landlock
@pytest.mark.parametrize("level", [level for level in (1, 2, 6) if level <= max(1, landlock.abi())])
def test_nothing_outside_the_domain_can_be_looked_into(level: int) -> None:
    said = in_a_process(
        """
landlock.enter(landlock.ruleset(int(sys.argv[1])))
for name in ("mem", "syscall"):  # not environ: CAP_PERFMON of root opens it past Landlock
    try:
        open(f"/proc/{os.getppid()}/{name}", "rb").read(1)
    except PermissionError:
        print("refused")
""",
        str(level),
    )
    assert said.split() == ["refused"] * 2


@needs_landlock
@pytest.mark.parametrize("level", [level for level in (2, 6) if level <= landlock.abi()])
def test_files_can_be_moved_between_folders_in_a_domain(level: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/file").write_text("kept")
    in_a_process(
        "landlock.enter(landlock.ruleset(int(sys.argv[1])))\nos.rename(sys.argv[2], sys.argv[3])",
        str(level),
        str(tmp_path / "a/file"),
        str(tmp_path / "b/file"),
    )
    assert (tmp_path / "b/file").read_text() == "kept"


@needs_scopes
def test_signals_go_down_into_nested_domains_and_never_up() -> None:
    said = in_a_process(
        """
rules = landlock.ruleset(landlock.abi())
landlock.enter(rules)
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    landlock.enter(rules)
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        os.write(tell, b"up: refused")
    signal.pause()
print(os.read(ready, 100).decode())
try:
    os.kill(os.getppid(), 0)
except PermissionError:
    print("out: refused")
os.kill(child, signal.SIGKILL)
print("down:", os.waitpid(child, 0)[1])
"""
    )
    assert said.splitlines() == ["up: refused", "out: refused", "down: 9"]


@needs_scopes
def test_an_abstract_socket_outside_cannot_be_connected_to() -> None:
    said = in_a_process(
        """
name = "\\0la-" + os.urandom(6).hex()
outside = socket.socket(socket.AF_UNIX)
outside.bind(name)
outside.listen()
landlock.enter(landlock.ruleset(landlock.abi()))
inside = socket.socket(socket.AF_UNIX)
inside.bind(name + "-inside")
inside.listen()
socket.socket(socket.AF_UNIX).connect(name + "-inside")
try:
    socket.socket(socket.AF_UNIX).connect(name)
except PermissionError:
    print("refused")
"""
    )
    assert said == "refused\n"


@needs_landlock
@pytest.mark.parametrize("level", range(1, max(1, landlock.abi()) + 1))
def test_only_what_is_named_can_be_changed(level: int, tmp_path: Path) -> None:
    """Whatever the modes say, also for root; what is open already stays as it is."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_text("as it was")
    said = in_a_process(
        """
from pathlib import Path
level, inside, outside = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
kept = (outside / "file").open("a")
landlock.enter(landlock.ruleset(level, writable=[inside, Path("/dev/null")]))
for folder in (inside, outside):
    for what, attempt in (
        ("write", lambda: (folder / "file").write_text("changed")),
        ("make", lambda: (folder / "new").touch()),
        ("folder", lambda: (folder / "inner").mkdir()),
        ("link", lambda: (folder / "link").symlink_to("file")),
        ("rename", lambda: (folder / "file").rename(folder / "other")),
        ("remove", lambda: (folder / "other").unlink()),
    ):
        try:
            attempt()
            print(folder.name, what)
        except PermissionError:
            pass
        except FileNotFoundError:
            pass
Path("/dev/null").write_text("gone")
print(kept.write("!"))
""",
        str(level),
        str(inside),
        str(outside),
    )
    did = ["write", "make", "folder", "link", "rename", "remove"]
    assert said.splitlines() == [*(f"inside {what}" for what in did), "1"]
    assert (outside / "file").read_text() == "as it was!"
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.mark.skipif(landlock.abi() < 5, reason="this kernel has no rule for ioctl on devices")
def test_no_device_but_those_named_can_be_controlled(tmp_path: Path) -> None:
    said = in_a_process(
        """
import fcntl, termios
from pathlib import Path
kept = open("/dev/urandom")
landlock.enter(landlock.ruleset(landlock.abi(), writable=[Path(sys.argv[1]), *landlock.WRITABLE_DEVICES]))
for what, file, request in (
    ("the entropy", open("/dev/urandom"), 0x80045200),  # RNDGETENTCNT of random(4)
    ("the entropy, open before", kept, 0x80045200),
    ("nothing", open("/dev/null"), termios.TCGETS),
):
    try:
        fcntl.ioctl(file, request, bytes(60))
        print(what, "worked")
    except OSError as err:
        print(what, err.errno)
""",
        str(tmp_path),
    )
    assert said.splitlines() == ["the entropy 13", "the entropy, open before worked", "nothing 25"]
