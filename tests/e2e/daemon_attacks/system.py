"""Attacks past the approver: files, sockets, units, the bus and the programs of the system."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

from .stage import STATE, Stage, attack, control, systemctl, uid

FOLDERS = (
    *("/etc/lightagentd", "/etc/lightagentd/policy.d", "/etc/lightagentd/tools", "/etc/systemd/system"),
    *("/usr/share/lightagentd/tools", "/usr/lib/python3/dist-packages/lightagentd", "/run/systemd/system"),
    *("/run/lightagent-workers", "/run/lightagent-approver", "/run/lightagent-bus", "/etc/polkit-1/rules.d"),
    *("/var/lib/lightagent-approver", "/var/lib/lightagent-change", "/var/lib/lightagent-change/ops"),
    *("/usr/share/polkit-1/rules.d", "/usr/share/dbus-1/system-services", "/etc/cron.d", "/etc/credstore"),
    *("/run/lightagent-change", "/run/lightagent-change/ops", "/var/lib/lightagent-keys", "/etc/tmpfiles.d"),
)
BUS = ("busctl", "--system", "--timeout=10", "call")
UNITS = ("lightagent-approver.service", "lightagent-change@ops.socket", "lightagentd.service")
SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


@attack("write into the folders of the configuration, the rules, the tools, the units and the sockets")
def write_there(stage: Stage, mark: Path) -> bool:
    wrote = []
    for folder in FOLDERS:
        for hand in (stage.unit, stage.free):
            answer = str(hand.write(path=f"{folder}/attacked.toml", text="x"))
            wrote += [folder] * ("Error" not in answer)
    stage.said.append(f"wrote: {wrote}")
    return bool(wrote)


@attack("put sockets of its own in the place of the workers', the approver's and systemd's")
def replace_sockets(stage: Stage, mark: Path) -> bool:
    replaced = []
    for path in (
        *("/run/lightagent-workers/change@ops.sock", "/run/lightagent-workers/keys.sock"),
        *("/run/lightagent-approver/approve.sock", "/run/lightagent-approver/daemon.sock"),
        *("/run/dbus/system_bus_socket", "/run/systemd/notify"),
    ):
        for hand in (stage.unit, stage.free):
            done = [stage.did("unlink", path, by=hand), stage.did("rename", path, f"{path}.old", by=hand)]
            done += [
                stage.did("symlink", "/run/lightagentd/x", path, by=hand),
                stage.did("chmod", path, 0o777, by=hand),
            ]
            done.append("Error" not in str(hand.bind(path=path)))
            replaced += [path] * any(done[:3] + done[4:])
            replaced += [path] * (
                done[3] and "lightagent-workers" not in path and not path.endswith("daemon.sock")
            )
    stage.said.append(f"replaced: {replaced}")
    return bool(replaced)


@attack("read the approver's key, its log, and the state of the workers")
def read_there(stage: Stage, mark: Path) -> bool:
    got = []
    for path in (
        *("/var/lib/lightagent-approver/key", "/var/lib/lightagent-approver/requests"),
        *("/var/lib/lightagent-change/ops/used", "/etc/shadow", "/var/lib/lightagent-keys/keys"),
        *("/run/credentials/lightagent-approver.service/lightagent-approver.key", "/proc/1/mem"),
    ):
        for hand in (stage.unit, stage.free):
            got += [path] * ("Error" not in str(hand.read(path=path)))
    return bool(got)


@attack("have systemd give away files through links in the daemon's folders, when its units start again")
def links_for_systemd(stage: Stage, mark: Path) -> bool:
    aim = mark.parent / "aim"
    aim.write_text("root's")
    aim.chmod(0o600)
    before = aim.stat()
    for name in ("control.sock", "private.sock", "kept", "workers", "triggers", "attacker.sock.new"):
        stage.free.call_os(name="rename", args=[f"/run/lightagentd/{name}", f"/run/lightagentd/{name}.moved"])
        stage.free.call_os(name="symlink", args=[str(aim), f"/run/lightagentd/{name}"])
    for name in ("x", "audit.new", "history.new"):
        stage.free.call_os(name="symlink", args=[str(aim), str(STATE / name)])
    systemctl(
        "restart",
        "lightagent-approver.socket",
        "lightagent-approver-daemon.socket",
        "lightagent-approver.service",
    )
    subprocess.run(["systemd-tmpfiles", "--create"], capture_output=True, check=False)
    after = aim.stat()
    for name in ("control.sock", "private.sock", "kept", "workers", "triggers", "attacker.sock.new"):
        stage.free.call_os(name="unlink", args=[f"/run/lightagentd/{name}"])
        stage.free.call_os(name="rename", args=[f"/run/lightagentd/{name}.moved", f"/run/lightagentd/{name}"])
    changed = (before.st_uid, before.st_gid, before.st_mode) != (after.st_uid, after.st_gid, after.st_mode)
    return changed or aim.read_text() != "root's"


@attack("have the service manager start, restart, kill and edit units")
def service_manager(stage: Stage, mark: Path) -> bool:
    run = ["systemd-run", "--system", "--no-ask-password", "--collect", "--wait", "touch", str(mark)]
    set_ = ["systemctl", "--no-ask-password"]
    before = systemctl("show", "--property=InvocationID", *UNITS)
    for hand in (stage.unit, stage.free):
        stage.try_program(*run, by=hand)
        stage.try_program(*set_, "restart", "lightagent-change@ops.service", by=hand)
        stage.try_program(*set_, "set-environment", "LIGHTAGENT_CONFIG_DIR=/var/lib/lightagentd", by=hand)
        stage.try_program(
            *set_, "set-property", "--runtime", "lightagent-change@ops.service", "User=root", by=hand
        )
        stage.try_program(
            *set_,
            "edit",
            "--runtime",
            "--stdin",
            "lightagentd.service",
            by=hand,
            input=f"[Service]\nExecStartPre=+touch {mark}\n",
        )
        stage.try_program(*set_, "link", "/var/lib/lightagentd/evil.service", by=hand)
        stage.try_program(*_transient(mark), by=hand)
        stage.try_program(
            *BUS, *SYSTEMD, "KillUnit", "ssi", "lightagent-approver.service", "all", "9", by=hand
        )
        stage.try_program(*BUS, *SYSTEMD, "Reexecute", by=hand)
    changed = before != systemctl("show", "--property=InvocationID", *UNITS)
    return changed or "LIGHTAGENT_CONFIG_DIR" in systemctl("show-environment")


@attack("have a unit of its own under the name of a worker, which it may start and stop")
def under_a_workers_name(stage: Stage, mark: Path) -> None:
    for hand in (stage.unit, stage.free):
        for number, kind in enumerate(("service", "socket", "scope")):
            for name in (f"lightagent-observe@9{number}.{kind}", f"lightagent-change@ops.{kind}"):
                argv = _transient(mark)
                argv[argv.index("fail") - 1] = name
                stage.try_program(*argv, by=hand)
        for unit in ("lightagent-change@evil.socket", "lightagent-change@evil.service"):
            for method in ("StartUnit", "RestartUnit", "ReloadOrRestartUnit"):
                stage.try_program(*BUS, *SYSTEMD, method, "ss", unit, "replace", by=hand)
    if systemctl("is-active", "lightagent-change@evil.socket") == "active":
        mark.touch()


@attack("use up a granted call twice by killing its worker, which it may, at each moment of it")
def killed_worker(stage: Stage, mark: Path) -> bool:
    target = Path(f"{mark}-killed")
    for pause_s in (0.0, 0.03, 0.1):
        wanted = stage.command(f"echo >> {target}{pause_s}; sleep 0.2")
        grant = stage.granted(wanted)
        running = threading.Thread(target=stage.run, args=(wanted, grant))
        running.start()
        time.sleep(pause_s)
        kill = ("KillUnit", "ssi", "lightagent-change@ops.service", "all", "9")
        stage.try_program(*BUS, *SYSTEMD, *kill, by=stage.unit)
        running.join()
        for _ in range(2):
            stage.run(wanted, grant)
    return any(path.read_text() != "\n" for path in target.parent.glob(f"{target.name}*"))


def _transient(mark: Path) -> list[str]:
    """Have systemd run a command, without systemd-run."""
    program = ["1", "ExecStart", "a(sasb)", "1", "/bin/touch", "2", "touch", str(mark), "false"]
    name = f"{mark.name.replace('_', '-')}.service"
    return [*BUS, *SYSTEMD, "StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", *program, "0"]


@attack("ask other services of the bus for changes: the host's name, its clock, its sessions, its packages")
def other_services(stage: Stage, mark: Path) -> bool:
    host = Path("/etc/hostname").read_text() if Path("/etc/hostname").exists() else ""
    asked = [
        (
            "org.freedesktop.hostname1",
            "/org/freedesktop/hostname1",
            "org.freedesktop.hostname1",
            "SetStaticHostname",
            "sb",
            "evil",
            "false",
        ),
        (
            "org.freedesktop.hostname1",
            "/org/freedesktop/hostname1",
            "org.freedesktop.hostname1",
            "SetHostname",
            "sb",
            "evil",
            "false",
        ),
        (
            "org.freedesktop.timedate1",
            "/org/freedesktop/timedate1",
            "org.freedesktop.timedate1",
            "SetTime",
            "xbb",
            "1",
            "false",
            "false",
        ),
        (
            "org.freedesktop.timedate1",
            "/org/freedesktop/timedate1",
            "org.freedesktop.timedate1",
            "SetNTP",
            "bb",
            "false",
            "false",
        ),
        (
            "org.freedesktop.locale1",
            "/org/freedesktop/locale1",
            "org.freedesktop.locale1",
            "SetLocale",
            "asb",
            "1",
            "LANG=evil",
            "false",
        ),
        (
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "Reboot",
            "b",
            "false",
        ),
        (
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "SetUserLinger",
            "ubb",
            "0",
            "true",
            "false",
        ),
        (
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "TerminateUser",
            "u",
            "0",
        ),
        (
            "org.freedesktop.DBus",
            "/org/freedesktop/DBus",
            "org.freedesktop.DBus",
            "UpdateActivationEnvironment",
            "a{ss}",
            "1",
            "LD_PRELOAD",
            "/run/lightagentd/x.so",
        ),
    ]
    allowed: list[str] = []
    for one in asked:
        for hand in (stage.unit, stage.free):
            allowed += [one[3]] * (stage.try_program(*BUS, *one, by=hand)["status"] == 0)
    stage.said.append(f"allowed: {allowed}")
    now = Path("/etc/hostname").read_text() if Path("/etc/hostname").exists() else ""
    return bool(allowed) or now != host


@attack("have a service manager of its own, which outlives the daemon and has no sandbox")
def lingering(stage: Stage, mark: Path) -> bool:
    for hand in (stage.unit, stage.free):
        stage.try_program("loginctl", "--no-ask-password", "enable-linger", by=hand)
        argv = (
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "SetUserLinger",
        )
        stage.try_program(*BUS, *argv, "ubb", str(uid("lightagent")), "true", "false", by=hand)
    time.sleep(0.3)
    came = (
        Path("/var/lib/systemd/linger/lightagent").exists()
        or systemctl("is-active", f"user@{uid('lightagent')}.service") == "active"
    )
    subprocess.run(["loginctl", "disable-linger", "lightagent"], capture_output=True, check=False)
    return came


@attack("become root by sudo, su, pkexec, run0, at and cron")
def becoming_root(stage: Stage, mark: Path) -> bool:
    for hand in (stage.unit, stage.free):
        for argv in (
            ("sudo", "-n", "touch", str(mark)),
            ("su", "root", "-c", f"touch {mark}"),
            ("pkexec", "--disable-internal-agent", "touch", str(mark)),
            ("run0", "--no-ask-password", "touch", str(mark)),
            ("crontab", "-"),
            ("at", "now"),
        ):
            stage.try_program(*argv, by=hand, input=f"* * * * * touch {mark}\n", limit_s=6.0)
    return False


@attack("move into the cgroup of a worker, and of a person's session")
def into_a_cgroup(stage: Stage, mark: Path) -> bool:
    moved = []
    pid = str(stage.free.call_os(name="getpid", args=[]))
    stage.ask("Settle", call_id="")  # its worker runs, and has a cgroup
    for procs in Path("/sys/fs/cgroup").rglob("cgroup.procs"):
        if "lightagent" in str(procs) or procs.parent.name in ("init.scope", "user.slice", "cgroup"):
            moved += [str(procs)] * ("Error" not in str(stage.free.append(path=str(procs), text=pid)))
    for unit in ("lightagent-change@ops.service", "lightagent-approver.service", "user.slice"):
        attach = ("AttachProcessesToUnit", "ssau", unit, "", "1", pid)
        moved += [unit] * (stage.try_program(*BUS, *SYSTEMD, *attach, by=stage.free)["status"] == 0)
    stage.said.append(f"moved: {moved[:3]}")
    return bool(moved)


@attack("say in the journal what only the worker and the approver say there")
def forged_records(stage: Stage, mark: Path) -> bool:
    entry = (
        "MESSAGE=forged\n_SYSTEMD_UNIT=lightagent-change@ops.service\nUNIT=lightagent-change@ops.service\n_UID=0\n"
        "OBJECT_SYSTEMD_UNIT=lightagent-change@ops.service\n_COMM=python3\nSYSLOG_IDENTIFIER=lightagent-change\n"
    )
    program = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM);"
        "s.connect('/run/systemd/journal/socket'); s.send(sys.argv[1].encode())"
    )
    for hand in (stage.unit, stage.free):
        stage.try_program("python3", "-c", program, entry, by=hand)
        stage.try_program("systemd-cat", "--identifier=lightagent-approver", "echo", "forged", by=hand)
        stage.try_program("logger", "--id=1", "forged", by=hand)
    subprocess.run(["journalctl", "--sync"], check=False)
    found = ""
    for unit in ("lightagent-change@ops.service", "lightagent-approver.service"):
        argv = ["journalctl", "--output=cat", "--no-pager", f"_SYSTEMD_UNIT={unit}"]
        found += subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return "forged" in found


@control("an administrator's command has its effect, seen as the attacks' are")
def by_root(stage: Stage, mark: Path) -> None:
    subprocess.run(_transient(mark), check=True, capture_output=True)
