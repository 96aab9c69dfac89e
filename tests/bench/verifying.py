"""What a worker for change takes to permit a call: by a signature, which it uses up on disk, or by a rule.

Both write a signed record to a socket as journald has one. The time does not include the call.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from lightagentd.signed.keeping import Log
from lightagentd.worker.verifying import Verifier, checked_call
from tests.bench.rig import show
from tests.worker.verified import Verified, verified

CALLS = 50
"""How many calls one round permits."""
TARGET_MS = 2.0
_LINE = {"series": "0" * 16, "number": 1, "expires_us": 1 << 50, "digest": "0" * 64, "call_id": "0" * 21}
RULE = 'decision = "allow"\ntool = "file"\naction = "write"\neven_if_tainted = true\n'


def run(rounds: int) -> None:
    with verified(started=False) as rig:
        rig.rules(RULE)
        verifier = Verifier(
            "ops",
            state=rig.base / "state",
            config=rig.base / "etc",
            approver=rig.base / "approver",
            journal=rig.base / "journal",
        )
        signed: list[float] = []
        ruled: list[float] = []
        synced: list[float] = []
        log = Log(rig.base / "alone")
        with asyncio.Runner() as runner:
            for _ in range(max(1, rounds) * CALLS):
                signed.append(runner.run(_permit(rig, verifier, signed=True)))
                ruled.append(runner.run(_permit(rig, verifier, signed=False)))
                started = time.perf_counter()
                log.add(_LINE)
                synced.append((time.perf_counter() - started) * 1000)
        log.close()
        verifier.close()
    show("a change permitted by a signature", signed, "ms")
    show("a change permitted by a rule", ruled, "ms")
    show("a line of that size on the disk", synced, "ms")
    own = statistics.median(signed) - statistics.median(synced)
    print(f"permit by a signature, without the disk: {own:.2f} ms (target: at most {TARGET_MS:g} ms)")


async def _permit(rig: Verified, verifier: Verifier, *, signed: bool) -> float:
    """Milliseconds."""
    call = rig.write("x")
    wire: dict[str, Any] = call.to_wire("") | {"signed": rig.signed(call) if signed else {}}
    tool = rig.tools["file"]

    async def before() -> dict[str, Any]:
        return {}

    started = time.perf_counter()
    asked = checked_call(wire, "ops")
    await verifier.permit(asked, tool.actions["write"], asked.args, tool, before)
    took_s = time.perf_counter() - started
    rig.records()
    return took_s * 1000
