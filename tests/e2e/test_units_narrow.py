"""The profiles of `lactl change narrow`: what each leaves to a root command, what not, and its exposure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from lightagentd.worker.change_profiles import NAMES

from .calls import call, shell
from .machine import Machine
from .product import UNIT, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

WORKER = "lightagent-change@ops.service"
SOCKET = "lightagent-change@ops.socket"
DROP_IN = f"/etc/systemd/system/{WORKER}.d/50-profile.conf"
RULES = "/etc/lightagentd/policy.d/e2e-narrow.toml"
USER, SERVICE, DEB = "e2e-narrow", "e2e-narrow.service", "/var/tmp/e2e-narrow.deb"
EXPOSURE = {"services": 1.3, "files": 1.7, "packages": 3.4}
"""The highest figure of systemd-analyze(1) security that is accepted; without a profile it is 9.6."""
ALL = frozenset(NAMES)
NONE: frozenset[str] = frozenset()

TRACE = (
    "import ctypes, os, sys; pid = int(open('/run/e2e-narrow.pid').read());"
    " sys.exit(ctypes.CDLL(None).ptrace(16, pid, 0, 0) != 0)"
)
CONNECT = "import socket; socket.create_connection(('127.0.0.1', 8471), 3)"
TRIES: dict[str, tuple[str, frozenset[str]]] = {
    "restart a unit": (f"systemctl restart {SERVICE}", ALL - {"files"}),
    "enable a unit": (f"systemctl enable {SERVICE} && systemctl disable {SERVICE}", ALL - {"files"}),
    "write a unit": ("touch /etc/systemd/system/e2e-w && rm /etc/systemd/system/e2e-w", ALL - {"files"}),
    "write /etc": ("touch /etc/e2e-w && chown 1 /etc/e2e-w && rm /etc/e2e-w", ALL - {"services"}),
    "write /srv": ("touch /srv/e2e-w && rm /srv/e2e-w", ALL - {"services"}),
    "write /usr": ("touch /usr/e2e-w && rm /usr/e2e-w", frozenset({"packages"})),
    "add a user": ("useradd --system e2e-added && userdel e2e-added", frozenset({"packages"})),
    "install a package": (f"dpkg -i {DEB} && id e2e-pkg && dpkg -P e2e-narrow", frozenset({"packages"})),
    "connect": (f'python3 -c "{CONNECT}"', frozenset({"packages"})),
    "read the journal": (f"journalctl -u {UNIT} -n 1 | grep -q .", ALL),
    "read the public key of the approver": ("test -s /var/lib/lightagent-approver/public", ALL),
    "read the private key of the approver": ('[ "$(wc -c </var/lib/lightagent-approver/key)" = 32 ]', NONE),
    "read the keys of models": ("grep . /etc/lightagentd/keys/e2e-key", NONE),
    "read the history": ("ls /var/lib/lightagentd/history/data.mdb", NONE),
    "write a rule": ("touch /etc/lightagentd/policy.d/e2e-w.toml", NONE),
    "read a home": (f"cat /home/{USER}/secret", NONE),
    "mount": ("mount -t tmpfs none /mnt && umount /mnt", NONE),
    "make a namespace": ("unshare --net true", NONE),
    "trace a process": (f'python3 -c "{TRACE}"', NONE),
    "leave its cgroup": ("echo 0 > /sys/fs/cgroup/system.slice/cgroup.procs", NONE),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def changing(service: Machine) -> Iterator[None]:
    """An agent that may run all that its worker lets it, and things to try it on."""
    service.run(["useradd", new_uid(), "--create-home", USER])
    service.write(f"/home/{USER}/secret", "mine\n", 0o600)
    rule = '[[rule]]\nname = "e2e"\ndecision = "allow"\neffect = "change"\neven_if_tainted = true\n'
    service.write("/etc/lightagentd/keys/e2e-key", "a key\n", 0o600)
    service.write(RULES, f'{rule}agent = "ops"\n')
    serve = "/usr/bin/python3 -m http.server --bind 127.0.0.1 8471"
    install = "[Install]\nWantedBy=multi-user.target\n"
    service.write(
        f"/etc/systemd/system/{SERVICE}",
        f"[Service]\nExecStart={serve}\nWorkingDirectory=/mnt\n{install}",
    )
    folder = "/var/tmp/e2e-narrow"
    control = "Package: e2e-narrow\nVersion: 1\nArchitecture: all\nDescription: e2e\n"
    control += "Maintainer: e2e <e2e@example.org>\n"
    service.write(f"{folder}/DEBIAN/control", control)
    postinst = "#!/bin/sh\nset -e\nuseradd --system e2e-pkg\nsystemctl daemon-reload\n"
    service.write(f"{folder}/DEBIAN/postinst", postinst, 0o755)
    service.write(f"{folder}/DEBIAN/postrm", '#!/bin/sh\n[ "$1" != purge ] || userdel e2e-pkg\n', 0o755)
    service.write(f"{folder}/usr/lib/e2e-narrow/file", "x\n", 0o4755)
    service.run(["dpkg-deb", "--build", "--root-owner-group", folder, DEB])
    service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "start", SERVICE])
    sleeping = "sleep 1000 & echo $! > /run/e2e-narrow.pid; wait"
    service.run(["systemd-run", "--unit=e2e-narrow-traced", "--collect", "sh", "-c", sleeping])
    service.run(["systemctl", "enable", "--now", SOCKET])
    service.run(["systemctl", "reload", UNIT])
    yield
    lactl(service, "change", "widen", "ops")
    service.run(["systemctl", "disable", "--now", SOCKET])
    service.run(["systemctl", "stop", SERVICE, "e2e-narrow-traced.service"], check=False)
    service.run(
        ["rm", "-rf", f"/etc/systemd/system/{SERVICE}", RULES, folder, DEB, "/etc/lightagentd/keys/e2e-key"]
    )
    service.run(["userdel", "--remove", USER])
    service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "reload", UNIT])


def tried(machine: Machine) -> set[str]:
    """What the agent's worker for change can do, in one call."""
    script = "\n".join(
        f"if ( {command} ) </dev/null >/dev/null 2>&1; then echo 'can {what}'; fi"
        for what, (command, _) in TRIES.items()
    )
    said = shell(machine, f"{script}\necho all were tried", "change")
    assert "all were tried" in said, said
    return {line.removeprefix("can ") for line in said.splitlines() if line.startswith("can ")}


def _doctor(machine: Machine) -> list[dict[str, str]]:
    return list(json.loads(lactl(machine, "--json", "doctor", check=False).stdout)["checks"])


def test_without_a_profile_a_root_command_can_do_all_of_it(service: Machine) -> None:
    """Or it would prove nothing that they fail below."""
    assert tried(service) == set(TRIES)
    service.run(["rm", "/etc/lightagentd/policy.d/e2e-w.toml"])


@pytest.mark.parametrize("profile", NAMES)
def test_a_profile_leaves_to_a_worker_what_it_says(service: Machine, profile: str) -> None:
    lactl(service, "change", "narrow", "ops", profile)
    can = tried(service)
    out = service.run(["systemd-analyze", "security", "--no-pager", WORKER]).stdout
    figure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", out)
    assert figure is not None, out
    print(f"{profile}: exposure {figure[1]}; can {', '.join(sorted(can))}")
    assert can == {what for what, (_, profiles) in TRIES.items() if profile in profiles}
    assert float(figure[1]) <= EXPOSURE[profile], out
    verified = service.run(["systemd-analyze", "verify", WORKER])
    assert (verified.stdout, verified.stderr) == ("", "")
    assert lactl_json(service, "agents", "show", "ops")["change_profile"] == profile
    [remark] = [one for one in _doctor(service) if one["name"] == f"{WORKER}, profile"]
    assert profile in remark["detail"]


def test_tools_work_where_their_profile_lets_them(service: Machine) -> None:
    lactl(service, "change", "narrow", "ops", "services")
    assert call(service, "systemd.restart", unit=SERVICE)["result"] == "ok"
    assert call(service, "file.write", path="/srv/e2e-n", content="x").get("result") != "ok"
    lactl(service, "change", "narrow", "ops", "files")
    assert call(service, "file.write", path="/srv/e2e-n", content="x")["result"] == "ok"
    assert service.run(["cat", "/srv/e2e-n"]).stdout == "x"
    kept = service.run(["find", "/var/lib/lightagent-change/ops/undo", "-name", "*.json"]).stdout
    assert kept, "what it keeps to take it back lies in its own folder"
    service.run(["rm", "/srv/e2e-n"])
    assert call(service, "systemd.restart", unit=SERVICE).get("result") != "ok"


def test_widening_gives_everything_back_and_only_root_does_either(service: Machine) -> None:
    lactl(service, "change", "narrow", "ops", "files")
    for words in (("narrow", "ops", "packages"), ("widen", "ops")):
        refused = lactl(service, "change", *words, user=USER, check=False)
        assert refused.status != 0
        assert "Only root" in refused.stderr
    assert lactl_json(service, "change", "list") == [{"agent": "ops", "profile": "files", "file": DROP_IN}]
    shown = service.run(["script", "-qec", "stty cols 60; lactl change list", "/dev/null"]).stdout
    assert "ops files" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 60, shown
    lactl(service, "change", "widen", "ops")
    assert lactl_json(service, "change", "list") == [{"agent": "ops", "profile": "", "file": ""}]
    assert shell(service, "mount -t tmpfs none /mnt && umount /mnt && echo back", "change") == "back\n"
    service.run(["test", "!", "-e", DROP_IN])
