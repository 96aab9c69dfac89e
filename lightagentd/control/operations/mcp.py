"""The operations on MCP servers: which there are, and what one offers now. None changes a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.agents.tool_calls.given import credentials_of
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.errors import ConfigError, Conflict, LimitExceeded, NotFound
from lightagentd.host.paths import content_folders
from lightagentd.policy.operation import Operation
from lightagentd.toolkit.mcp.server_file import (
    MOST_TOOLS,
    ServerFile,
    digest,
    read_approved,
    read_server,
)

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Mcp(Operations, interface="org.lightagent1.Mcp"):
    """The MCP servers whose tools agents have. They come from mcp.d/ of the configuration and from mcp/ of
    kits: no method changes them.
    """

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._paths, self._pool = access, runtime.paths, runtime.pool
        self._content, self._panic = runtime.registry.shared.content, runtime.panic

    @method("List", returns="servers")
    async def listed(self, caller: Caller) -> list[api.McpServer]:
        """The server files, also those that cannot be used."""
        await self._access.admit(caller, Operation.INSPECT)
        found = await asyncio.to_thread(lambda: list(self._files()))
        return [self._described(kit, path, server, problem) for kit, path, server, problem in found]

    @method("Look", returns="offers")
    async def look(self, caller: Caller, name: str, *, agent: str = "") -> api.McpOffers:
        """Start a server, or reach it, and say what it offers beside what was approved. Then it is ended.

        The agent is the one whose kit it is in, or whose worker for change it is listed in.
        """
        await self._access.admit(caller, Operation.ADMINISTER)
        self._panic.check()
        files = await asyncio.to_thread(lambda: list(self._files()))
        one = next((one for one in files if one[1].stem == name and (not one[0] or one[0] == agent)), None)
        if one is None:
            raise NotFound(
                f"There is no MCP server {name[:60]!r}.", suggestion="See: lactl mcp list", field="name"
            )
        kit, path, server, problem = one
        if server is None:
            raise ConfigError(f"{path}: {problem}.", suggestion="Mend it, then: lactl reload")
        self._check_name(kit, path)
        credentials = {} if kit else await credentials_of(name)
        seen = await self._pool.servers.look(name, server.listed_in, agent, credentials)
        approved = await asyncio.to_thread(read_approved, path)
        return _offers(name, path, server, seen, approved)

    def _files(self) -> Iterator[tuple[str, Path, ServerFile | None, str]]:
        """Each file with its kit, and what it says or what is wrong with it. Blocks."""
        kits = {kit: [folder / "mcp"] for kit, folder in self._content.kit_folders().items()}
        for kit, folders in {"": content_folders("mcp.d", self._paths), **kits}.items():
            for path in sorted(path for folder in folders for path in folder.glob("*.toml")):
                try:
                    yield kit, path, read_server(path), ""
                except ConfigError as err:
                    yield kit, path, None, err.message

    def _check_name(self, kit: str, path: Path) -> None:
        """Raises Conflict for a server whose tools nobody could have."""
        tool = self._content.toolbox.tools.get(path.stem)
        if not kit and tool is not None and tool.path != str(path):
            raise Conflict(
                f"There is another tool {path.stem!r}: {tool.path}.",
                suggestion="Give the server another name.",
                field="name",
            )

    def _described(self, kit: str, path: Path, server: ServerFile | None, problem: str) -> api.McpServer:
        tool = self._content.toolbox_of(kit).tools.get(path.stem)
        if tool is None and not kit:
            tool = self._content.toolbox.tools.get(path.stem)  # some agents alone have it
        if not problem and (tool is None or tool.path != str(path)):
            problem = (
                f"another tool has its name: {tool.path}" if tool is not None else "lactl reload reads it"
            )
        return api.McpServer(
            kit=kit,
            name=path.stem,
            path=str(path),
            reached="" if server is None else server.url or " ".join(server.command),
            agents=[] if server is None else list(server.agents),
            functions=len(tool.actions) if tool is not None and not problem else 0,
            problem=problem or (tool.problem if tool is not None else ""),
        )


def _offers(
    name: str, path: Path, server: ServerFile, seen: dict[str, Any], approved: dict[str, Any] | None
) -> api.McpOffers:
    """Raises LimitExceeded for too many tools."""
    offered = {str(one.get("name")): one for one in seen["tools"]}
    wanted = {tool: one for tool, one in offered.items() if server.takes(tool)}
    if len(wanted) > MOST_TOOLS:
        raise LimitExceeded(
            f"The MCP server {name} offers {len(wanted)} tools, and {MOST_TOOLS} are the most.",
            suggestion=f"Choose from them in {path}: only = [...] or exclude = [...]",
        )
    before = {one["name"]: one for one in approved["tools"]} if approved is not None else {}
    tools = []
    for tool in dict.fromkeys([*offered, *before]):
        told, was = offered.get(tool), before.get(tool)
        state = (
            "gone"
            if told is None
            else "unwanted"
            if tool not in wanted
            else "new"
            if was is None
            else "approved"
            if digest(told) == digest(was)
            else "changed"
        )
        effect = server.effect_of(tool).value
        tools.append(api.McpTool(name=tool, effect=effect, state=state, told=told, approved=was))
    approval = {"tools": [*wanted.values()], "resources": seen["resources"], "prompts": seen["prompts"]}
    about = seen["server"] if isinstance(seen["server"], dict) else {}
    return api.McpOffers(
        name=name,
        path=str(path),
        version=str(seen["version"]),
        server=" ".join(str(about[key])[:200] for key in ("name", "version") if about.get(key)),
        tools=tools,
        resources=bool(seen["resources"]),
        prompts=bool(seen["prompts"]),
        approval=approval,
        digest=digest(approval),
        in_force=approved is not None and digest(approved) == digest(approval),
    )
