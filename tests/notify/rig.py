"""The service of notifications in this process, before a daemon whose agent asks for approvals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.config.configuration import Config, load
from lightagentd.events.types.trigger import TriggerFailed
from lightagentd.host.paths import Paths
from lightagentd.notify.service import Service
from tests.agents.asking import add, prepare
from tests.agents.scripted import Scripted, until
from tests.conftest import write
from tests.left import descriptors
from tests.notify.receivers import Receiver
from tests.scripted_model import Answer, call, say

QUICK = "interval_s = 0.02\nbatch_s = 0\nhealth_s = 86400\n"


@dataclass(kw_only=True)
class Rig:
    """A daemon and a receiver, which tests share. `says` is what the model answers next."""

    paths: Paths
    receiver: Receiver
    it: Scripted
    says: list[Answer]

    def begin(self, toml: str = "", section: str = QUICK, more: str = "") -> Config:
        """Forget what was received, and configure destinations."""
        for kept in (self.receiver.replies, self.receiver.requests, self.receiver.faults, self.says):
            kept.clear()
        self.receiver.taken.clear()
        (self.paths.state / "notify.json").unlink(missing_ok=True)
        return configured(self.paths, toml or ntfy(self.receiver), section, more)

    async def ask(self, **args: Any) -> str:
        """Have the agent ask for an approval; its id."""
        self.says[:] = [call("probe_add", add(prepare(self.paths), **args)), say("done")]
        questions = self.it.daemon.registry.shared.asked.approvals.questions
        before = {one.id for one in questions.all()}
        await self.it.agent.prompt(await self.it.session(), "go")
        await until(lambda: [one for one in questions.open_ones() if one.id not in before])
        return next(one.id for one in questions.open_ones() if one.id not in before)

    async def fail(self, text: str = "it broke") -> None:
        """Something that people are told of without an answer to it: a trigger's agent that came to none."""
        failed = TriggerFailed(code="timeout", message=text, trigger="disk", firing="f1")
        await self.it.daemon.history.append(failed.event())

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A call on the daemon's own socket."""
        async with AsyncClient(self.paths.socket) as client:
            return await client.call(method, **parameters)

    def notifying(
        self, config: Config, clock: Callable[[], float] = time.time
    ) -> contextlib.AbstractAsyncContextManager[Service]:
        return notifying(self.paths, config, clock)


@contextlib.asynccontextmanager
async def settling() -> AsyncIterator[None]:
    """For what a test opens in a loop that it shares: the loop runs until all of it is closed."""
    before = descriptors().keys()
    yield
    await until(lambda: not (descriptors().keys() - before))


def ntfy(receiver: Receiver, more: str = "") -> str:
    return f'[notify.to.phone]\nkind = "ntfy"\nurl = "{receiver.base}/topic"\n{more}\n'


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
