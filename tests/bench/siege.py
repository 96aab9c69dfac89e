"""How long `status` takes while a command or another user does their worst: bombs, endless output, a killed
worker, connections that send and never read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from tests.bench.rig import show
from tests.conftest import DaemonProcess

TARGET_MS = 1000
ASKED = 20
"""How often status is asked for in a round."""
LACTL = Path(sys.executable).with_name("lactl")
CROWD = 300
"""How many connections of another user send calls until the socket takes no more, and never read."""
CROWDED = f"""
import socket, sys, time
def sender():
    made = socket.socket(socket.AF_UNIX)
    made.connect(sys.argv[1])
    made.setblocking(False)
    return made
def fill(made):
    try:
        while True:
            made.send(b'{{"method":"org.lightagent1.Manager.GetStatus"}}\\0')
    except BlockingIOError:
        return made
    except OSError:  # the daemon has closed it
        return sender()
held = [fill(sender()) for _ in range({CROWD})]
print("all are there", flush=True)
while True:
    held = [fill(made) for made in held]
    time.sleep(0.1)
"""
"""Each one that the daemon closes comes back."""

SIEGES = {
    "a fork bomb": ":(){ :|:& };:; sleep 4",
    "10 GB of output": "head -c 10G /dev/zero | tr '\\0' x",
    "a command that eats memory": 'python3 -c "x = []\nwhile True: x.append(bytearray(1 << 20))"; sleep 2',
}


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="la-bench-") as name:
        base = Path(name)
        base.chmod(0o755)
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        daemon.start()
        try:
            for what, command in SIEGES.items():
                _show(what, [_slowest_ms(daemon, command, lambda: None) for _ in range(rounds)])
            killed = [_slowest_ms(daemon, "sleep 2", lambda: _kill_worker(daemon)) for _ in range(rounds)]
            _show("a worker that is killed, as for memory", killed)
            _crowd(daemon, rounds)
        finally:
            daemon.stop()


def _show(what: str, slowest: list[float]) -> None:
    show(f"slowest of {ASKED} status answers during {what} (target: at most {TARGET_MS})", slowest, "ms")


def _crowd(daemon: DaemonProcess, rounds: int) -> None:
    daemon.paths.socket.chmod(0o666)
    argv = ["/usr/bin/python3", "-c", CROWDED, str(daemon.paths.socket)]
    crowd = subprocess.Popen(argv, user="nobody", group="nogroup", extra_groups=[], stdout=subprocess.PIPE)
    try:
        assert crowd.stdout is not None
        assert crowd.stdout.readline()
        took: dict[str, list[float]] = {"status": [], "panic": [], "panic --off": []}
        for _ in range(rounds):
            for command, all_ms in took.items():
                started = time.perf_counter()
                subprocess.run(
                    [LACTL, *command.split()], env=daemon.env, stdout=subprocess.DEVNULL, check=True
                )
                all_ms.append((time.perf_counter() - started) * 1000)
        assert crowd.poll() is None
        for command, all_ms in took.items():
            what = f"lactl {command} of root beside {CROWD} connections that never read"
            show(f"{what} (target: at most {1000 if command == 'status' else 2000})", all_ms, "ms")
    finally:
        crowd.kill()
        crowd.wait()


def _slowest_ms(daemon: DaemonProcess, command: str, meanwhile: Callable[[], None]) -> float:
    caller = threading.Thread(target=_call, args=(daemon, command))
    caller.start()
    slowest = 0.0
    for number in range(ASKED):
        time.sleep(0.1)
        if number == ASKED // 4:
            meanwhile()
        started = time.perf_counter()
        with daemon.client() as client:
            client.call("org.lightagent1.Manager.GetStatus")
        slowest = max(slowest, (time.perf_counter() - started) * 1000)
    caller.join()
    return slowest


def _call(daemon: DaemonProcess, command: str) -> None:
    """Have an agent's worker run a command; however that ends, the daemon is what is measured."""
    args = {"command": command, "timeout_s": 5}
    try:
        with daemon.client() as client:
            for _ in client.stream(
                "org.lightagent1.Tools.Call", agent="ops", tool="bash", action="exec", args=args
            ):
                pass
    except LightagentError as err:
        print(f"the call ended with {err.code}")


def _kill_worker(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        workers = client.call("org.lightagent1.Manager.GetStatus")["status"]["workers"]
    for worker in workers:
        if worker["busy"]:
            os.kill(worker["pid"], signal.SIGKILL)
