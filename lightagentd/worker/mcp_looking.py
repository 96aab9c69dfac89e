"""The daemon's side of MCP servers: has a worker look what one offers, and knows which were found changed.

The pool owns one `ServerWorkers`. A server runs in a worker that it has for itself, so what it does to its
process stays with it; where systemd runs the workers, it has a cgroup and a Landlock domain in that of its
effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from lightagentd.errors import TimedOut, WorkerUnavailable
from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import PeerLost
from lightagentd.worker.lanes import WorkerProcess
from lightagentd.worker.source import Whom

LOOK_S = 60.0


class ServerWorkers:
    """`worker` gives a block with a worker, `end` ends one; `kit_for` gives the folder of an agent's kit."""

    def __init__(
        self,
        worker: Callable[[Whom], AbstractAsyncContextManager[WorkerProcess]],
        end: Callable[[WorkerProcess], Awaitable[None]],
        kit_for: Callable[[str, Effect | Place], str],
    ) -> None:
        self._worker, self._end, self._kit_for = worker, end, kit_for
        self._changed: dict[str, str] = {}

    async def look(
        self, server: str, effect: Effect, agent: str, credentials: dict[str, str]
    ) -> dict[str, Any]:
        """What a server offers now: {version, server, tools, resources, prompts}. It is started for that, in
        a worker of this agent and effect, and ended.

        Raises ToolError, ToolNotFound, ConfigError, WorkerUnavailable, TimedOut.
        """
        kit = self._kit_for(agent, effect)
        async with self._worker(Whom.of(agent, effect, 0, f"{server}?")) as worker:
            try:
                async with asyncio.timeout(LOOK_S):
                    reply = await worker.connection.call(
                        "org.lightagent1.WorkerServers.Look", server=server, kit=kit, credentials=credentials
                    )
            except TimeoutError:
                raise TimedOut(f"The MCP server {server} did not say in time what it offers.") from None
            except PeerLost as err:
                raise WorkerUnavailable(f"The worker was lost while it looked at {server}: {err}") from err
            finally:
                await self._end(worker)
        found: dict[str, Any] = reply["offers"]
        return found

    def note(self, server: str, event: dict[str, Any]) -> None:
        """An event of a call, which may say that the server has changed (`toolkit.mcp.tool.CHANGED`)."""
        data, said = event.get("data"), []
        if event["kind"] != "event" or event.get("type") != "changed" or not isinstance(data, dict):
            return
        for key, words in (("tools", "changed after they were approved"), ("new", "nobody has approved")):
            names = data.get(key)
            if isinstance(names, list) and names:
                said.append(f"{', '.join(str(one)[:100] for one in names[:20])}: {words}")
        self._changed[server] = (
            f"Tools of the MCP server {server} are held back: {'; '.join(said)}."
            f" Look at them: lactl mcp show {server}"
        )

    def forget(self) -> None:
        """The files are read again."""
        self._changed.clear()

    def problems(self) -> list[str]:
        """The servers that were found changed, as sentences."""
        return list(self._changed.values())
