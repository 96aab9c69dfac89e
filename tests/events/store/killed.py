"""A compaction that ends itself with `kill -9`: before or in the step that its arguments name."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from lightagentd.events.history import History
from lightagentd.events.store import compacting, exchange, layout
from lightagentd.host import renaming
from tests.events.stored import note


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _before(module: Any, name: str, *, after: bool = False) -> None:
    real = getattr(module, name)

    def dying(*args: Any, **kwargs: Any) -> None:
        if after:
            real(*args, **kwargs)
        _die()

    setattr(module, name, dying)


def _prepare(stage: str, *, atomic: bool) -> None:
    if not atomic:
        renaming.exchange = lambda one, other: False
    if stage in ("copy", "follow"):
        _before(compacting, "_follow", after=stage == "follow")
    elif stage == "finish":
        _before(compacting, "_compare")
    elif stage == "made":
        _before(compacting, "exchange")
    elif stage == "swap" and atomic:
        _before(renaming, "exchange")
    elif stage == "swap":
        real = Path.rename

        def rename(self: Path, target: Path) -> Path:
            if self.name.endswith(".compacted"):
                _die()
            return real(self, target)

        Path.rename = rename  # type: ignore[method-assign,assignment]
    elif stage == "swapped":
        _before(exchange, "sync_folder")


async def _copy(source: Path, target: Path) -> None:
    program = "import sys; from lightagentd.events.store.compacting import main; sys.exit(main())"
    argv = [sys.executable, "-c", program, str(source), str(target), str(os.getpid())]
    child = await asyncio.create_subprocess_exec(*argv)
    assert await child.wait() == 0


async def _compact(path: Path, stage: str) -> None:
    history = History(path)
    await history.start()
    await history.append(note(1000))
    if stage == "reopened":
        _before(layout.Environment, "reserve")
    await compacting.compact(history, _copy)


def main() -> None:
    path, stage, atomic = sys.argv[1:]
    _prepare(stage, atomic=atomic == "atomic")
    asyncio.run(_compact(Path(path), stage))
