"""What the tests of workers share: a pool's folders, calls, and a look at what runs on the machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker.local import LocalWorkers
from lightagentd.worker.pool import Call, Pool

PATIENCE_S = 60.0
"""How long a test waits for what must come; it is never reached where the code is right."""


@contextmanager
def folders() -> Iterator[Paths]:
    """The folders of a daemon, with a path that a worker of another user may walk down."""
    base = Path(tempfile.mkdtemp(prefix="la-"))
    base.chmod(0o755)
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    for folder in (paths.config / "tools", paths.runtime):
        folder.mkdir(parents=True)
    paths.state.mkdir(mode=0o700)
    try:
        yield paths
    finally:
        shutil.rmtree(base)


def local(pool: Pool) -> LocalWorkers:
    """Where a pool without worker units has its workers from."""
    assert isinstance(pool.source, LocalWorkers)
    return pool.source


def a_call(
    tool: str, action: str, *, effect: Effect, agent: str, timeout_s: float, owner: int = 0, **args: Any
) -> Call:
    return Call(
        call_id=f"call_{uuid.uuid4().hex[:16]}",
        tool=tool,
        action=action,
        args=args,
        agent=agent,
        session="ses_0123456789abcdef",
        effect=effect,
        timeout_s=timeout_s,
        owner=owner,
    )


async def events(
    pool: Pool,
    tool: str,
    action: str,
    /,
    *,
    effect: Effect = Effect.OBSERVE,
    agent: str = "ops",
    timeout_s: float = 30.0,
    owner: int = 0,
    **args: Any,
) -> list[dict[str, Any]]:
    """Everything that one call gives back; the last one is its result."""
    call = a_call(tool, action, effect=effect, agent=agent, timeout_s=timeout_s, owner=owner, **args)
    return [event async for event in pool.call(call)]


async def shell(pool: Pool, command: str, effect: Effect = Effect.OBSERVE, timeout_s: float = 30.0) -> str:
    """What a shell command prints; standard error and a failed status are in it."""
    found = await events(
        pool, "bash", "exec", command=command, effect=effect, timeout_s=timeout_s
    )  # both ends need the effect
    return str(found[-1]["output"])


def marked(marker: str) -> list[int]:
    """The processes, wherever they run, that have `marker` as an argument."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; a zombie has, and goes when its parent, or init, comes to it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


def wait_until(condition: Any, what: str) -> None:
    """Wait, without an event loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def marker() -> str:
    """A number of seconds for sleep(1) that no other process has as its argument."""
    return (
        f"{1000 + int.from_bytes(os.urandom(2), 'big')}.{os.getpid()}{int.from_bytes(os.urandom(3), 'big')}"
    )
