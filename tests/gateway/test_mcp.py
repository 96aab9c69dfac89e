"""`/mcp` of the gateway: the official Python SDK uses it, and who may not does not."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx

from lightagentd.host.paths import Paths
from lightagentd.mcp_server.request import LEGACY, MODERN, PREFIX
from tests.agents.scripted import until
from tests.gateway.rig import gateway
from tests.prepared import REPOSITORY
from tests.scripted_model import say

META = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientCapabilities": {}}


async def sent(
    http: httpx.AsyncClient, method: str, /, session: str = "", path: str = "/mcp?agent=test", **params: Any
) -> httpx.Response:
    """The answer to a request of a client with a session."""
    headers = {"Mcp-Session-Id": session} if session else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await http.post(path, json=body, headers={"Accept": "application/json", **headers})


async def begun(http: httpx.AsyncClient) -> str:
    """A new session."""
    answer = await sent(http, "initialize", protocolVersion=LEGACY[0], capabilities={}, clientInfo={})
    return str(answer.headers["mcp-session-id"])


async def modern(http: httpx.AsyncClient, name: str, /, header: str = "", **arguments: Any) -> httpx.Response:
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": header or name}
    params = {"name": name, "arguments": arguments, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await http.post("/mcp/test", json=body, headers=headers)


async def test_the_python_sdk_uses_it_twice_at_once(paths: Paths) -> None:
    async with gateway(paths, [say("yes"), say("yes")]) as it:
        url = f"http://127.0.0.1:{it.port}/mcp/test"
        program = [sys.executable, "-m", "tests.gateway.mcp_client", url, await it.token()]
        process = await asyncio.create_subprocess_exec(
            *program, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        found = [json.loads(line) for line in out.splitlines()]
        assert [one["version"] for one in found] == [MODERN, LEGACY[0]]
        for one in found:
            assert {"ask_agent", "file_read"} <= {*one["tools"]}
            assert one["called"][0] is False
            assert one["asked"]["answer"] == "yes"
            assert one["progress"][0].startswith("The turn runs with")
        assert len({one["asked"]["session"] for one in found}) == 2
        (prompt, _) = it.daemon.stored(topic="agent.prompt")
        assert prompt.source


async def test_each_token_has_its_own(paths: Paths) -> None:
    slow = say(*(f"word{number} " for number in range(600)), pause_s=0.05)
    async with gateway(paths, [slow]) as it:
        nobody, one, other, sees = [
            it.over_tcp(token)
            for token in ("", await it.token(), await it.token(), await it.token("inspect"))
        ]
        refused = await sent(nobody, "tools/list")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await nobody.get("/.well-known/oauth-protected-resource/mcp")).json() == {
            "resource": f"http://127.0.0.1:{it.port}/mcp",
            "bearer_methods_supported": ["header"],
        }
        assert (await one.get("/mcp")).status_code == 405
        session = await begun(one)
        assert (await sent(one, "tools/list")).status_code == 400
        assert (await sent(one, "tools/list", session)).json()["result"]["tools"]
        assert (await sent(other, "tools/list", session)).status_code == 404
        assert (await other.delete("/mcp", headers={"Mcp-Session-Id": session})).status_code == 404
        assert (await one.delete("/mcp", headers={"Mcp-Session-Id": session})).status_code == 204
        assert (await sent(one, "tools/list", session)).status_code == 404
        origin = await one.post("/mcp", json={}, headers={"Origin": "http://evil.example"})
        assert origin.status_code == 403
        # A token that may only look does not call.
        session = await begun(sees)
        assert (await sent(sees, "tools/list", session)).json()["result"]["tools"]
        for name, arguments in (("ask_agent", {"prompt": "x"}), ("file_read", {"path": "/etc/hostname"})):
            result = (await sent(sees, "tools/call", session, name=name, arguments=arguments)).json()[
                "result"
            ]
            assert result["_meta"]["org.lightagent1/error"]["code"] == "permission_denied"
        # Headers say what the body says, and errors have their status.
        wrong = await modern(one, "ask_agent", "file_read", prompt="x")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32020)
        assert (await one.post("/mcp", json={"id": 1})).json()["error"]["code"] == -32600
        # Sessions are bounded: one more ends the oldest.
        kept = [await begun(other) for _ in range(17)]
        assert [(await sent(other, "ping", name)).status_code for name in kept[:2]] == [404, 200]
        # A client that hangs up ends what runs for it.
        task = asyncio.create_task(modern(one, "ask_agent", prompt="slow"))
        await until(lambda: it.daemon.model.requests)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: it.daemon.stored(topic="agent.error"))
