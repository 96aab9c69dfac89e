"""How long `status` takes while a command does its worst: bombs, endless output, a killed worker."""

from __future__ import annotations

import os
import signal
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
        finally:
            daemon.stop()


def _show(what: str, slowest: list[float]) -> None:
    show(f"slowest of {ASKED} status answers during {what} (target: at most {TARGET_MS})", slowest, "ms")


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
