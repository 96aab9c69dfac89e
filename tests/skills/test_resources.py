"""What the areas of space, mounts, ports, processes, load, memory and permissions find, from given tables."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lightagentd.toolkit.proc.survey import survey
from tests.skills.library import module
from tests.skills.script import finding, report

mounts, space = module("areas.mounts"), module("areas.space")

MOUNTINFO = """
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
22 21 0:20 / /proc rw,nosuid - proc proc rw
30 21 0:31 / /run/netns/blue rw - nsfs nsfs rw
31 21 254:1 /srv/src /srv/ro ro,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
32 21 254:2 / /var/with\\040blank rw,relatime - ext4 /dev/vda2 ro
33 21 0:40 / /mnt/nas rw - nfs4 nas:/export rw,vers=4.2
34 21 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
35 21 0:50 / /srv/asked ro - tmpfs tmpfs ro
""".replace("\\\\", "\\")
FSTAB = """
# <file system> <mount point> <type> <options> <dump> <pass>
/dev/vda1 / ext4 errors=remount-ro 0 1
/dev/vda2 /var/with\\040blank ext4 defaults 0 2
tmpfs /srv/asked tmpfs ro 0 0
UUID=1 /srv/gone ext4 defaults 0 2
UUID=2 /srv/later ext4 noauto 0 2
UUID=3 none swap sw 0 0
""".replace("\\\\", "\\")


def test_a_mount_is_told_by_its_own_mount_point_and_mode(tmp_path: Path) -> None:
    entries = mounts.parsed(MOUNTINFO)
    (tmp_path / "fstab").write_text(FSTAB)
    wanted = mounts.fstab(str(tmp_path / "fstab"))
    assert [entry.folder for entry in mounts.unexpected_read_only(entries, wanted)] == [
        "/srv/ro",
        "/var/with blank",
    ]
    assert [each.folder for each in mounts.unmounted(entries, wanted)] == ["/srv/gone"]
    on = mounts.holding("/srv/ro/file", entries)
    assert (on.folder, on.is_bind, on.mode, on.root) == ("/srv/ro", True, "read-only", "/srv/src")
    assert mounts.holding("/srv/rocket", entries).folder == "/"
    assert [entry.folder for entry in entries if entry.is_network] == ["/mnt/nas"]


@pytest.mark.parametrize(
    ("numbers", "tight", "said"),
    [
        ((1000, 990, 10, 10, 100, 50), True, "99 % full"),
        ((1000, 500, 500, 500, 100, 1), True, "out of inodes: 99 % used, 1 of 100 inodes left"),
        ((1000, 500, 500, 500, 0, 0), False, "50 % full"),
        ((100 << 30, 95 << 30, 0, 5 << 30, 100, 50), True, "5.0 GiB more are reserved for root"),
        ((10 << 40, 9 << 40, 1 << 40, 1 << 40, 100, 50), False, "90 % full"),
    ],
)
def test_a_file_system_is_short_of_bytes_or_of_inodes(
    numbers: tuple[int, ...], tight: bool, said: str
) -> None:
    each = space.Filesystem(mounts.parsed(MOUNTINFO)[0], *numbers)
    assert each.is_tight is tight
    assert said in each.state


def test_a_script_with_a_survey_sees_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "gone").open("w") as held:
        held.write("x" * 5000)
        held.flush()
        sleeper = subprocess.Popen(["sleep", "60"], stdin=held, stdout=subprocess.DEVNULL)
    (tmp_path / "gone").unlink()
    try:
        (tmp_path / "survey").write_text(survey(0))
        text = report("deleted-files", path=str(tmp_path), survey=tmp_path / "survey")
    finally:
        sleeper.kill()
        sleeper.wait()
    said = (
        f"1 deleted file below {tmp_path} is still open and keeps 8.0 KiB, held by sleep (pid {sleeper.pid})"
    )
    assert said in finding(text)
    hidden = {"pid_namespace": "pid:[1]", "processes": [
        {"pid": 7, "ppid": 1, "name": "a", "state": "S", "uid": 0, "memory_bytes": 0, "descriptors": None}
    ]}  # fmt: skip
    (tmp_path / "survey").write_text(json.dumps(hidden))
    text = report("deleted-files", survey=tmp_path / "survey")
    assert "in the processes that can be seen from here, which are not all" in finding(text)
    assert "What 1 process of other users hold open could not be seen." in text


def test_nothing_is_said_of_a_path_that_does_not_exist() -> None:
    assert "does not exist" in finding(report("mount-check", path=f"/nothing/{os.getpid()}"))
