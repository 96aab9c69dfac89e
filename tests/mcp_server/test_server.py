"""The protocol: versions, what is refused, and what comes through standard input."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lightagentd.text.mcp import LEGACY, MODERN, PREFIX
from tests.conftest import DaemonProcess
from tests.mcp_server.talking import Talk
from tests.prepared import LACTL, REPOSITORY, prepared


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2024-11-05"),
        ("2099-01-01", "2025-11-25"),
        ("1999-01-01", "2024-11-05"),
    ],
)
async def test_a_version_is_agreed_on(asked: str, spoken: str) -> None:
    talk = Talk("/nonexistent")
    found = await talk.result("initialize", protocolVersion=asked, capabilities={}, clientInfo={})
    assert found["protocolVersion"] == spoken
    assert found["serverInfo"]["name"] == "lightagentd"


async def test_a_request_may_bring_its_version_instead() -> None:
    talk = Talk("/nonexistent", modern=True)
    found = await talk.result("server/discover")
    assert found["supportedVersions"] == [MODERN]
    assert (found["resultType"], found["cacheScope"]) == ("complete", "private")
    assert found["_meta"][f"{PREFIX}serverInfo"]["name"] == "lightagentd"
    wrong = await talk.error("tools/list", _meta={f"{PREFIX}protocolVersion": "1900-01-01"})
    assert (wrong["code"], wrong["data"]) == (-32022, {"supported": [MODERN], "requested": "1900-01-01"})
    assert (await talk.error("tools/list", _meta={f"{PREFIX}clientCapabilities": None}))["code"] == -32602
    assert (await talk.error("ping"))["code"] == -32601


async def test_listening_is_acknowledged_and_cancelled() -> None:
    async with Talk("/nonexistent", modern=True) as talk:
        number = await talk.begin("subscriptions/listen", notifications={"toolsListChanged": True})
        told = (await talk.sent.get())["params"]
        assert told == {"_meta": {f"{PREFIX}subscriptionId": number}, "notifications": {}}
        await talk.give({"method": "notifications/cancelled", "params": {"requestId": number}})
        assert "result" in await talk.answer("server/discover")


async def test_errors_say_the_code_of_the_daemon() -> None:
    async with Talk("/nonexistent") as talk:
        error = await talk.error("tools/list")
        assert (error["code"], error["data"]["code"]) == (-32603, "daemon_unreachable")
        called = await talk.call("proc_list")
        assert called["isError"]
        assert called["_meta"]["org.lightagent1/error"]["code"] == "daemon_unreachable"


def _line(method: str, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": f"{method} {params}", "method": method, "params": params}
    return json.dumps(message).encode()


BAD = [
    (b'{"jsonrpc": "2.0", "id": 1, "meth', -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": ' + b'"x"' * 3_500_000 + b"}}", -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": ' + b"[" * 1000 + b"]" * 1000 + b"}", -32700),
    (b"\xff\xfe{}", -32700),
    (b'"text"', -32600),
    (b"[" + _line("ping") + b"]", -32600),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": [], "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', -32602),
    (_line("tools/list"), -32602),
    (_line("initialize", protocolVersion=7, capabilities={}), -32602),
    (_line("initialize", protocolVersion=LEGACY[0], capabilities=[]), -32602),
    (_line("initialize", protocolVersion=LEGACY[0], capabilities={}), 0),
    (_line("no/such"), -32601),
    (_line("server/discover"), -32601),
    (_line("tools/call"), -32602),
    (_line("tools/call", name="proc_list", arguments=[]), -32602),
    (_line("tools/call", name="proc_list", _meta="x"), -32602),
    (_line("tools/call", name="no_such"), -32602),
    (_line("prompts/get", name="no-such"), -32602),
    (_line("resources/read", uri="file:///etc/passwd"), -32002),
    (_line("resources/list", cursor="-1"), -32602),
    (_line("completion/complete", ref={"type": "x"}, argument={}), -32602),
    (_line("logging/setLevel", level="loud"), -32602),
    (_line("ping", last=True), 0),
]
"""Lines, and the code of the error that answers each; 0 for a result."""


def test_an_agent_that_is_not_there_ends_the_server(daemon: DaemonProcess) -> None:
    done = daemon.lactl("mcp", "--agent", "opss")
    assert (done.returncode, done.stdout) == (66, "")
    assert "There is no agent 'opss'" in done.stderr


def test_bad_input_gets_its_error_and_the_server_goes_on(daemon: DaemonProcess) -> None:
    lines = b"\n".join(line for line, _ in BAD) + b"\n"
    (theirs, ours), (answers, out) = os.pipe(), os.pipe()
    with Path(os.devnull).open("wb") as err:
        process = prepared().fork(LACTL, ["mcp"], daemon.env, REPOSITORY, (theirs, out, err.fileno()))
    os.close(theirs)
    os.close(out)
    with os.fdopen(ours, "wb", buffering=len(BAD)) as into, os.fdopen(answers, "rb") as back:
        writing = threading.Thread(target=into.write, args=(lines,))
        writing.start()
        found = [json.loads(back.readline()) for _ in BAD]
        writing.join()
        into.close()
        assert (process.wait(10), back.read()) == (0, b"")
    codes = [one["error"]["code"] if "error" in one else 0 for one in found]
    assert sorted(codes) == sorted(code for _, code in BAD)  # requests are answered as they are ready
    assert codes[:10] == [code for _, code in BAD[:10]]
