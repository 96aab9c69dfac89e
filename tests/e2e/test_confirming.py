"""A change that cuts the ssh session of the person who made it takes itself back, without any client.

The sshd is the host's, in the network of the machine; what the session runs, runs in the machine.
"""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ssh_hosts import SshHosts, missing

from .calls import call, shell
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json

pytestmark = pytest.mark.e2e

SOCKET = "lightagent-change@ops.socket"
RULES = "/etc/lightagentd/policy.d/60-e2e-confirming.toml"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SLEEPER = "e2e-sleeper.service"
CUT, MEND = "ip link set eth0 down", "ip link set eth0 up"


class Session:
    """A shell in the machine, over ssh."""

    def __init__(self, hosts: SshHosts, machine: Machine) -> None:
        there = shlex.join([*machine._enter(machine._cgroup_of_command()), "sh"])
        self._process = subprocess.Popen(
            [str(hosts.bin / "ssh"), "machine", there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=hosts.env,
        )
        self._hosts = hosts

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def hears(self, word: str, within_s: float) -> bool:
        """Whether a command that says a word is answered in this time; what came before is dropped."""
        assert self._process.stdout is not None
        self.type(f"echo; echo {word}")
        end_s, heard = time.monotonic() + within_s, b""
        while (left_s := end_s - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], left_s)[0]:
                heard += os.read(self._process.stdout.fileno(), 4096)
                if f"\n{word}\n".encode() in heard:
                    return True
        return False

    def reached(self) -> bool:
        """Whether a new connection would be answered."""
        return self._hosts.answers("machine")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def session(service: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Of root, who comes over the network of the machine."""
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    service.run(["systemctl", "enable", "--now", SOCKET])
    rules = (
        f'[[rule]]\nname = "e2e-cut"\ndecision = "allow"\ntool = "bash"\neffect = "change"\n'
        f'args = {{ command = "{CUT}" }}\neven_if_tainted = true\n'
        f'confirm_within = "4s"\ninverse = "{MEND}"\n'
        f'[[rule]]\nname = "e2e-file"\ndecision = "allow"\ntool = "file"\neven_if_tainted = true\n'
        f'confirm_within = "3s"\n'
    )
    service.write(RULES, rules)
    service.write(
        f"/etc/systemd/system/{SLEEPER}", "[Service]\nExecStart=sleep inf\n[Install]\nWantedBy=basic.target\n"
    )
    service.run(["systemctl", "enable", "--now", SLEEPER])
    service.run(["systemctl", "reload", UNIT])
    sockets = {"machine": Path("/run/lightagentd/control.sock")}
    with SshHosts(tmp_path_factory.mktemp("ssh"), sockets, network_of=service.leader) as hosts:
        made = Session(hosts, service)
        try:
            assert made.hears("there", 20)
            yield made
        finally:
            made.close()
    service.run(["rm", RULES])
    service.run(["systemctl", "disable", "--now", SOCKET, SLEEPER])
    service.run(["rm", f"/etc/systemd/system/{SLEEPER}"])
    service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "reload", UNIT])


def _states(machine: Machine) -> list[str]:
    return [each["state"] for each in lactl_json(machine, "confirm", "--all")]


def test_the_session_that_was_cut_goes_on_by_itself(service: Machine, session: Session) -> None:
    """The person approves the change in it, and names what takes it back."""
    words = ["lactl", "tools", "call", "ops", "bash.exec", f"command={CUT}", "effect=change"]
    session.type(shlex.join([*words, "--confirm-within", "5s", "--inverse", MEND]))
    eventually(lambda: not session.reached(), "the line is cut")
    assert not session.hears("cut", 1)
    eventually(session.reached, "the line is there again", 30)
    assert session.hears("again", 60), "the same session goes on"
    eventually(lambda: _states(service)[-1] == "taken_back", "it is on record", 10)
    journal = service.run(["journalctl", "--output=cat", "LIGHTAGENT_TYPE=taken_back"]).stdout
    assert "bash.exec" in journal


def test_it_comes_back_after_another_boot_whose_daemon_starts_too_late(
    service: Machine, session: Session
) -> None:
    """The daemon was killed, and finds another boot, in which the clock of that before says nothing."""
    call(service, "bash.exec", command=CUT, effect="change")
    was = service.run(["systemctl", "is-active", "lightagentd.socket"], check=False).stdout.strip()
    service.run(["systemctl", "mask", "--runtime", "--now", "lightagentd.socket"])
    service.run(["systemctl", "kill", "--signal=KILL", UNIT])
    service.run(["systemctl", "stop", UNIT], check=False)
    assert not session.reached()
    time.sleep(5)
    assert not session.reached(), "nobody is there to do it"
    boot = service.run(["cat", BOOT_ID]).stdout
    _boots_as(service, f"{boot[:-5]}{'0000' if boot[-5:-1] != '0000' else '1111'}\n")
    try:
        service.run(["systemctl", "unmask", "--runtime", "lightagentd.socket"])
        service.run(["systemctl", "start", *(["lightagentd.socket"] if was == "active" else []), UNIT])
        eventually(session.reached, "the line is there again", 30)
        eventually(lambda: _states(service)[-1] == "taken_back", "it is on record", 10)
        other = service.run(["nsenter", "-m", "-t", _main_pid(service), "cat", BOOT_ID]).stdout
        assert other != boot
    finally:
        _boots_as(service, boot)


def _boots_as(machine: Machine, boot_id: str) -> None:
    """systemd-nspawn mounts a file there, too, which nothing can be mounted on: it is unlinked."""
    path = f"/run/e2e-boot-{boot_id.strip()}"
    machine.write(path, boot_id)
    machine.run(["umount", BOOT_ID])
    machine.run(["mount", "--bind", path, BOOT_ID])


def _main_pid(machine: Machine) -> str:
    return machine.run(["systemctl", "show", "--property=MainPID", "--value", UNIT]).stdout.strip()


def test_a_unit_gets_its_former_state(service: Machine, session: Session) -> None:
    for action in ("stop", "disable"):
        words = ["tools", "call", "ops", f"systemd.{action}", f"unit={SLEEPER}", "--confirm-within", "2s"]
        lactl(service, *words)
    assert _unit(service) != ["active", "enabled"]
    eventually(lambda: _unit(service) == ["active", "enabled"], "it runs and is enabled again", 20)


def _unit(machine: Machine) -> list[str]:
    show = ["systemctl", "show", "--property=ActiveState,UnitFileState", "--value", SLEEPER]
    return machine.run(show).stdout.split()


def test_a_file_is_put_back_and_a_confirmed_one_stays(service: Machine, session: Session) -> None:
    shell(service, "true")
    kept = call(service, "file.write", path="/srv/e2e-kept", content="new")
    lactl(service, "confirm", str(kept["call_id"]))
    call(service, "file.write", path="/srv/e2e-gone", content="new")
    gone = ["test", "!", "-e", "/srv/e2e-gone"]
    eventually(lambda: service.run(gone, check=False).status == 0, "the new file is gone", 20)
    assert service.run(["cat", "/srv/e2e-kept"]).stdout == "new"
    service.run(["rm", "/srv/e2e-kept"])
