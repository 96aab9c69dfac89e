"""What it costs the daemon that telemetry follows its events, where 10,000 of them happen each second.

The events of a real turn are stored again and again; then the service, a process of its own, sends what it
finds in them to a receiver. What the daemon takes meanwhile, less what it takes when nobody follows, is
divided by the time in which so many events happen.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightagentd.events.history import History
from lightagentd.events.model import Event, EventContext, NewEvent
from lightagentd.telemetry import position
from lightagentd.telemetry.spans import done_of
from tests.bench.processes import used_ns
from tests.bench.rig import Rig, rig, show
from tests.bench.step import STEPS, one_turn
from tests.conftest import REPOSITORY, write
from tests.telemetry.receiver import OtlpReceiver

RATE = 10_000
"""Events a second."""
TARGET = 5.0
"""Percent of one processor."""
EVENTS = 60_000
_AT_ONCE = 1_000
_IDLE_S = 3.0


def run(rounds: int) -> None:
    with rig(STEPS) as ready:
        with ready.daemon.client() as client:
            one_turn(client)
        ready.daemon.stop()
        last_seq, wanted = asyncio.run(_again_and_again(ready.daemon.paths.history))
        ready.daemon.start()
        shares: list[float] = []
        own: list[float] = []
        for _ in range(rounds):
            before = used_ns(ready.daemon.pid)
            time.sleep(_IDLE_S)
            idle = (used_ns(ready.daemon.pid) - before) / _IDLE_S / 1e9
            cpu_s, own_s, took_s = asyncio.run(_follow(ready, last_seq, wanted))
            shares.append((cpu_s - idle * took_s) * RATE / EVENTS * 100)
            own.append(own_s * RATE / EVENTS * 100)
    print(f"telemetry: {wanted} spans of {EVENTS} events; nobody following, the daemon takes {idle:.1%}")
    show(f"telemetry, the service's own, with its start, at {RATE} events/s", own, "%")
    show(f"telemetry, the daemon's share at {RATE} events/s (target: at most {TARGET:g})", shares, "%")


async def _again_and_again(path: Path) -> tuple[int, int]:
    """Store the events of the turn until there are enough; gives the last number, and how many spans they
    make.
    """
    history = History(path)
    await history.start()
    turn = [one for one in history.queries.range() if one.trace_id]
    stored: list[Event] = []
    first = history.head_seq + 1
    while history.head_seq - first + 1 < EVENTS:
        room = EVENTS - (history.head_seq - first + 1)
        many = [_copy(turn[at % len(turn)], at // len(turn)) for at in range(min(_AT_ONCE, room))]
        stored += await history.append(*many)
    await history.close()
    return stored[-1].seq, sum(done_of(one.to_dict()) is not None for one in stored)


def _copy(event: Event, number: int) -> NewEvent:
    of = {name: getattr(event, name) for name in EventContext.__dataclass_fields__}
    who = replace(EventContext(**of), trace_id=f"{event.trace_id}-{number}")
    return NewEvent(
        topic=event.topic, type=event.type, data=event.data or {}, source=event.source, context=who
    )


async def _follow(ready: Rig, last_seq: int, wanted: int) -> tuple[float, float, float]:
    """Processor time of the daemon and of the service, and the time, until all is sent; in seconds."""
    paths = ready.daemon.paths
    state = paths.state / "telemetry.json"
    first_seq = last_seq - EVENTS
    position.store(state, position.Position(traces=first_seq, metrics=first_seq))
    async with OtlpReceiver() as receiver:
        write(paths.config / "lightagentd.toml", f'[telemetry]\nendpoint = "{receiver.endpoint}"\n')
        began, before = time.perf_counter(), used_ns(ready.daemon.pid)
        service = subprocess.Popen(_command(paths.config, paths.socket, state), cwd=REPOSITORY)
        try:
            while len(receiver.spans) < wanted:
                assert service.poll() is None
                await asyncio.sleep(0.05)
            assert receiver.faults == []
            took_s = time.perf_counter() - began
            return (used_ns(ready.daemon.pid) - before) / 1e9, used_ns(service.pid) / 1e9, took_s
        finally:
            service.terminate()
            service.wait(10)


def _command(config: Path, socket: Path, state: Path) -> Sequence[str]:
    module = [sys.executable, "-m", "lightagentd.telemetry.service"]
    return [*module, f"--folder={config}", f"--socket={socket}", f"--state={state}"]
