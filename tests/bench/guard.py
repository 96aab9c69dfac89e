"""Compares ratios with the recorded ones: `make bench BENCH=guard`, and with RECORD=1 records them anew.

Each figure is the CPU time of some work to that of bare work beside it, in turns, so that neither the speed
of the machine nor its other work counts. A median that is `TOLERANCE` above the recorded one fails the run.
What improved is recorded in the commit that improved it, in `guard.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightagentd.events.audit.verification import verify
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store.layout import EVENTS
from tests.bench import history, peers
from tests.bench.model_server import model_server
from tests.bench.peer_programs.rounds import INSTRUCTIONS
from tests.bench.rig import daemon_with

RECORDED = Path(__file__).with_name("guard.json")
TOLERANCE = 0.15
LEAST_ROUNDS = 9
EVENTS_VERIFIED = 20_000
TURNS = 3
"""Turns of one round: of a shorter one the clock of CPU time would say little."""

Ratios = Mapping[str, Sequence[float]]
"""For each figure its ratio in each round."""


def run(rounds: int) -> None:
    """Exits with status 1 when a figure got worse."""
    rounds = max(LEAST_ROUNDS, rounds)
    measured: dict[str, float] = {}
    for figures in (_appends(rounds), _verify(rounds), _turns(rounds)):
        for name, ratios in figures.items():
            measured[name] = statistics.median(ratios)
            print(f"guard, {name}: {measured[name]:.3g} ({min(ratios):.3g} to {max(ratios):.3g})", flush=True)
    if os.environ.get("RECORD"):
        RECORDED.write_text(json.dumps({name: round(ratio, 3) for name, ratio in measured.items()}, indent=1))
        print(f"guard: recorded in {RECORDED.name}")
        return
    found = worse(json.loads(RECORDED.read_text()), measured)
    print("\n".join(found) or "guard: nothing got worse")
    if found:
        sys.exit(1)


def worse(recorded: Mapping[str, float], measured: Mapping[str, float]) -> list[str]:
    """A sentence about each figure that got worse, or is recorded and was not measured, or the reverse."""
    found = []
    for name in sorted(recorded.keys() | measured.keys()):
        then, now = recorded.get(name), measured.get(name)
        if then is None or now is None:
            found.append(f"guard, {name}: {'not recorded' if then is None else 'not measured'}")
        elif now > then * (1 + TOLERANCE):
            found.append(f"guard, {name}: recorded {then:.3g}, measured {now:.3g} ({now / then - 1:+.0%})")
    return found


def _appends(rounds: int) -> Ratios:
    with _folder() as base:
        return asyncio.run(_appended(base, rounds))


async def _appended(base: Path, rounds: int) -> Ratios:
    ours, bare = await history.opened(base / "ours"), history.Bare(base / "bare")
    found: dict[str, list[float]] = {}
    number = 0
    try:
        for at in range(rounds + 1):
            for name in ("append, 10 a commit", "append, 64 at once"):
                events = [history.event_of(number + each) for each in range(history.APPENDERS * history.EACH)]
                number += len(events)
                shared = name == "append, 64 at once"
                puts = history.puts_of(history.in_turns(events) if shared else events)
                used = time.process_time()
                await (history.group(ours, events) if shared else history.ten_each(ours, events))
                ours_s, used = time.process_time() - used, time.process_time()
                bare.timed(puts, history.APPENDERS if shared else history.COMMIT)
                if at:  # the first round warms both up
                    found.setdefault(name, []).append(ours_s / (time.process_time() - used))
    finally:
        await ours.history.close()
        bare.close()
    return found


def _verify(rounds: int) -> Ratios:
    """The chain's verification to a walk that only hashes."""
    with _folder() as base:
        asyncio.run(history.build(base / "history", EVENTS_VERIFIED))
        stored = StoredHistory(base / "history")
        try:
            ratios = []
            for _ in range(rounds):
                ours = _cpu_s(lambda: verify(stored.environment))
                ratios.append(ours / _cpu_s(lambda: _hash_all(stored.environment)))
        finally:
            stored.close()
    return {"verify": ratios}


def _hash_all(environment: Any) -> None:
    with environment.reading() as txn, txn.cursor(environment.db[EVENTS]) as cursor:
        for _, record in cursor:
            hashlib.sha256(record).digest()


def _cpu_s(work: Callable[[], object]) -> float:
    used = time.process_time()
    work()
    return time.process_time() - used


def _turns(rounds: int) -> Ratios:
    """Steps and relayed chunks of a daemon with its workers to those of a bare loop with the same calls."""
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(model_server())
        urls = peers.urls_of(server)
        daemon = stack.enter_context(daemon_with(urls, INSTRUCTIONS, all_tools=("steps",)))
        ours = peers.Ours(name="lightagentd", daemon=daemon, client=stack.enter_context(daemon.client()))
        bodies = {word: peers.bodies_of(ours, server, word) for word in peers.WORK}
        bare = stack.enter_context(peers.bare_loop(bodies, urls))
        for at in range(rounds + 2):
            for word, offered in peers.WORK.items():
                took = [sum(one.work(word).cpu_s for _ in range(TURNS)) for one in (ours, bare)]
                if at >= 2:
                    name = f"step, {offered} offered" if offered else "relayed chunks"
                    found.setdefault(name, []).append(took[0] / took[1])
    return found


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """In memory: the work of a disk is no matter of ours."""
    with tempfile.TemporaryDirectory(prefix="la-bench-", dir="/dev/shm") as folder:
        yield Path(folder)
