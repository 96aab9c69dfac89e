"""Networks and mounts of others. What systemd says of units is in tests/e2e."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lightagentd.doctor.units import far_mounts, shares_network


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at, and make, another network")
def test_a_network_of_ones_own_is_told_from_that_of_the_machine() -> None:
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
        assert own.stdin is not None
        assert own.stdout is not None
        own.stdin.write(b"\n")
        own.stdin.flush()
        own.stdout.readline()  # it is there: cat runs
        assert not shares_network(own.pid, os.getpid())
        own.stdin.close()
    assert shares_network(os.getpid(), os.getpid())
    assert not shares_network(0)


MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
35 22 0:30 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw,fd=29
40 22 0:41 / /net rw,relatime - autofs /etc/auto.net rw,fd=6
41 22 0:42 / /srv/two\\040words rw,relatime shared:9 master:2 - nfs4 server:/x rw
42 22 0:43 / /mnt/box rw - fuse.sshfs me@there: rw
43 22 0:44 / /mnt/own rw - fuse.gocryptfs /x rw
"""


def test_mounts_that_ask_others_are_told_from_those_of_this_machine() -> None:
    assert far_mounts(MOUNTS) == [
        (Path("/mnt/box"), "fuse.sshfs"),
        (Path("/net"), "autofs"),
        (Path("/srv/two words"), "nfs4"),
    ]
