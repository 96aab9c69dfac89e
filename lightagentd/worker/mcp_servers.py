"""The worker's side of MCP servers: looks what one offers now, whatever was approved (see `toolkit.mcp`)."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd.errors import LightagentError, ToolError
from lightagentd.tool import Effect
from lightagentd.varlink.server import error_reply

_OBSERVES = (
    "It was started in the sandbox of observe: no network, and only its own home to write to. What npx or uvx"
    " would fetch must be installed first. --listed-in (effect in its file) names another sandbox."
)


class ServersInterface(VarlinkInterface, name="org.lightagent1.WorkerServers"):
    """The MCP servers of one worker for the daemon."""

    def __init__(
        self,
        path_of: Callable[[str, str], Path],
        block: Callable[[], AbstractAsyncContextManager[Path]],
    ) -> None:
        """`path_of` gives the file of a server, by its name and the folder of a kit; `block` a folder to
        write to, and the end of all that was started in it.
        """
        self._path_of, self._block = path_of, block

    @varlinkmethod(return_parameter="offers", allow_foreign=True)
    async def Look(self, *, server: str, kit: str, credentials: Any) -> Any:
        """Start a server or reach it, and give {version, server, tools, resources, prompts}."""
        from lightagentd.text.jsonrpc import Lost, RpcError
        from lightagentd.toolkit.mcp.connection import Connection
        from lightagentd.toolkit.mcp.results import clean
        from lightagentd.toolkit.mcp.server_file import read_server
        from lightagentd.toolkit.mcp.tool import transport_of

        try:
            file = read_server(self._path_of(server, kit))
            async with self._block() as folder:
                connection = Connection(transport_of(server, file, credentials, folder))
                try:
                    await connection.start()
                    found = await connection.offers()
                finally:
                    await connection.close()
        except LightagentError as err:
            raise error_reply(err) from err
        except (RpcError, Lost, OSError, TimeoutError) as err:
            why = clean(str(err))[:2000].rstrip(".") or "it did not answer in time"
            hint = _OBSERVES if file.command and file.listed_in is Effect.OBSERVE else ""
            failed = ToolError(f"The MCP server {server} cannot be used: {why}.", suggestion=hint)
            raise error_reply(failed) from err
        return found
