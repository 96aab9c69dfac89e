"""A daemon with a window: `python -m tests.soak.inside BASE` serves from BASE's folders, as lightagentd does.

On the socket `BASE/window.sock` it tells which tasks it has, as JSON in one line, to each who connects. It
collects garbage before that: what is in a cycle is not left over.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections import Counter
from pathlib import Path

from lightagentd.daemon.serving import serve
from lightagentd.events.journal import log as journal_log
from lightagentd.host.paths import Paths


def window_of(base: Path) -> Path:
    return base / "window.sock"


def paths_of(base: Path) -> Paths:
    return Paths(config=base / "etc", state=base / "state", runtime=base / "run")


async def _tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    gc.collect()
    own = asyncio.current_task()
    tasks = Counter(_name(task) for task in asyncio.all_tasks() if task is not own)
    writer.write(json.dumps(dict(sorted(tasks.items()))).encode() + b"\n")
    await writer.drain()
    writer.close()


def _name(task: asyncio.Task[object]) -> str:
    """What a task runs; its own name may have a number in it."""
    coro = task.get_coro()
    return str(getattr(coro, "__qualname__", coro))


async def _main(base: Path) -> None:
    async with await asyncio.start_unix_server(_tell, window_of(base)):
        await serve(paths_of(base))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, handlers=[journal_log.handler()])
    asyncio.run(_main(Path(sys.argv[1])))
