"""One soak: models, daemon and people, and what is found wrong after it.

What is left over is told by comparing two moments at which nothing runs and every agent was just restarted,
so that no model's connections are kept: before the first of the counted turns, and after the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lightagentd.client.aio import AsyncClient
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.soak.answers import SILENCE_S
from tests.soak.books import Books
from tests.soak.inside import paths_of, window_of
from tests.soak.measures import MOST_GROWTH, WARM_TURNS, Memory, descriptors
from tests.soak.people import Person, write_up

KINDS = {"chat": "openai", "responses": "openai-responses", "messages": "anthropic"}
"""The agents of the soak, each of which speaks another dialect."""
_WARMING = 10
"""Turns of each session before the first measures are taken: workers have started, and modules are loaded."""
_PAUSE_EVERY = 500
"""After so many turns everybody rests, and the daemon's memory is measured."""
_REST_S, _LOOK_S = 20.0, 0.25
"""How long the daemon may take to come to rest, and how often it is looked at."""
_TOML = """
[limits]
max_queue = 1000
"""
_PROVIDER = """
[models.providers.{name}]
kind = "{kind}"
base_url = "{url}/v1"
idle_timeout_s = {silence_s}
total_timeout_s = 3
max_retries = 2
max_retry_s = 2
context_tokens = 8000
"""


@dataclass(kw_only=True)
class Left:
    """What the daemon has while nothing runs."""

    tasks: Counter[str]
    descriptors: Counter[str]


@dataclass(kw_only=True)
class Report:
    """What came of a soak. `counted` turns took `seconds`."""

    counted: int
    seconds: float
    books: Books
    memory: Memory
    before: Left
    after: Left
    problems: list[str]


class SoakedDaemon(DaemonProcess):
    """The daemon with its window, and with malloc(3) as its unit sets it."""

    def __init__(self, base: Path) -> None:
        super().__init__(paths_of(base), {"MALLOC_MMAP_THRESHOLD_": "1048576"})
        self._base = base

    def spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.inside", str(self._base)],
                cwd=REPOSITORY,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


async def soak(
    base: Path,
    *,
    turns: int,
    sessions: int,
    rate: float,
    seed: str,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run it. The folder is the caller's; `say` hears how far it is."""
    books, memory = Books(), Memory()
    with contextlib.ExitStack() as stack:
        _define(base, stack.enter_context(_models(seed, rate)))
        daemon = SoakedDaemon(base)
        stack.callback(daemon.close)
        await asyncio.to_thread(daemon.start)
        crowd = _Crowd(daemon, books, sessions, seed)
        writing = asyncio.create_task(write_up(daemon.paths, books))
        try:
            warming = min(_WARMING * sessions, turns // 2)
            await crowd.live(range(warming))
            before = await _at_rest(daemon, base, None)
            began = time.monotonic()
            for first in range(warming, turns, _PAUSE_EVERY):
                last = min(first + _PAUSE_EVERY, turns)
                await crowd.live(range(first, last))
                await _look(daemon, base)  # which collects garbage
                memory.take(last, daemon.pid)
                say(f"{last} turns, {time.monotonic() - began:.0f} s")
            seconds = time.monotonic() - began
            after = await _at_rest(daemon, base, before)
            await _written(books, turns, writing)
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
    found = [*books.problems(turns), *left_over(before, after), *_grown(memory)]
    return Report(
        counted=turns - warming,
        seconds=seconds,
        books=books,
        memory=memory,
        before=before,
        after=after,
        problems=found,
    )


class _Crowd:
    """All people of a soak."""

    def __init__(self, daemon: DaemonProcess, books: Books, sessions: int, seed: str) -> None:
        agents = list(KINDS)
        self._people = [
            Person(daemon.paths, agents[number % len(agents)], books, f"{seed}/{number}")
            for number in range(sessions)
        ]

    async def live(self, turns: range) -> None:
        """Have them take these turns, whoever is free the next one."""
        taken = iter(turns)
        async with asyncio.TaskGroup() as tasks:
            for person in self._people:
                tasks.create_task(person.live(taken))


@contextlib.contextmanager
def _models(seed: str, rate: float) -> Iterator[str]:
    """The models' server; gives its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.soak.answers", seed, str(rate)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def _define(base: Path, url: str) -> None:
    """Write the configuration and the agents."""
    toml = _TOML
    for name, kind in KINDS.items():
        toml += _PROVIDER.format(name=name, kind=kind, url=url, silence_s=SILENCE_S)
        front = f"model: {name}/scripted\ntools: [file]\nlimits: {{max_steps: 12}}"
        write(base / "etc" / "agent" / name / "AGENT.md", f"---\n{front}\n---\nBe brief.\n")
    write(base / "etc" / "lightagentd.toml", toml)


async def _at_rest(daemon: DaemonProcess, base: Path, expected: Left | None) -> Left:
    """What the daemon has once nothing changes any more; what comes to rest late may do so for a while."""
    async with AsyncClient(daemon.paths.socket) as client:
        for name in KINDS:
            await client.call("Agents.Restart", name=name)
    last = await _look(daemon, base)
    for _ in range(round(_REST_S / _LOOK_S)):
        await asyncio.sleep(_LOOK_S)
        now = await _look(daemon, base)
        if now == last and expected in (None, now):
            return now
        last = now
    return last


async def _look(daemon: DaemonProcess, base: Path) -> Left:
    reader, writer = await asyncio.open_unix_connection(window_of(base))
    tasks = Counter(json.loads(await reader.readline()))
    writer.close()
    await writer.wait_closed()
    return Left(tasks=tasks, descriptors=descriptors(daemon.pid))


async def _written(books: Books, turns: int, writing: asyncio.Task[None]) -> None:
    """Wait until the history has told how so many turns ended, or tells nothing any more."""
    for _ in range(round(_REST_S / _LOOK_S)):
        if books.ended >= turns or writing.done():
            return
        await asyncio.sleep(_LOOK_S)


def left_over(before: Left, after: Left) -> Iterator[str]:
    for what, early, late in (
        ("tasks", before.tasks, after.tasks),
        ("descriptors", before.descriptors, after.descriptors),
    ):
        if more := late - early:
            yield f"{what} are left: {dict(more)}"


def _grown(memory: Memory) -> Iterator[str]:
    growth = memory.growth()
    if growth is not None and growth > MOST_GROWTH:
        yield f"memory grew by {growth:.1%} from turn {WARM_TURNS} on (MiB: {memory.curve()})"
