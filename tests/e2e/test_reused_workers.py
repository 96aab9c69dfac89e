"""One person's worker, after another person's had the same number: nothing of the first is left.

The first one plants all that a command could leave with its user, by every way that the kernel has. What the
sandbox refuses is not there at once; what it allows must be gone with the worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

FIRST, SECOND = "nora", "olaf"

PLANT = r"""
exec 2>&1
cd $TMPDIR; umask 0
echo planted > file; mkdir -m 0 closed; mkdir ../left; echo planted > ../left/file; mkfifo ../left/fifo
exec 3<>../left/fifo; ln -s /etc/passwd ../left/link; (exec -a planted-name sleep 456789) &
cp /bin/sleep ../left/planted-program; chmod 4755 ../left/planted-program; ../left/planted-program 456789 &
(setsid sleep 456789 > /dev/null 2>&1 &); (trap '' TERM HUP; sleep 456789 > /dev/null 2>&1) &
(sleep 456789 & kill -STOP $!) > /dev/null 2>&1
own="/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"
for d in /tmp /var/tmp /dev/shm /dev/mqueue /dev/hugepages /run /run/dbus /run/lock /run/user /var/crash \
    /var/spool /run/lightagent-scratch "$own" "$own/.." "$own/../worker"; do
    mkdir "$d/planted" && echo "made a folder in $d"; echo x > "$d/planted-file" && echo "made a file in $d"
done 2> /dev/null
chmod 777 "$own/.." "$own/../worker" "$own"; chmod 666 "$own/../cgroup.procs" "$own/../worker/cgroup.kill"
python3 - <<'END'
import ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
for name, made in (
    ("shm", libc.shmget(0x4711, 4096, 0o1666)), ("sem", libc.semget(0x4711, 1, 0o1666)),
    ("msg", libc.msgget(0x4711, 0o1666)), ("mq", libc.syscall(240, b"planted", 0o102, 0o666, None)),
    ("key", libc.syscall(248, b"user", b"planted", b"x", 1, -4)), ("ring", libc.syscall(250, 0, -4, 1)),
):
    if made >= 0:
        print("made", name)
if os.fork() == 0:
    held = [socket.socket(16, 3, 0)]
    held[0].bind((4711, 0))
    watching = libc.inotify_init()
    libc.inotify_add_watch(watching, b"/tmp", 0xfff)
    held += socket.socketpair()
    held[1].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held[2].fileno().to_bytes(4, "little"))])
    os.memfd_create("planted")
    os.setsid()
    open("ready", "w").close()
    time.sleep(1000)
while not os.path.exists("ready"):
    time.sleep(0.02)
END
"""
LOOK = r"""
find /run/lightagent-scratch -mindepth 1 ! -path "$TMPDIR" -printf 'left in the scratch folder: %p\n'
find /tmp /var/tmp /dev /run /var/crash /var/spool -name 'planted*' -printf 'left: %p\n' 2> /dev/null
ps -u $(id -u) -o args= | grep -E '^[^ ]+ 456789$|^python3 -$' | sed 's/^/left running: /'
tail -qn +2 /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg | sed 's/^/left of System V: /'
awk '$3 == 4711 { print "left of netlink" }' /proc/net/netlink
grep -h planted /proc/net/unix /proc/keys | sed 's/^/left: /'
own="/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"
ls "$own/.." | grep -v '\.' | grep -vx -e worker -e "${own##*/}" | sed 's/^/left of the cgroup: /'
stat -c '%a' "$own/.." "$own/../worker" "$own/../cgroup.procs" "$own/../worker/cgroup.kill" | tr '\n' ' '
echo; umask; id -un; id -Gn; echo 'seen all'
"""


@pytest.fixture(scope="module", autouse=True)
def people(service: Machine) -> Iterator[None]:
    for user in (FIRST, SECOND):
        service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", user])
    lactl(service, "reload")  # which ends the idle workers of others
    yield
    for user in (FIRST, SECOND):
        service.run(["userdel", "--remove", user])


def shell_of(machine: Machine, user: str, command: str, effect: str) -> str:
    args = json.dumps({"command": command, "effect": effect})
    done = lactl(
        machine, "--json", "tools", "call", "ops", "bash.exec", "--args", args, user=user, check=False
    )
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    text = str(next(one for one in ends if one["type"] == "tool_result")["text"])
    seen, end, _ = text.partition("seen all\n")
    assert end, seen
    return seen


def end_workers(machine: Machine) -> None:
    """An agent that stops takes its workers along."""
    for verb in ("stop", "start"):
        lactl(machine, "agents", verb, "ops")
    left: list[Any] = []

    def ended() -> bool:
        left[:] = lactl_json(machine, "status")["workers"]
        return not left

    try:
        eventually(ended, "the workers end")
    except AssertionError as err:
        raise AssertionError(f"{err}: {left}") from err


@pytest.mark.parametrize(
    ("first", "second"), [("observe", "observe"), ("observe", "reach"), ("reach", "observe")]
)
def test_the_next_person_with_the_number_finds_nothing(service: Machine, first: str, second: str) -> None:
    end_workers(service)
    clean = shell_of(service, SECOND, LOOK, second).splitlines()
    end_workers(service)
    planted = shell_of(service, FIRST, PLANT + LOOK, first)
    # Of all that, only these are there, and only as long as the call:
    for there in ("left in the scratch folder", "left of netlink", "777", "running: python3 -"):
        assert there in planted, planted
    for name in ("planted-name", "sleep", "../left/planted-program"):
        assert f"left running: {name} 456789" in planted, planted
    made = [line for line in planted.splitlines() if line.startswith("made")]
    assert {line.rpartition(" ")[2].startswith("/run/lightagent-scratch") for line in made} == {True}, made
    user = planted.splitlines()[-2]
    end_workers(service)
    found = shell_of(service, SECOND, LOOK, second).splitlines()
    assert user == found[-2], "it was another number, so this proves nothing"
    assert found == clean
    groups = {"observe": "adm lightagent-observe systemd-journal", "reach": "lightagent-reach"}
    assert sorted(found[-1].split()) == sorted(["lightagent-worker", *groups[second].split()])
    assert not [line for line in found if line.startswith("left")]
    uid = service.account(user).pw_uid
    left = service.run(["find", "/tmp", "/var/tmp", "/dev/shm", "/home", "-uid", str(uid)]).stdout
    assert left == ""


def test_the_other_effect_of_a_number_ends_when_one_begins(service: Machine) -> None:
    """Conflicts= of the units: two people never are one user at a time, even if a number were taken twice."""
    end_workers(service)
    both = [f"lightagent-{effect}@31.service" for effect in ("observe", "reach")]
    try:
        for started, ended in (both, both[::-1]):
            service.run(["systemctl", "start", started])
            assert service.run(["systemctl", "is-active", started, ended], check=False).stdout.split() == [
                "active",
                "inactive",
            ]
            user = service.account("lightagent-w31").pw_uid
            running = service.run(["ps", "-u", str(user), "-o", "args="]).stdout
            assert running.count("lightagentd.worker.unit") == 1
    finally:
        service.run(["systemctl", "stop", *both])
    eventually(
        lambda: service.run(["pgrep", "-u", "lightagent-w31"], check=False).stdout == "",
        "its filter ends, too",
    )
    assert service.run(["test", "-e", "/run/lightagent-bus/31"], check=False).status != 0
