"""The kernel kills a worker that is out of memory: the daemon does not go down with it, and says what it was.

`MemoryMax=` does nothing inside such a container, so the worker is put into a memory cgroup of the host.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .calls import call, main_pid, shell, worker_unit
from .cgroup import cgroup_root, pids_below
from .machine import Machine
from .product import UNIT, eventually, lactl

pytestmark = pytest.mark.e2e

LIMIT_BYTES = 256 << 20
_HOG = "python3 -c 'held = [bytearray(16 << 20) for _ in range(64)]; print(len(held))'"


@contextlib.contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup of the host, of version 1 where its memory controller is there, else of version 2."""
    name = f"lightagentd-oom-{os.getpid()}"
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    first = [
        Path(where) for _, where, kind, options, *_ in mounts if kind == "cgroup" and "memory" in options
    ]
    if first:
        group, limit = first[0] / name, "memory.limit_in_bytes"
    else:
        root = cgroup_root()
        assert root is not None
        group, limit = root / name, "memory.max"
    group.mkdir()
    try:
        if not (group / limit).exists():
            (group.parent / "cgroup.subtree_control").write_text("+memory")
        (group / limit).write_text(str(LIMIT_BYTES))
        yield group
    finally:
        for _ in range(100):  # its last process may still be ending
            with contextlib.suppress(OSError):
                group.rmdir()
            if not group.exists():
                break
            time.sleep(0.05)


def test_a_worker_that_is_out_of_memory_takes_nothing_down_with_it(service: Machine) -> None:
    worker = worker_unit(service)
    daemon = main_pid(service, UNIT)
    [folder] = (service.cgroup / "payload").rglob(worker)
    with memory_cgroup() as group:
        for pid in pids_below(folder):
            (group / "cgroup.procs").write_text(str(pid))
        end = call(service, "bash.exec", command=_HOG, effect="observe")
        assert end["text"] == "ended by SIGKILL (as the kernel does when memory runs out)\n"
        eventually(lambda: "64" in shell(service, "echo 64"), "the next call works")
        service.run(["systemctl", "stop", worker])
    assert main_pid(service, UNIT) == daemon
    assert shell(service, "echo again").strip().endswith("again")
    assert lactl(service, "audit", "verify").status == 0
