"""Whether a process has a network of its own. What systemd says of units is in tests/e2e."""

from __future__ import annotations

import os
import subprocess

import pytest

from lightagentd.doctor.units import shares_network


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
