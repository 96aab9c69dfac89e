"""1,000 sessions with 1,000 messages each: how long starting, listing, opening one and its first step take.

The history itself writes the store, in large transactions, as a daemon would have filled it over a year.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lightagentd.agents.sessions.session import Session, new_record
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.client.blocking import Client
from lightagentd.events.history import History, NewEvent
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message
from tests.bench.rig import show
from tests.conftest import REPOSITORY, DaemonProcess, write

SESSIONS, MESSAGES = 1000, 1000
OWNERS_UID = 0
TEXT = "The file system of / has 12 GiB left, and the journal takes 900 MiB of it. " * 3
LIST_S, OPEN_S, START_S = 0.2, 0.1, 3.0


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="la-bench-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        began = time.perf_counter()
        sessions = asyncio.run(fill(paths.history, SESSIONS, MESSAGES))
        size_bytes = (paths.history / "data.mdb").stat().st_blocks * 512
        print(
            f"{SESSIONS} sessions with {MESSAGES} messages each: {size_bytes >> 20} MiB, "
            f"written in {time.perf_counter() - began:.0f} s"
        )
        with _model() as url:
            write(
                paths.config / "agent/bench/AGENT.md",
                f"---\nmodel: openai/scripted\nbase_url: {url}\nlimits: {{max_steps: 2}}\n---\n",
            )
            write(paths.config / "lightagentd.toml", "[limits]\ncompact_at = 0.95\n")
            _measure(paths, sessions, max(5, rounds))


def _measure(paths: Paths, sessions: list[str], rounds: int) -> None:
    daemon = DaemonProcess(paths)
    starts: list[float] = []
    try:
        for _ in range(rounds):
            began = time.perf_counter()
            daemon.start()
            starts.append(time.perf_counter() - began)
            if len(starts) < rounds:
                daemon.stop()
        show(f"start with {SESSIONS} sessions to the first answer (target: {START_S:g})", starts, "s")
        with daemon.client() as client:
            listed = [_timed(lambda: client.call("Sessions.List")) for _ in range(rounds)]
            show(f"Sessions.List of {SESSIONS} (target: {LIST_S:g})", listed, "s")
            some = sessions[:rounds]
            opened = [_timed(partial(_open, client, one)) for one in some]
            show(f"opening one: Sessions.Get and Messages (target: {OPEN_S:g})", opened, "s")
            first = [_timed(partial(_prompt, client, one)) for one in some]
            show(f"the first turn in one of {MESSAGES} messages, all of them read", first, "s")
            show("the next turn in it", [_timed(partial(_prompt, client, one)) for one in some], "s")
            forks = [_timed(partial(client.call, "Sessions.Fork", session=one)) for one in some]
            show(f"Sessions.Fork of {MESSAGES} messages", forks, "s")
            delete = partial(client.call, "Sessions.Delete", confirmed=True)
            gone = [_timed(partial(delete, session=one)) for one in some]
            show(f"Sessions.Delete of {MESSAGES} messages", gone, "s")
    finally:
        daemon.close()


def _open(client: Client, session: str) -> None:
    assert client.call("Sessions.Get", session=session)["session"]["id"] == session
    assert len(client.call("Sessions.Messages", session=session, limit=100)["messages"]) == 100


def _prompt(client: Client, session: str) -> None:
    answer = client.call("Manager.Ask", agent="bench", session=session, text="And now?")["answer"]
    assert answer["session"] == session


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def fill(path: Path, sessions: int, messages: int) -> list[str]:
    """Write a history with so many sessions of so many messages; gives the ids."""
    history = History(path)
    await history.start()
    made: list[str] = []
    try:
        for number in range(sessions):
            session = Session(new_record("bench", OWNERS_UID, f"Session {number}"), history)
            with session.context():
                created = NewEvent(topic="session.created", type="created", data={"title": "bench"})
                said = [
                    message_event(Message(role="assistant" if at % 2 else "user", content=f"{at}: {TEXT}"))
                    for at in range(messages)
                ]
            await history.append(created, *said, changes=(session.record.change(),))
            made.append(session.id)
    finally:
        await history.close()
    return made


@contextlib.contextmanager
def _model() -> Iterator[str]:
    """A model server that answers at once, in a process of its own; gives its address."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.scripted_model", "0", "0"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(10)
