"""The machine itself: it boots, runs commands, keeps the cached root untouched and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest

from .cgroup import PREFIX as CGROUP_PREFIX
from .cgroup import pids_below
from .debian import CHECKOUT
from .machine import Machine, MachineError
from .product import LAUNCHERS, PREFIX, new_uid

pytestmark = pytest.mark.e2e

# pyproject.toml names distributions; these are the modules whose names differ.
MODULES = {
    "agent-client-protocol": "acp",
    "prometheus-client": "prometheus_client",
    "markdown-it-py": "markdown_it",
    "dbus-next": "dbus_next",
    "dnspython": "dns",
    "prompt-toolkit": "prompt_toolkit",
    "pyasyncore": "asyncore",
    "pyyaml": "yaml",
    "systemd-python": "systemd.journal",
}
DEADLINE_S = 20.0


def mounts_of_host() -> list[str]:
    """Lines of mountinfo, but for the mounts that tests beside this one make among their temporary files."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if not line.split()[4].startswith(f"{tempfile.gettempdir()}/")]


def mount_namespaces() -> set[str]:
    """The mount namespace of every process of the host."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns/mnt").readlink()))
        except OSError:  # ended meanwhile, or a process that not even root may look at
            continue
    return found


def test_debian_13_boots_with_systemd_257_and_python_3_13(machine: Machine) -> None:
    assert machine.run(["systemctl", "is-system-running"]).stdout == "running\n"
    assert 'VERSION_ID="13"' in machine.run(["cat", "/etc/os-release"]).stdout
    assert machine.run(["varlinkctl", "--version"]).stdout.startswith("systemd 257 ")
    assert machine.run(["python3", "--version"]).stdout.startswith("Python 3.13.")


def test_bus_polkit_and_udev_answer(machine: Machine) -> None:
    names = machine.run(["busctl", "list", "--acquired", "--no-legend"]).stdout
    assert "org.freedesktop.systemd1" in names
    assert "org.freedesktop.policykit.exec" in machine.run(["pkaction"]).stdout
    assert "DEVPATH=" in machine.run(["udevadm", "info", "--query=property", "/sys/class/net/lo"]).stdout


def test_only_the_loopback_interface_is_there(machine: Machine) -> None:
    links = machine.run(["ip", "-oneline", "link"]).stdout.splitlines()
    assert [link.split(": ")[1] for link in links] == ["lo"]


def test_sandboxed_unit_runs(machine: Machine) -> None:
    sandbox = ["ProtectSystem=strict", "User=nobody", "PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX"]
    options = [f"--property={setting}" for setting in sandbox]
    unit = ["systemd-run", "--wait", "--pipe", "--quiet", *options]
    assert machine.run([*unit, "id", "-un"]).stdout == "nobody\n"
    assert "Read-only file system" in machine.run([*unit, "touch", "/usr/written"], check=False).stderr


def test_bwrap_runs(machine: Machine) -> None:
    argv = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "true"]
    machine.run(argv)
    machine.run(argv, user="nobody")


def test_command_runs_as_another_user(machine: Machine) -> None:
    machine.run(["useradd", new_uid(), "--create-home", "--groups", "adm", "alice"])
    assert machine.run(["id", "-un"], user="alice").stdout == "alice\n"
    assert machine.run(["id", "-Gn"], user="alice").stdout == "alice adm\n"
    assert machine.run(["sh", "-c", "cd && pwd"], user="alice").stdout == "/home/alice\n"
    with pytest.raises(MachineError, match="getent passwd nobody-of-that-name"):
        machine.run(["true"], user="nobody-of-that-name")


def test_environment_is_built_from_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "1")
    lines = machine.run(["env"], env={"GIVEN": "2"}).stdout.splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names - {"PWD"} == {"PATH", "LANG", "HOME", "USER", "LOGNAME", "GIVEN"}


def test_input_output_and_status_come_back(machine: Machine) -> None:
    done = machine.run(["sh", "-c", "cat; echo wrong >&2; exit 3"], input="grün\n", check=False)
    assert (done.stdout, done.stderr, done.status) == ("grün\n", "wrong\n", 3)
    assert machine.run(["cat"]).stdout == ""
    with pytest.raises(MachineError, match=r"(?s)exit 3: status 3.*wrong"):
        machine.run(["sh", "-c", "echo wrong >&2; exit 3"])


def test_command_that_takes_too_long_ends_with_its_children(machine: Machine) -> None:
    argv = ["sh", "-c", "echo begun; setsid sleep 4711 & trap '' TERM; wait"]
    with pytest.raises(MachineError, match=r"(?s)took over 0\.5 s.*begun"):
        machine.run(argv, timeout_s=0.5)
    assert machine.run(["pgrep", "--full", "sleep 471[1]"], check=False).stdout == ""


def test_written_and_copied_files_are_roots_and_readable(machine: Machine, tmp_path: Path) -> None:
    machine.write("/etc/new/folder/note", "text\n", 0o640)
    assert machine.run(["stat", "-c", "%a %U", "/etc/new/folder/note"]).stdout == "640 root\n"
    source = tmp_path / "source"
    (source / "__pycache__").mkdir(parents=True)
    (source / "__pycache__" / "old.pyc").touch()
    (source / "data").write_bytes(b"\xff\x00")
    (source / "data").chmod(0o600)
    (source / "program").write_text("#!/bin/sh\necho runs\n")
    (source / "program").chmod(0o700)
    machine.copy_in(source, "/opt/deep/copy")
    listing = machine.run(["find", "/opt/deep/copy", "-mindepth", "1", "-printf", "%P %m\n"]).stdout
    assert sorted(listing.splitlines()) == ["data 644", "program 755"]
    assert machine.run(["/opt/deep/copy/program"], user="nobody").stdout == "runs\n"
    machine.copy_in(source / "program", "/opt/one")
    assert machine.run(["/opt/one"]).stdout == "runs\n"


def test_journal_gives_back_what_was_logged(machine: Machine) -> None:
    machine.run(["systemd-cat", "--identifier=e2e-test", "--priority=err", "echo", "grün"])
    entry = machine.journal("--identifier=e2e-test")[-1]
    assert (entry["MESSAGE"], entry["PRIORITY"]) == ("grün", "3")
    assert machine.journal("--identifier=no-such-identifier") == []
    with pytest.raises(MachineError, match="the journal could not be read"):
        machine.journal("--no-such-option")


def test_machine_writes_neither_to_the_cache_nor_to_another_machine(
    machine: Machine, debian_root: Path
) -> None:
    machine.write("/etc/isolation", "of this machine\n")
    machine.run(["rm", "/etc/issue"])
    assert not (debian_root / "etc/isolation").exists()
    assert (debian_root / "etc/issue").exists()
    with Machine(debian_root) as other:
        assert other.run(["cat", "/etc/isolation"], check=False).status == 1
        assert other.cgroup != machine.cgroup


def test_stop_leaves_no_process_no_mount_and_no_cgroup(debian_root: Path) -> None:
    mounts = mounts_of_host()
    machine = Machine(debian_root)
    machine.start()
    machine.run(["sh", "-c", "setsid sleep 4712 >/dev/null 2>&1 </dev/null &"])
    cgroup, inside = machine.cgroup, str(Path(f"/proc/{machine.leader}/ns/mnt").readlink())
    pids = pids_below(cgroup)
    assert len(pids) > 4
    assert inside in mount_namespaces()
    machine.stop()
    machine.stop()
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)
    assert inside not in mount_namespaces()
    assert not cgroup.exists()
    assert mounts_of_host() == mounts
    with pytest.raises(MachineError, match="call start"):
        machine.run(["true"])


def test_container_ends_when_the_test_process_is_killed(debian_root: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from tests.e2e.machine import Machine
machine = Machine(Path(sys.argv[1]))
machine.start()
print(machine.cgroup, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(debian_root)], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    ) as tests:
        assert tests.stdout is not None
        cgroup = Path(tests.stdout.readline().strip())
        assert pids_below(cgroup)
        os.kill(tests.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while (left := pids_below(cgroup)) and time.monotonic() < deadline:
        time.sleep(0.05)
    (cgroup / "cgroup.kill").write_text("1")  # a test that fails leaves nothing either
    assert not left
    with Machine(debian_root):  # the next machine clears what a killed process could not
        assert not cgroup.exists()


def test_boot_of_a_folder_without_a_system_is_reported(debian_root: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with pytest.raises(MachineError, match=r"(?s)ended with status 1 .*console.*OS root"):
        machine.start()
    with pytest.raises(MachineError, match="call start"):
        machine.cgroup  # noqa: B018 (raises)


def test_boot_that_takes_too_long_is_reported_and_leaves_nothing(debian_root: Path) -> None:
    mine = re.compile(rf"{CGROUP_PREFIX}{os.getpid()}-")
    with Machine(debian_root) as probe:
        before = {folder.name for folder in probe.cgroup.parent.iterdir() if mine.match(folder.name)}
        machine = Machine(debian_root, boot_timeout_s=0.1)
        with pytest.raises(MachineError, match=r"(?s)not booted after 0\.1 s.*the console of"):
            machine.start()
        after = {folder.name for folder in probe.cgroup.parent.iterdir() if mine.match(folder.name)}
    assert after == before


def test_product_is_importable_with_every_dependency(product: Machine) -> None:
    where = ["python3", "-I", "-c", "import lightagentd; print(lightagentd.__file__)"]
    assert product.run(where, user="nobody").stdout == f"{PREFIX}/lightagentd/__init__.py\n"
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[^\w-]", dependency)[0] for dependency in project["dependencies"]]
    imports = "; ".join(f"import {MODULES.get(name, name)}" for name in ("lightagentd", *names))
    product.run(["python3", "-I", "-c", imports], user="nobody")
    assert set(project["scripts"]) == set(LAUNCHERS)
    for program in LAUNCHERS:
        product.run(["test", "-x", f"/usr/bin/{program}"])
