"""`/mcp` of the gateway: the official Python SDK uses it, and who may not does not."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx

from lightagentd.gateway.mcp.sessions import OF_ONE
from lightagentd.host.paths import Paths
from lightagentd.text.mcp import LEGACY, MODERN, PREFIX
from tests.agents.scripted import until
from tests.gateway.rig import Gateway, gateway
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


async def test_mcp(paths: Paths) -> None:
    slow = say(*(f"word{number} " for number in range(600)), pause_s=0.05)
    async with gateway(paths, [say("yes"), say("yes"), slow, slow]) as it:
        url = f"http://127.0.0.1:{it.port}/mcp/test"
        program = [sys.executable, "-m", "tests.gateway.mcp_client", url, await it.token()]
        process = await asyncio.create_subprocess_exec(
            *program, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        one = it.over_tcp(await it.token())
        await _only_with_a_token(it)
        await _sessions_are_of_one_token(one, it.over_tcp(await it.token()))
        await _one_that_looks_does_not_call(it.over_tcp(await it.token("inspect")))
        await _bad_requests(one)
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        _check_what_the_sdk_saw([json.loads(line) for line in out.splitlines()])
        await _hanging_up_ends_a_turn(it, one, 1)
        await _hanging_up_ends_a_turn(it, it.http, 2)


def _check_what_the_sdk_saw(found: list[dict[str, Any]]) -> None:
    assert [one["version"] for one in found] == [MODERN, LEGACY[0]]
    assert found[0]["updated"] == "lightagent://events"
    assert [one["subscribe"] for one in found] == [True, False], "nothing is sent outside of requests"
    for one in found:
        assert {"ask_agent", "file_read"} <= {*one["tools"]}
        assert one["called"][0] is False
        assert one["asked"]["answer"] == "yes"
        assert one["progress"][0].startswith("The turn runs with")
    assert len({one["asked"]["session"] for one in found}) == 2


async def _only_with_a_token(it: Gateway) -> None:
    nobody = it.over_tcp()
    refused = await sent(nobody, "tools/list")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (await sent(it.over_tcp("la_wrong"), "tools/list")).status_code == 401
    assert (await nobody.get("/.well-known/oauth-protected-resource/mcp")).json() == {
        "resource": f"http://127.0.0.1:{it.port}/mcp",
        "bearer_methods_supported": ["header"],
    }


async def _sessions_are_of_one_token(one: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    session = await begun(one)
    named = {"Mcp-Session-Id": session}
    assert (await sent(one, "tools/list", session)).json()["result"]["tools"]
    assert (await sent(other, "tools/list", session)).status_code == 404
    assert (await other.delete("/mcp", headers=named)).status_code == 404
    assert (await one.delete("/mcp", headers=named)).status_code == 204
    assert (await sent(one, "tools/list", session)).status_code == 404
    # They are bounded: one more ends the one that was used longest ago.
    kept = [await begun(other) for _ in range(OF_ONE)]
    await sent(other, "ping", kept[0])
    kept.append(await begun(other))
    assert [(await sent(other, "ping", name)).status_code for name in kept[:3]] == [200, 404, 200]


async def _one_that_looks_does_not_call(sees: httpx.AsyncClient) -> None:
    session = await begun(sees)
    assert (await sent(sees, "tools/list", session)).json()["result"]["tools"]
    for name, arguments in (("ask_agent", {"prompt": "x"}), ("file_read", {"path": "/etc/hostname"})):
        answer = await sent(sees, "tools/call", session, name=name, arguments=arguments)
        assert answer.json()["result"]["_meta"]["org.lightagent1/error"]["code"] == "permission_denied"


async def _bad_requests(one: httpx.AsyncClient) -> None:
    assert (await one.get("/mcp")).status_code == 405
    assert (await sent(one, "tools/list")).status_code == 400  # no session
    assert (await one.post("/mcp", json={"id": 1})).json()["error"]["code"] == -32600
    assert (await one.post("/mcp", json={}, headers={"Origin": "http://evil.example"})).status_code == 403
    answer = await modern(one, "ask_agent", "file_read", prompt="x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    begins = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    answer = await one.post("/mcp", json=begins, headers={"MCP-Protocol-Version": MODERN})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
    answer = await modern(one, "ask", "=?base64?YXNr?=")
    assert (answer.status_code, answer.json()["error"]["data"]["code"]) == (200, "tool_not_found")


async def _hanging_up_ends_a_turn(it: Gateway, one: httpx.AsyncClient, ended: int) -> None:
    asked = len(it.daemon.model.requests)
    task = asyncio.create_task(modern(one, "ask_agent", prompt="slow"))
    await until(lambda: len(it.daemon.model.requests) > asked)
    beside = await modern(one, "file_read", path="/etc/hostname")  # with the same id
    assert (beside.json()["id"], beside.json()["result"].get("isError")) == (1, None)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: len(it.daemon.stored(topic="agent.error")) == ended)
