"""Tests whether a command of this worker can do something that its effect forbids.

A short program is started like any command of a call, and tries it. It prints a list of what worked; an empty
list is the proof that the backend enforces effects.
"""

from __future__ import annotations

import json
import sys

from lightagentd.errors import ToolError, WorkerUnavailable
from lightagentd.host.process import run
from lightagentd.tool import Effect
from lightagentd.worker import landlock

PROOF_TIMEOUT_S = 15.0

_ATTEMPTS = r"""
import ctypes, json, os, socket, sys

network, signals = sys.argv[1] == "reach", sys.argv[2] == "scoped"
possible = []

def attempt(what, action):
    try:
        action()
    except OSError:
        return
    possible.append(what)

def write(folder):
    path = os.path.join(folder, "lightagent-proof-%d" % os.getpid())
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)

def connect(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)

def unshare():
    if ctypes.CDLL(None).unshare(0x10000000):
        raise OSError

def own_cgroup():
    own = [line[3:] for line in open("/proc/self/cgroup").read().splitlines() if line.startswith("0::")][0]
    for line in open("/proc/self/mountinfo"):
        fields, _, source = line.partition(" - ")
        if source.startswith("cgroup2 "):
            return fields.split()[4] + own
    raise FileNotFoundError

for folder in "/ /dev /dev/shm /etc /home /root /run /tmp /usr /var /var/lib /var/log /var/tmp".split():
    attempt("write to %s" % folder, lambda: write(folder))
attempt("leave its cgroup", lambda: os.close(os.open(own_cgroup() + "/cgroup.procs", os.O_WRONLY)))
attempt("make a cgroup", lambda: os.mkdir(own_cgroup() + "/proof"))
attempt("open a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
if not network:
    attempt("open an IPv4 socket", lambda: socket.socket(socket.AF_INET).close())
    attempt("open an IPv6 socket", lambda: socket.socket(socket.AF_INET6).close())
attempt("open a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close())
attempt("ask systemd-resolved", lambda: connect("/run/systemd/resolve/io.systemd.Resolve"))
attempt("talk to the service manager past the bus filter", lambda: connect("/run/systemd/private"))
attempt("talk to the daemon", lambda: connect("/run/lightagentd/control.sock"))
attempt("send to the journal", lambda: connect("/run/systemd/journal/stdout"))
attempt("make a user namespace", unshare)
memory = "/proc/%d/mem" % os.getppid()
attempt("read the memory of its worker", lambda: os.close(os.open(memory, os.O_RDONLY)))
attempt("read the daemon's state", lambda: os.listdir("/var/lib/lightagentd"))
if signals:
    attempt("signal its worker", lambda: os.kill(os.getppid(), 0))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(status[name], 16):
        possible.append("hold capabilities (%s)" % name)
if int(status["NoNewPrivs"]) != 1:
    possible.append("gain privileges from a setuid program")
if os.geteuid() == 0:
    possible.append("run as root")
print(json.dumps(possible))
"""


async def prove(effect: Effect) -> list[str]:
    """The forbidden things that a command can do, as verbs: `write to /tmp`. Raises WorkerUnavailable."""
    scoped = "scoped" if landlock.scoped() else "unscoped"
    argv = [sys.executable, "-I", "-S", "-c", _ATTEMPTS, effect.value, scoped]
    try:
        done = await run(argv, timeout_s=PROOF_TIMEOUT_S)
        found: list[str] = json.loads(done.stdout.text())
    except (ToolError, ValueError) as err:
        raise WorkerUnavailable(f"It cannot be tried what a command of {effect} can do: {err}") from err
    return found
