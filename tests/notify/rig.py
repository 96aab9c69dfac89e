"""The service of notifications in this process, before a daemon whose agent asks for approvals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.config.configuration import Config, load
from lightagentd.host.paths import Paths
from lightagentd.notify.service import Service
from tests.agents.scripted import until
from tests.conftest import write

QUICK = "interval_s = 0.02\nbatch_s = 0\nhealth_s = 86400\n"


def configured(paths: Paths, toml: str, section: str = QUICK, more: str = "") -> Config:
    """The configuration with these destinations."""
    write(paths.config / "lightagentd.toml.d" / "30-notify.toml", f"[notify]\n{section}\n{toml}\n{more}\n")
    return load(paths.config)[0]


@contextlib.asynccontextmanager
async def notifying(
    paths: Paths, config: Config, clock: Callable[[], float] = time.time
) -> AsyncIterator[Service]:
    """The service, once it follows the daemon."""
    runtime = paths.runtime.with_name("lightagent-away")
    runtime.mkdir(exist_ok=True)
    service = Service(config, paths.state / "notify.json", control=paths.socket, runtime=runtime, clock=clock)
    task = asyncio.create_task(service.run())
    try:
        await until(lambda: service._caught_up.is_set() or task.done())
        yield service
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


async def call(paths: Paths, method: str, **parameters: Any) -> dict[str, Any]:
    """A call on the daemon's own socket."""
    async with AsyncClient(paths.socket) as client:
        return await client.call(method, **parameters)
