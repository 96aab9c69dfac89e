"""Where a process runs: its unit and terminal, of exactly the process that a descriptor names."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.host.seat import Seat, seat_of, unit_in

NOTIFY = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/lightagent-notify.service\n"
UNITS = {
    NOTIFY: "user@1000.service",
    "0::/system.slice/ssh.service\n": "ssh.service",
    "0::/user.slice/user-1000.slice/session-3.scope\n": "session-3.scope",
    "0::/system.slice/system-x.slice/lightagent-change@ops.service/call-1\n": "lightagent-change@ops.service",
    "4:memory:/a.service\n1:name=systemd:/system.slice/cron.service\n0::/\n": "cron.service",
    "0::/\n": "",
    "0::/docker/0123\n": "",
    "": "",
}
OWN = {
    "lightagent-change@ops.service": True,
    "lightagent-reach@a.b.service": True,
    "lightagent-keys.service": True,
    "lightagentd.service": True,
    "lightagents.service": False,
    "my-lightagent-change@ops.service": False,
    "lightagent-change@ops.scope": False,
    "session-3.scope": False,
    "user@1000.service": False,
    "": False,
}


def test_the_unit_is_the_systems_own() -> None:
    assert {text: unit_in(text) for text in UNITS} == UNITS


def test_a_unit_of_ours_is_told_from_others() -> None:
    assert {unit: Seat(unit=unit).is_own for unit in OWN} == OWN


def test_it_is_the_seat_of_the_process_and_of_no_other() -> None:
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs).removeprefix("/dev/")
    code = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        os.close(theirs)
        pidfd = os.pidfd_open(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        found = seat_of(pidfd)
        assert found.tty == name
        assert found.unit == unit_in(Path("/proc/self/cgroup").read_text())
        for text, login in (("loginuid", found.login_uid), ("sessionid", found.login_session)):
            said = int(Path("/proc/self", text).read_text())
            assert login == (None if said == 2**32 - 1 else said)
        os.close(ours)
        process.kill()
    with pytest.raises(ProcessLookupError):
        seat_of(pidfd)
    os.close(pidfd)
