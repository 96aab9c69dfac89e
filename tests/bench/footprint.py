"""What the idle daemon and a worker cost in memory, and how long `lactl status` takes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lightagentd.host.paths import Paths
from tests.bench.rig import show
from tests.conftest import REPOSITORY, DaemonProcess

STATUS_TARGET_MS, DAEMON_TARGET_MIB, WORKER_TARGET_MIB = 150, 60, 30


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="la-bench-") as name:
        base = Path(name)
        base.chmod(0o755)
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        daemon_mib: list[float] = []
        worker_mib: list[float] = []
        keeper_mib: list[float] = []
        status_ms: list[float] = []
        for _ in range(rounds):
            daemon.start()
            try:
                done = daemon.lactl("prompt", "ops", "check disk")
                assert done.returncode == 0, done.stderr
                time.sleep(1)
                daemon_mib.append(rss_anon_mib(daemon.pid))
                keeper, *_, worker = sorted(rss_anon_mib(pid) for pid in _workers(daemon.pid))
                keeper_mib.append(keeper)
                worker_mib.append(worker)
                status_ms.append(_status_ms(daemon))
            finally:
                daemon.stop()
    show(f"lactl status, exec to exit (target: at most {STATUS_TARGET_MS})", status_ms, "ms")
    show(f"idle daemon with one agent, RssAnon (target: at most {DAEMON_TARGET_MIB})", daemon_mib, "MiB")
    show(f"worker, RssAnon (target: at most {WORKER_TARGET_MIB})", worker_mib, "MiB")
    show("the worker's keeper, RssAnon (most of it shared with the worker)", keeper_mib, "MiB")


def _status_ms(daemon: DaemonProcess) -> float:
    lactl = Path(sys.executable).with_name("lactl")
    started = time.perf_counter()
    subprocess.run([lactl, "status"], env=daemon.env, cwd=REPOSITORY, check=True, capture_output=True)
    return (time.perf_counter() - started) * 1000


def rss_anon_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _workers(daemon: int) -> list[int]:
    """The processes below the daemon that are a worker or its keeper, which have the same command line."""
    found, todo = [], [daemon]
    while todo:
        pid = todo.pop()
        for listing in Path(f"/proc/{pid}/task").glob("*/children"):
            todo += [int(child) for child in listing.read_text().split()]
        if pid != daemon and Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [
            b"-m",
            b"lightagentd.worker.keeper",
        ]:
            found.append(pid)
    return found
