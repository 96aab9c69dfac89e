"""Calls of the daemon, each on a connection of its own, for an editor that makes several at once."""

from __future__ import annotations

from typing import Any

from lightagentd.cli.authorize import ASK_TIMEOUT_S
from lightagentd.cli.options import CALL_TIMEOUT_S, Settings
from lightagentd.client.aio import AsyncClient


class Daemon:
    """The daemon that the command line names. polkit may ask for a password on the desktop: there is no
    terminal.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def client(self) -> AsyncClient:
        """A client, not yet connected."""
        asks = self._settings.ask_password
        timeout_s = ASK_TIMEOUT_S if asks else CALL_TIMEOUT_S
        return AsyncClient(self._settings.socket or None, timeout_s=timeout_s, interactive=asks)

    async def call(self, method: str, /, **parameters: Any) -> Any:
        """Make a call and return the one parameter of its reply, or None. Raises the errors of the client."""
        async with self.client() as client:
            reply = await client.call(method, **parameters)
        return next(iter(reply.values()), None)
