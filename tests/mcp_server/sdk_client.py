"""The official Python SDK as a client of `lactl mcp`, as a program of its own: it takes a second to import.

    python -m tests.mcp_server.sdk_client SOCKET FILE

It talks in the newest version and in the one before, and prints what it saw of each as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from typing import Any, Literal

from mcp import Client, MCPDeprecationWarning, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp_types import (
    ElicitRequestParams,
    ElicitResult,
    ResourceUpdatedNotification,
    TextContent,
    TextResourceContents,
)

EVENTS = "lightagent://events"


async def saw(socket: str, file: str, mode: Literal["auto", "legacy"]) -> dict[str, Any]:
    found: dict[str, Any] = {"asked": [], "progress": []}

    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        found["asked"].append(params.message)
        return ElicitResult(action="accept", content={"allow": True})

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        found["progress"].append(message)

    updated = asyncio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification) and message.params.uri == EVENTS:
            updated.set()

    command = [sys.executable, "-m", "lightagentd.cli.main", "mcp", "--socket", socket]
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(server, mode=mode, elicitation_callback=elicit, message_handler=hear) as client:
        found["version"] = client.session.protocol_version
        found["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        asked = {"prompt": "check memory"} if mode == "auto" else {"prompt": "and?"}
        answer = await client.call_tool("ask_agent", asked, progress_callback=tell)
        found["answer"] = answer.structured_content or {
            "session": (answer.meta or {})["org.lightagent1/error"]["session"]
        }
        written = await client.call_tool("file_write", {"path": file, "content": mode})
        found["written"] = not written.is_error
        wrong = await client.call_tool("proc_info", {})
        assert isinstance(wrong.content[0], TextContent)
        found["wrong"] = [wrong.is_error, wrong.content[0].text]
        found["prompts"] = [prompt.name for prompt in (await client.list_prompts()).prompts]
        prompt = await client.get_prompt("disk-check", {"request": "look"})
        found["prompt"] = prompt.messages[0].role
        resources = (await client.list_resources()).resources
        (text,) = (await client.read_resource(resources[1].uri)).contents
        assert isinstance(text, TextResourceContents)
        found["resource"] = text.text
        found["templates"] = len((await client.list_resource_templates()).resource_templates)
        if mode == "auto":
            async with client.listen(resource_subscriptions=[EVENTS, f"{EVENTS}/none"]) as subscription:
                found["listened"] = subscription.honored.resource_subscriptions
                await client.call_tool("proc_list", {})
                found["updated"] = [(await anext(subscription)).__dict__["uri"]]
        else:
            await client.subscribe_resource(EVENTS)
            await client.call_tool("proc_list", {})
            await updated.wait()
            await client.unsubscribe_resource(EVENTS)
            found["updated"] = [EVENTS]
    return found


async def main(socket: str, file: str) -> None:
    print(json.dumps(await saw(socket, file, "auto")))
    print(json.dumps(await saw(socket, file, "legacy")))


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # subscribe_resource is of the older versions
    asyncio.run(main(*sys.argv[1:]))
