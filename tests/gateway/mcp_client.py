"""The official Python SDK as a client of `/mcp`, as a program of its own: it takes a second to import.

    python -m tests.gateway.mcp_client URL TOKEN

Two clients talk at once, in the newest version and in the one before. It prints what each saw as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def saw(url: str, token: str, mode: Literal["auto", "legacy"], both: asyncio.Barrier) -> dict[str, Any]:
    found: dict[str, Any] = {"progress": []}

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        found["progress"].append(message)

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        found["version"] = client.session.protocol_version
        await both.wait()
        found["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        called = await client.call_tool("file_read", {"path": "/etc/hostname"})
        found["called"] = [called.is_error, str(called.content)]
        asked = await client.call_tool("ask_agent", {"prompt": mode}, progress_callback=tell)
        found["asked"] = asked.structured_content
        if mode == "auto":
            async with client.listen(resource_subscriptions=["lightagent://events"]) as subscription:
                await client.call_tool("file_read", {"path": "/etc/hostname"})
                found["updated"] = (await anext(subscription)).__dict__["uri"]
        resources = client.server_capabilities.resources
        found["subscribe"] = resources is not None and resources.subscribe
        await both.wait()
    return found


async def main(url: str, token: str) -> None:
    both = asyncio.Barrier(2)
    for found in await asyncio.gather(saw(url, token, "auto", both), saw(url, token, "legacy", both)):
        print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
