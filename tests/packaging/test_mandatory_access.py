"""The AppArmor profiles and the SELinux module: their syntax, and what they do where a kernel has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PROFILES = REPOSITORY / "packaging/apparmor/lightagentd"
MODULE = REPOSITORY / "packaging/selinux/lightagentd.te"
LOADED = Path("/sys/kernel/security/apparmor/profiles")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _ran(*argv: str | Path) -> str:
    """What a program printed; skips where it is not installed."""
    program = shutil.which(argv[0], path=_PATH)
    if program is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_profiles_are_valid_and_are_those_that_units_name() -> None:
    _ran("apparmor_parser", "--skip-kernel-load", "--skip-cache", PROFILES)
    names = set(_ran("apparmor_parser", "--names", PROFILES).split())
    units = "".join(path.read_text() for path in (REPOSITORY / "units").glob("*.service"))
    assert names == set(re.findall(r"^AppArmorProfile=-(\S+)$", units, re.MULTILINE))
    if not LOADED.exists():
        print("This kernel has no AppArmor: only the syntax of the profiles was looked at.")


@pytest.mark.skipif(
    not LOADED.exists() or os.geteuid() != 0, reason="the kernel has no AppArmor, or not root"
)
def test_the_profile_of_the_approver_keeps_it_from_what_is_not_its_own(tmp_path: Path) -> None:
    _ran("apparmor_parser", "--replace", PROFILES)
    (tmp_path / "file").write_text("x")
    confined = ["aa-exec", "-p", "lightagent-approver", "--", "/usr/bin/python3", "-I", "-c"]
    for code, allowed in (
        ("open('/etc/passwd')", True),
        ("open('/etc/shadow')", False),
        (f"open({str(tmp_path / 'file')!r}, 'a')", False),
        ("import socket; socket.socket()", False),
        ("import os; os.execv('/bin/true', ['true'])", False),
    ):
        done = subprocess.run([*confined, code], capture_output=True, check=False)
        assert (done.returncode == 0) == allowed, code


def test_the_module_for_selinux_is_valid(tmp_path: Path) -> None:
    _ran("checkmodule", "-M", "-m", "-o", tmp_path / "lightagentd.mod", MODULE)
    types = set(re.findall(r":(lightagent_\w+):", MODULE.with_suffix(".fc").read_text()))
    assert types <= set(re.findall(r"^type (\w+)", MODULE.read_text(), re.MULTILINE))
    print("No system that enforces SELinux was there: only the syntax of the module was looked at.")
