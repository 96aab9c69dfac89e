"""A user without the group lightagent, and one in it: what each tries at the machine, and at others' things.

The attempts of one user run in one script. Those that do no harm are also run by somebody who may, or their
failure would prove nothing; for the others the machine must be as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import pytest

from .calls import bus_unit, main_pid, worker_unit
from .machine import Machine
from .product import UNIT, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

STRANGER, OWNER, OTHER = "karla", "lena", "marek"
MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
EACH = "trace_id|duration_ms|at_us|created_us|expires_us|digest|approver"
"""What is another one for each call."""
DAEMON = "org.lightagent1 /org/lightagent1 org.lightagent1"


@pytest.fixture(scope="module", autouse=True)
def users(service: Machine) -> Iterator[None]:
    service.run(["useradd", new_uid(), "--create-home", STRANGER])
    for user in (OWNER, OTHER):
        service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", user])
    yield
    for user in (STRANGER, OWNER, OTHER):
        service.run(["userdel", "--remove", user])


def which_worked(machine: Machine, commands: Sequence[str], user: str | None) -> list[str]:
    """Those of the commands that succeeded for a user; None is root."""
    script = "\n".join(
        f"if timeout 20 bash -c {_quoted(one)} < /dev/null > /dev/null 2>&1; then echo worked-{at}.; fi"
        for at, one in enumerate(commands)
    )
    said = machine.run(["bash", "-c", f"{script}\necho all were tried"], user=user, timeout_s=180).stdout
    assert "all were tried" in said
    return [one for at, one in enumerate(commands) if f"worked-{at}." in said]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _connect(path: str) -> str:
    return f"python3 -c 'import socket; socket.socket(1).connect(\"{path}\")'"


def looks(pids: dict[str, int], worker: str) -> list[str]:
    """What root may do, and nobody can see afterwards."""
    number = re.findall("@(..)", worker)[0]
    sockets = ("lightagentd/control", "lightagentd/private", f"lightagent-workers/observe@{number}")
    places = ("lightagent-workers/inspect", "lightagent-workers/keys")
    tries = [_connect(f"/run/{name}.sock") for name in (*sockets, *places)]
    tries += [_connect(f"/run/lightagent-bus/{number}/system_bus_socket")]
    for folder in ("/run/lightagentd/kept", "/var/lib/lightagentd", "/var/lib/lightagent-keys"):
        tries.append(f"ls {folder}")
    tries += ["ls /etc/lightagentd/keys", "test -r /var/lib/lightagentd/history/data.mdb"]
    for pid in pids.values():
        tries += [f"head -c 1 /proc/{pid}/environ", f"ls /proc/{pid}/fd/", f"ls /proc/{pid}/root/"]
        tries += [f"ls /proc/{pid}/cwd/", f"kill -0 {pid}"]
    tries += [f"lactl {what}" for what in ("status", "sessions list", "agents list", "usage", "memory list")]
    tries += [f"lactl {what}" for what in ("approvals", "inputs", "history", "audit verify", "models list")]
    tries += [
        f"busctl --timeout=10 call {DAEMON}.{what}"
        for what in ("Manager GetStatus", "Sessions List 'a{sv}' 0", "History Query 'a{sv}' 0")
    ]
    tries += ["setpriv --reuid=lightagent-w02 true", "journalctl -u lightagentd | grep -q ready"]
    return [*tries, "systemd-run --no-ask-password --uid=lightagent-w02 true", "sg lightagent true"]


def acts(pids: dict[str, int], worker: str) -> list[str]:
    """What would change something."""
    tries = [
        f"systemctl --no-ask-password {verb}"
        for unit in (
            UNIT,
            worker,
            bus_unit(worker),
            "lightagent-reach@31.socket",
            "lightagent-change@ops.socket",
        )
        for verb in (f"stop {unit}", f"restart {unit}", f"kill {unit}", f"freeze {unit}", f"mask {unit}")
    ]
    tries += [f"systemctl --no-ask-password set-property --runtime {worker} CPUWeight=7"]
    tries += ["systemd-run --no-ask-password --property=PartOf=lightagentd.service true"]
    cgroup = r"/sys/fs/cgroup/system.slice/system-lightagent\x2dobserve.slice/" + worker
    tries += [f'echo 1 > "{cgroup}/cgroup.kill"', f'echo $$ > "{cgroup}/worker/cgroup.procs"']
    tries += [f'mkdir "{cgroup}/e2e"', f'chmod 777 "{cgroup}"']
    for folder in ("lightagentd", "lightagent-bus", "lightagent-workers", "lightagentd/kept"):
        tries += [f"touch /run/{folder}/e2e", f"ln -s /etc/shadow /run/{folder}/e2e.sock"]
    for pid in pids.values():
        tries += [
            f"kill -STOP {pid}",
            f"renice 19 -p {pid}",
            f"taskset -p 1 {pid}",
            f"choom -n 1000 -p {pid}",
        ]
    tries += [f"busctl --timeout=10 call {MANAGER} KillUnit ssi {worker} all 9"]
    tries += [f"busctl --timeout=10 call {DAEMON}.Manager {what}" for what in ("Panic s x", "Reload")]
    return [*tries, "lactl panic", "lactl reload", "lactl agents stop ops", "lactl prompt ops hello"]


def state(machine: Machine, worker: str) -> str:
    """What the attempts would have changed."""
    units = [UNIT, worker, bus_unit(worker), "lightagent-reach@31.socket", "lightagent-change@ops.socket"]
    names = "Id,ActiveState,MainPID,NRestarts,FreezerState,UnitFileState,LoadState,CPUWeight,InvocationID"
    found = machine.run(["systemctl", "show", f"--property={names}", *units]).stdout
    folders = ["/run/lightagentd", "/run/lightagent-bus", "/run/lightagent-workers"]
    found += machine.run(["find", *folders, "-printf", "%p %u %m\n"]).stdout
    pids = [str(main_pid(machine, unit)) for unit in units[:3]]
    found += machine.run(["ps", "-o", "pid,ni,psr,stat,user", "-p", ",".join(pids)]).stdout.replace("R", "S")
    return re.sub(r" +\d+ S", " S", found) + str(lactl_json(machine, "status")["state"])


def test_a_stranger_gets_nowhere(service: Machine) -> None:
    worker = worker_unit(service)
    units = {"daemon": UNIT, "worker": worker, "filter": bus_unit(worker)}
    pids = {name: main_pid(service, unit) for name, unit in units.items()}
    service.run(["systemctl", "start", "lightagent-keys.service"])  # which makes its folder, if there is none
    harmless = looks(pids, worker)
    assert which_worked(service, harmless, None) == harmless
    before = state(service, worker)
    assert which_worked(service, [*harmless, *acts(pids, worker)], STRANGER) == []
    assert state(service, worker) == before


def test_a_stranger_forges_no_history(service: Machine) -> None:
    """Their entries stand in the journal, which the history is compared with."""
    lines = [
        f"MESSAGE=forged\nSYSLOG_IDENTIFIER=lightagentd\nLIGHTAGENT_SEQ={seq}\nLIGHTAGENT_HASH={'0' * 64}\n"
        f"LIGHTAGENT_TYPE=intent\nLIGHTAGENT_TOPIC=agent.tool_dispatch\nLIGHTAGENT_AGENT=ops\n"
        for seq in (1, 2, 999_999)
    ]
    for line in lines:
        service.run(["logger", "--journald"], user=STRANGER, input=line)
    service.run(["journalctl", "--sync"])
    assert service.run(["journalctl", "--output=cat", "LIGHTAGENT_SEQ=999999"]).stdout == "forged\n"
    lactl(service, "audit", "verify")


def _made_up(id_: str) -> str:
    return re.sub("_[0-9a-f]{16}", "_0123456789abcdef", id_)


def test_one_member_finds_nothing_of_another_by_its_id(service: Machine) -> None:
    """Keys, watches, memories, kept outputs, turns, calls: an id of another's is one that nobody has."""

    def tool(name: str, **args: object) -> list[str]:
        return ["--json", "tools", "call", "ops", name, "--args", json.dumps(args)]

    def made(kind: str, *args: str) -> str:
        out = lactl(service, *args, user=OWNER).stdout
        return str(re.findall(f"{kind}_[0-9a-f]{{16}}", out)[-1])

    key = made("key", *tool("crypto.generate_key", label="e2e"))
    watch = made("watch", *tool("inotify.watch", path="/tmp"))
    memory = made("mem", *tool("memory.remember", text="the marmot is 4711"))
    output = made("out", *tool("bash.exec", command="seq 200000", effect="observe"))
    session = made("ses", "--json", "prompt", "ops", "--new", "check memory")
    trace = made("trace", "--json", "prompt", "ops", "--session", session, "check memory")
    harmless = [
        tool("crypto.sign", handle=key, text="x"),
        tool("inotify.poll", watch=watch),
        tool("bash.read_output", handle=output),
        ["trace", "show", trace],
        ["usage", "--session", session],
        ["wait", session],
        ["sessions", "export", session],
    ]
    harmful = [
        tool("inotify.stop", watch=watch),
        tool("memory.forget", id=memory),
        tool("crypto.verify_with_key", handle=key, text="x", signature="aa"),
        ["memory", "forget", memory],
        ["memory", "promote", memory],
        ["sessions", "rename", session, "mine"],
        ["sessions", "fork", session],
        ["sessions", "delete", session],
        ["plan", "show", session],
    ]
    for args in (*harmless, *harmful):
        real, none = (
            lactl(service, *(swap(one) for one in args), user=OTHER, check=False) for swap in (str, _made_up)
        )
        assert real.status != 0, real.explain()
        told = [re.sub(f'"({EACH})": [^,}}]*', "", _made_up(one.stdout + one.stderr)) for one in (real, none)]
        assert told[0] == told[1], real.explain()
    searched = (tool("crypto.list_keys"), tool("inotify.list"), tool("memory.recall", query="marmot"))
    for args in (*searched, ["memory", "list"], ["sessions", "list"], ["trace", "list"], ["usage"]):
        said = lactl(service, *args, user=OTHER).stdout
        assert [one for one in (key, watch, memory, session, trace, "4711") if one in said] == []
    stop = tool("inotify.stop", watch=watch)  # it would be made again at each start, and take a worker
    for args in (*harmless, stop):
        done = lactl(service, *args, user=OWNER, check=False)
        assert done.status == 0, done.explain()
