"""Owns a bus name, or waits in the bus's queue while another process owns it."""

from __future__ import annotations

import asyncio
import logging

from lightagentd.bus.connection import Bus
from lightagentd.errors import LightagentError
from lightagentd.host.users import called

BUS = "org.freedesktop.DBus"
_PATH = "/org/freedesktop/DBus"
RETRY_S = 10.0
"""How soon to ask again after the bus refused the name: its policy may be read anew meanwhile."""
_OURS = (1, 4)
"""Answers of RequestName: we own it now, or did already. Otherwise we are in the queue."""
_log = logging.getLogger(__name__)


class BusName:
    """One name on one connection. Call `changed` when the bus reports another owner."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.problem = ""
        """Why we do not own it now, as a sentence; empty when we do."""
        self._bus = bus
        self._name = name
        self._retrying: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Own the name, or wait in its queue. A refusal by the bus becomes `problem`, and is retried."""
        try:
            [answer] = await self._bus.call(BUS, _PATH, BUS, "RequestName", "su", [self._name, 0])
            self._note("" if answer in _OURS else await self._whose())
        except LightagentError as err:
            self._note(f"The bus refuses the name {self._name}: {err.message}")
            if self._retrying is None:
                self._retrying = asyncio.create_task(self._retry(), name="bus name")

    async def changed(self, owner: str) -> None:
        """The owner changed, or is gone. A free name goes to the first in the queue."""
        if owner == self._bus.unique_name:
            self._note("")
        elif owner:
            self._note(await self._whose())

    async def close(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait([self._retrying])

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("%s", problem)
        elif self.problem and not problem:
            _log.info("the bus name %s is ours now", self._name)
        self.problem = problem

    async def _retry(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._retrying = None
        await self.acquire()

    async def _whose(self) -> str:
        """A sentence that says who owns the name."""
        try:
            [owner] = await self._bus.call(BUS, _PATH, BUS, "GetNameOwner", "s", [self._name])
            [said] = await self._bus.call(BUS, _PATH, BUS, "GetConnectionCredentials", "s", [owner])
        except LightagentError:
            who = "another process"
        else:
            who = f"process {said.get('ProcessID')} of {called(said.get('UnixUserID', -1))}"
        return (
            f"The bus name {self._name} belongs to {who}, so D-Bus clients do not reach this daemon. Stop "
            "that process: the name then comes here by itself."
        )
