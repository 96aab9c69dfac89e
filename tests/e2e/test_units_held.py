"""What the worker units keep a shell command from. Each test looks at the machine, not at what was said.

What works inside, and how the units live and end, is in `test_units.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .calls import bus_unit, call, main_pid, shell, worker_unit
from .cgroup import pids_below
from .machine import Machine
from .product import UNIT, eventually, lactl_json

pytestmark = pytest.mark.e2e

EFFECTS = ("observe", "reach")
TREE = r"payload/system.slice/system-lightagent\x2dobserve.slice"
"""The cgroup above those of the units, below that of the machine."""


def worked(machine: Machine, command: str, effect: str = "observe") -> bool:
    """Whether a command succeeded, as far as it says itself."""
    return "it worked" in shell(machine, f"if {command}; then echo it worked; fi", effect)


def which_worked(machine: Machine, commands: Sequence[str], effect: str = "observe") -> list[str]:
    """Those of the commands that succeeded, as far as they say themselves; run one after the other."""
    script = "\n".join(
        f"if ( {one} ) < /dev/null; then echo worked-{at}.; fi" for at, one in enumerate(commands)
    )
    said = shell(machine, f"{script}\necho all were tried", effect)
    assert "all were tried" in said, said
    return [one for at, one in enumerate(commands) if f"worked-{at}." in said]


def test_the_commands_below_do_work_where_nothing_holds_them(service: Machine) -> None:
    """Or it would prove nothing that they fail in a worker."""
    for command in ("chmod 0777 /tmp/e2e-open", *WRITES[:2], *WRITES[3:5], WRITES[7]):
        service.run(["bash", "-c", command])
    for what in ("an IPv4 socket", "an IPv6 datagram", "a datagram pair", "sockets of workers"):
        service.run(["bash", "-c", SENDS[what]])
    service.run(["bash", "-c", ACTS[3]])
    service.run(["head", "-c", "1", "/etc/shadow"])
    service.write("/tmp/e2e-open/file", "as it was\n", 0o666)


@pytest.fixture(scope="module", autouse=True)
def secrets(service: Machine) -> Iterator[None]:
    """Things that only root, or only the daemon, may see; and a folder that everybody may write to."""
    service.run(["mkdir", "-p", "-m", "0710", "/etc/ssl/private"])
    service.write("/etc/ssl/private/e2e.key", "the key\n", 0o640)
    service.write("/tmp/e2e-open/file", "as it was\n", 0o666)
    service.run(["chmod", "0777", "/tmp/e2e-open"])
    yield
    service.run(["rm", "-r", "/etc/ssl/private/e2e.key", "/tmp/e2e-open"])


# Writing


@pytest.mark.parametrize("effect", EFFECTS)
def test_nothing_can_be_written_but_the_scratch_folder(service: Machine, effect: str) -> None:
    """Every folder that is there is tried, also those whose modes would allow it."""
    look = (
        'for folder in $(find / -xdev -type d -perm -0002 2>/dev/null) $(cut -d" " -f2 /proc/mounts);'
        ' do test -d "$folder" && (: > "$folder/e2e-written") 2>/dev/null && echo "wrote to $folder"; done'
    )
    said = shell(service, look, effect).splitlines()
    assert [line for line in said if line.startswith("wrote") and "lightagent-scratch" not in line] == []
    found = service.run(["find", "/", "-xdev", "-name", "e2e-written"], check=False).stdout
    assert found + service.run(["find", "/tmp", "/run", "/dev", "-name", "e2e-written"]).stdout == ""


WRITES = (
    "echo changed > /tmp/e2e-open/file",
    "echo changed > /proc/$$/root/tmp/e2e-open/file",
    "dd of=/tmp/e2e-open/file <<< changed",
    'python3 -c \'open("/tmp/e2e-open/file", "w").write("changed")\'',
    "truncate --size=0 /tmp/e2e-open/file",
    "mv /tmp/e2e-open/file /tmp/e2e-open/other",
    "rm -f /tmp/e2e-open/file",
    "chmod 0600 /tmp/e2e-open/file",
    "ln /tmp/e2e-open/file /tmp/e2e-open/other",
    "mkfifo /tmp/e2e-open/other",
    "mount -t tmpfs none /tmp/e2e-open",
    "mount -o remount,rw /",
    "unshare --user --map-root-user mount -t tmpfs none /tmp/e2e-open",
    "touch /dev/shm/e2e-written",
    "echo 1 > /proc/sys/kernel/sysrq",
)


@pytest.mark.parametrize("effect", EFFECTS)
def test_file_that_everybody_may_write_to_stays_as_it_is(service: Machine, effect: str) -> None:
    before = service.run(["stat", "-c", "%a %h %i %Y", "/tmp/e2e-open/file"]).stdout
    assert which_worked(service, WRITES, effect) == []
    assert service.run(["cat", "/tmp/e2e-open/file"]).stdout == "as it was\n"
    assert service.run(["stat", "-c", "%a %h %i %Y", "/tmp/e2e-open/file"]).stdout == before
    assert service.run(["ls", "/tmp/e2e-open"]).stdout == "file\n"


LATE = (
    "echo changed > /mnt/file",
    "touch /mnt/file",
    "touch -d 2001-01-01 /mnt/file",
    "python3 -c 'import os; os.utime(\"/mnt/file\")'",
    "setfattr -n user.mark -v x /mnt/file",
    'python3 -c \'import os; os.setxattr("/mnt/file", "user.mark", b"x")\'',
    "chmod 0600 /mnt/file",
)


@pytest.mark.parametrize("effect", EFFECTS)
def test_mount_that_came_after_the_worker_stays_as_it_is(service: Machine, effect: str) -> None:
    """It is not read-only as those before it, so Landlock and the filter hold alone."""
    shell(service, "true", effect)
    service.run(["mount", "-t", "tmpfs", "late", "/mnt"])
    try:
        service.write("/mnt/file", "as it was\n", 0o666)
        seen = ["stat", "-c", "%a %s %Y %Z", "/mnt/file"]  # to read it changes when it was read
        before = service.run(seen).stdout
        assert shell(service, "cat /mnt/file", effect) == "as it was\n"
        assert which_worked(service, LATE, effect) == []
        assert service.run(seen).stdout == before
        keep = "cd $TMPDIR; touch new && cp -p /etc/passwd . && tar -cf x.tar passwd && tar -xf x.tar"
        assert worked(service, keep, effect)
    finally:
        service.run(["umount", "--lazy", "/mnt"])


# The network, and having others act

SENDS = {
    "an IPv4 socket": "python3 -c 'import socket; socket.socket(socket.AF_INET)'",
    "an IPv6 datagram": "python3 -c 'import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)'",
    "a packet socket": "python3 -c 'import socket; socket.socket(17, socket.SOCK_RAW)'",
    "a datagram pair": "python3 -c 'import socket; socket.socketpair(type=socket.SOCK_DGRAM)'",
    "a redirection of the shell": "bash -c 'echo > /dev/tcp/127.0.0.1/22'",
    "a name": "getent ahosts names.example.org",
    "systemd-resolved": "test -e /run/systemd/resolve/io.systemd.Resolve",
    "the journal": "logger --socket-errors=on -t e2e forged",
    "the daemon": "lactl status",
    "sockets of workers": "ls /run/lightagent-workers",
    "the service manager": "test -e /run/systemd/private -o -e /run/systemd/io.systemd.Manager",
}


def test_observe_sends_nothing(service: Machine) -> None:
    assert which_worked(service, list(SENDS.values())) == []
    assert service.journal("--identifier=e2e", "--grep=forged") == []


MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
ACTS = (
    f"busctl call {MANAGER} StopUnit ss polkit.service replace",
    f"busctl call {MANAGER} StartTransientUnit 'ssa(sv)a(sa(sv))' e2e-x.service fail 0 0",
    f"busctl call {MANAGER} SetEnvironment as 1 E2E=1",
    f"busctl call {MANAGER} Subscribe",
    "busctl call org.freedesktop.hostname1 /org/freedesktop/hostname1 org.freedesktop.hostname1"
    " SetHostname sb forged false",
    "busctl call org.freedesktop.resolve1 /org/freedesktop/resolve1 org.freedesktop.resolve1.Manager"
    " ResolveHostname isit 0 names.example.org 0 0",
    "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    " PowerOff b false",
    "busctl call org.freedesktop.DBus / org.freedesktop.DBus RequestName su org.example.E2E 0",
    "busctl introspect org.lightagent1 /org/lightagent1",
    "systemctl stop polkit",
    "systemd-run --wait true",
)


@pytest.mark.parametrize("effect", EFFECTS)
def test_nobody_acts_for_a_command_over_the_bus(service: Machine, effect: str) -> None:
    assert which_worked(service, ACTS, effect) == []
    assert service.run(["hostname"]).stdout == "debian13\n"
    assert service.run(["systemctl", "is-active", "polkit"]).stdout == "active\n"
    assert "E2E" not in service.run(["systemctl", "show-environment"]).stdout


BUS = "org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus"
OWN_UNIT = "/org/freedesktop/systemd1/unit/lightagentd_2eservice org.freedesktop.systemd1"
LOGIN = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
WHOSE = f"busctl --timeout=10 call {BUS} GetConnectionUnixProcessID s org.lightagent1"
"""Who owns a name may be seen."""
HARMLESS_ASKS = tuple(
    f"busctl --timeout=10 call {ask}"
    for ask in (
        f"{BUS} ReloadConfig",
        f"{BUS} StartServiceByName su org.freedesktop.PolicyKit1 0",
        f"{BUS} StartServiceByName su org.lightagent1 0",
        f"{BUS} GetConnectionCredentials s org.freedesktop.PolicyKit1",
        f"{BUS}.Debug.Stats GetStats",
        "org.freedesktop.PolicyKit1 /org/freedesktop/PolicyKit1/Authority"
        " org.freedesktop.PolicyKit1.Authority EnumerateActions s ''",
        f"{MANAGER} Dump",
        f"{MANAGER} DumpByFileDescriptor",
        f"{MANAGER} ResetFailed",
        f"{MANAGER} RefUnit s lightagentd.service",
        f"{MANAGER} UnsetEnvironment as 1 E2E",
    )
)
"""What root may ask, and nobody can see afterwards."""
ASKS = tuple(
    f"busctl --timeout=10 call {ask}"
    for ask in (
        f"{BUS} UpdateActivationEnvironment 'a{{ss}}' 1 LD_PRELOAD /tmp/e2e.so",
        f"""{BUS} AddMatch s "type='method_call',eavesdrop='true'" """,
        f"{MANAGER} ClearJobs",
        f"{MANAGER} AttachProcessesToUnit ssau lightagentd.service / 1 $$",
        f"{MANAGER} KillUnit ssi lightagentd.service all 9",
        f"{MANAGER} FreezeUnit s lightagentd.service",
        f"org.freedesktop.systemd1 {OWN_UNIT}.Unit Kill si all 9",
        f"org.freedesktop.systemd1 {OWN_UNIT}.Unit Freeze",
        f"org.freedesktop.systemd1 {OWN_UNIT}.Service AttachProcesses sau / 1 $$",
        "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.DBus.Properties"
        " Set ssv org.freedesktop.systemd1.Manager LogLevel s debug",
        f"{LOGIN} Inhibit ssss shutdown x y delay",
        f"{LOGIN} SetUserLinger ubb $(id -u) true false",
        f"{LOGIN} KillUser ui 0 9",
    )
)
POSE = (
    'import os, socket, sys; s = socket.socket(1); s.connect("/run/dbus/system_bus_socket");'
    ' how = sys.argv[1].replace("OWN", str(os.getuid()).encode().hex());'
    ' s.sendall(f"\\0AUTH {how}\\r\\n".encode()); sys.exit(b"OK" not in s.recv(99))'
)
POSES = tuple(
    f"python3 -c '{POSE}' '{how}'"
    for how in ("EXTERNAL 30", "EXTERNAL 393837", "ANONYMOUS", "DBUS_COOKIE_SHA1 726f6f74", "EXTERNAL OWN")
)
"""As root, as another user, and as nobody; the last one as oneself."""


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_bus_answers_no_more_than_questions(service: Machine, effect: str) -> None:
    script = "\n".join(
        f"if ( {one} ) < /dev/null; then echo worked-{at}.; fi" for at, one in enumerate(HARMLESS_ASKS)
    )
    said = service.run(["bash", "-c", script]).stdout
    failed = [one for at, one in enumerate(HARMLESS_ASKS) if f"worked-{at}." not in said]
    assert failed == [], "these do not work for root, so that they prove nothing"
    before = main_pid(service, UNIT)
    asks = [
        one.replace("--timeout=10", "--timeout=4") for one in (*HARMLESS_ASKS, *ASKS)
    ]  # one gets no answer
    assert which_worked(service, [WHOSE, *asks, *POSES], effect) == [WHOSE, POSES[-1]]
    assert main_pid(service, UNIT) == before
    assert service.run(["systemctl", "show", "-P", "FreezerState", UNIT]).stdout == "running\n"


def test_reach_opens_no_raw_socket(service: Machine) -> None:
    """It would see what others send, and send under their addresses. ping needs none."""
    raw = "python3 -c 'import socket as s; s.socket(s.AF_INET, s.SOCK_RAW, s.IPPROTO_{})'"
    commands = [raw.format(protocol) for protocol in ("TCP", "UDP", "RAW", "ICMP")]
    assert which_worked(service, commands, "reach") == []


# Secrets

SECRETS = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/ssl/private/e2e.key",
    "/var/lib/lightagentd/history/data.mdb",
    "/var/lib/lightagentd/lock",
    "/var/lib/lightagent-keys",
    "/var/lib/systemd/credential.secret",
    "/proc/1/environ",
    "/proc/1/root/etc/shadow",
    "/proc/{daemon}/environ",
    "/proc/{daemon}/mem",
    "/proc/{daemon}/root/etc/hostname",
    "/proc/{worker}/environ",
    "/proc/{worker}/mem",
    "/proc/{worker}/maps",
    "/proc/{worker}/root/etc/hostname",
    "/proc/{worker}/fd/3",
    "/proc/{proxy}/environ",
    "/proc/kcore",
    "/dev/mem",
)


@pytest.mark.parametrize("effect", EFFECTS)
def test_secrets_cannot_be_read(service: Machine, effect: str) -> None:
    worker = worker_unit(service, effect)
    pids = {
        "daemon": main_pid(service, UNIT),
        "worker": main_pid(service, worker),
        "proxy": main_pid(service, bus_unit(worker)),
    }
    assert 0 not in pids.values()
    paths = [path.format_map(pids) for path in SECRETS]
    command = "; ".join(
        f"test -n \"$(head -c 1 '{one}' | tr '\\0' x)\" && echo 'read {one}'" for one in paths
    )
    command += "; ls /var/lib/lightagentd /run/credentials 2>/dev/null"
    assert [line for line in shell(service, command, effect).splitlines() if line.startswith("read ")] == []
    end = call(service, "file.read", path="/etc/shadow")
    assert end["type"] == "error"


# Other processes


@pytest.mark.parametrize("effect", EFFECTS)
def test_others_cannot_be_signalled_traced_or_slowed_down(service: Machine, effect: str) -> None:
    worker = worker_unit(service, effect)
    units = (UNIT, worker, bus_unit(worker))
    before = [main_pid(service, unit) for unit in units]
    commands = [f"kill -0 {pid}" for pid in before] + [f"renice -n 19 -p {pid}" for pid in before]
    trace = "import ctypes, os; raise SystemExit(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) != 0)"
    commands += [f"python3 -c '{trace.format(pid=pid)}'" for pid in before]
    assert which_worked(service, commands, effect) == []
    shell(service, "kill -KILL -1; kill -KILL $PPID", effect)
    assert [main_pid(service, unit) for unit in units] == before


def test_command_has_no_privileges_and_gets_none(service: Machine) -> None:
    fields = dict(
        line.split(":\t", 1) for line in shell(service, "cat /proc/self/status").splitlines() if ":\t" in line
    )
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert not worked(service, "python3 -c 'import os; os.setuid(0)'")
    assert "uid=0" not in shell(service, "su -c id; mount --version > /dev/null; unshare -Ur id")


# The cgroup of a call, and its end


def test_command_cannot_leave_its_cgroup(service: Machine) -> None:
    own = '"/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"'
    assert worked(service, f"test -d {own}")
    commands = [f"mkdir {own}/inner", f"echo 1 > {own}/../worker/cgroup.kill"]
    for target in ("cgroup.procs", "../worker/cgroup.procs", "../cgroup.procs", "../../cgroup.procs"):
        commands += [f"echo $$ > {own}/{target}", f"echo $$ > /proc/$PPID/root/{own}/{target}"]
    assert which_worked(service, commands) == []


LEAVERS = (
    "setsid sleep {mark} > /dev/null 2>&1 < /dev/null &",
    "(setsid sh -c '(sleep {mark} &) &' > /dev/null 2>&1 &)",
    "nohup sleep {mark} > /dev/null 2>&1 & disown",
    "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}' &",
    "python3 -c 'import os; os.fork() or (os.setsid(), os.fork() or"
    ' os.execvp("sleep", ["sleep", "{mark}"]))\'',
)


@pytest.mark.parametrize("number", range(len(LEAVERS)))
def test_what_a_call_leaves_behind_ends_with_it(service: Machine, number: int) -> None:
    mark = f"22222{number}.5"
    there = f"until ps -C sleep -o args= | grep -qF {mark}; do sleep 0.05; done; echo it is there"
    assert "it is there" in shell(service, f"{LEAVERS[number].format(mark=mark)}\n{there}")
    assert service.run(["pgrep", "-f", f"sleep {mark}"], check=False).stdout == ""
    calls = [path.name for path in (service.cgroup / TREE).iterdir() if path.name.startswith("call-")]
    assert calls == []
    assert shell(service, 'ls -A "$TMPDIR/.." | wc -l') == "1\n"


@pytest.mark.uses_up_processes
def test_fork_bomb_ends_with_its_call_and_the_daemon_answers_meanwhile(service: Machine) -> None:
    worker_tree = service.cgroup / TREE / worker_unit(service)
    args = json.dumps(
        {"command": "bomb() { bomb | bomb & }; bomb; sleep 60", "effect": "observe", "timeout_s": 6}
    )
    bomb = ["systemd-run", "--unit=e2e-bomb", "--collect", "lactl", "tools", "call", "ops", "bash.exec"]
    service.run([*bomb, "--args", args])
    eventually(lambda: len(pids_below(worker_tree)) > 100, "the bomb goes off")
    assert lactl_json(service, "status")["state"] == "running"
    eventually(lambda: len(pids_below(worker_tree)) <= 1, "the bomb is gone")
    assert shell(service, "echo still here") == "still here\n"


def test_endless_output_ends_with_its_call(service: Machine) -> None:
    end = call(service, "bash.exec", command="yes | head -c 300M", effect="observe")
    assert len(str(end)) < 8 << 20
    assert lactl_json(service, "status")["state"] == "running"


def test_memory_that_runs_out_in_a_worker_leaves_the_daemon_answering(service: Machine) -> None:
    """The worker is put into a memory cgroup of the host, since MemoryMax= has no effect in the machine."""
    pid = main_pid(service, UNIT)
    with _memory_limit(service.cgroup / TREE / worker_unit(service) / "worker", 192 << 20):
        eat = "python3 -c 'held = [bytearray(1 << 20) for _ in range(1024)]; print(len(held))'"
        assert "1024" not in shell(service, eat).split()
        assert lactl_json(service, "status")["state"] == "running"
    assert main_pid(service, UNIT) == pid
    assert shell(service, "echo still here") == "still here\n"


class _memory_limit:  # noqa: N801 - it is used as a function
    """The processes of a cgroup, and what they start, may use so much memory, until the block ends."""

    def __init__(self, members: Path, limit_bytes: int) -> None:
        self._members, self._limit = members, limit_bytes

    def __enter__(self) -> None:
        root = Path("/sys/fs/cgroup/memory")
        own = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line]
        if not own or not root.is_dir():
            pytest.skip("the host has no memory cgroup of version 1, which the machine does not use itself")
        self._home = root / own[0].rpartition(":")[2].lstrip("/")
        self._made = self._home / "lightagentd-e2e-memory"
        self._made.mkdir(exist_ok=True)
        (self._made / "memory.limit_in_bytes").write_text(str(self._limit))
        for pid in pids_below(self._members):
            (self._made / "cgroup.procs").write_text(str(pid))

    def __exit__(self, *_: object) -> None:
        for pid in (self._made / "cgroup.procs").read_text().split():
            (self._home / "cgroup.procs").write_text(pid)
        self._made.rmdir()
