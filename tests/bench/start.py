"""How long `systemctl start lightagentd` takes until the daemon has said that it is ready.

In the booted container of tests/e2e, with the product as the package installs it; so it needs root and what
those tests need. The clock runs inside the container, around systemctl(1), which waits for READY=1.
"""

from __future__ import annotations

from tests.bench.rig import show
from tests.e2e.debian import cache_folder, ensure_root
from tests.e2e.machine import Machine
from tests.e2e.product import UNIT, install_product

TARGET_S = 1.5
_TIMED = """
import subprocess, time
began = time.perf_counter()
subprocess.run(["systemctl", "start", "{unit}"], check=True)
print(time.perf_counter() - began)
"""


def run(rounds: int) -> None:
    with Machine(ensure_root(cache_folder())) as machine:
        install_product(machine)
        first_s: list[float] = []
        again_s: list[float] = []
        for _ in range(rounds):
            first_s.append(_start_s(machine))  # makes the history and has the tools described
            machine.run(["systemctl", "stop", UNIT], timeout_s=60)
            again_s.append(_start_s(machine))
            machine.run(["systemctl", "stop", UNIT], timeout_s=60)
            machine.run(["rm", "-rf", "/var/lib/lightagentd"])
    show(f"systemctl start to ready (target: at most {TARGET_S:g})", again_s, "s")
    show("systemctl start to ready, with no state yet", first_s, "s")


def _start_s(machine: Machine) -> float:
    timed = machine.run(["python3", "-c", _TIMED.format(unit=UNIT)], timeout_s=60)
    return float(timed.stdout)
