"""What an MCP server costs a tool call: calls of a warm server, and calls of a tool in Python, in turns."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from lightagentd.client.blocking import Client
from lightagentd.host.paths import Paths
from lightagentd.toolkit.mcp.server_file import approved_path
from tests.bench.rig import show
from tests.conftest import DaemonProcess, write
from tests.toolkit.mcp.servers import install

TARGET_MS = 1.5
CALLS = 50
_NATIVE = """
from lightagentd.tool import Args, Context, Result, Tool, action

class TextArgs(Args):
    text: str

class Native(Tool):
    "Says a text again."
    name = "native"

    @action(taints=True)
    async def echo(self, ctx: Context, args: TextArgs) -> Result:
        "Say a text again."
        return Result(output=args.text)
"""


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="la-bench-") as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        write(paths.config / "tools/native.py", _NATIVE)
        write(paths.config / "agent/bench/AGENT.md", "---\nmodel: runbook\n---\n")
        server = install(paths, "modern")
        daemon = DaemonProcess(paths)
        try:
            daemon.start()
            with daemon.client() as client:
                offers = client.call("org.lightagent1.Mcp.Look", name="small")["offers"]
                approved_path(server).write_text(json.dumps(offers["approval"]))
                client.call("org.lightagent1.Manager.Reload")
                native, mcp = _measured(client, rounds)
        finally:
            daemon.close()
    show("call of a tool in Python through the API, policy and history", native, "ms")
    show("the same of a warm MCP server on standard streams", mcp, "ms")
    added = statistics.median(one - other for one, other in zip(mcp, native, strict=True))
    print(f"mcp, added to a native call: {added:.2f} ms (target: at most {TARGET_MS})")


def _measured(client: Client, rounds: int) -> tuple[list[float], list[float]]:
    """The milliseconds of a call, the median of each round."""
    native: list[float] = []
    mcp: list[float] = []
    for number in range(rounds + 1):
        one = [(_echo_ms(client, "native"), _echo_ms(client, "small")) for _ in range(CALLS)]
        if number:  # the first round warms both up
            native.append(statistics.median(first for first, _ in one))
            mcp.append(statistics.median(second for _, second in one))
    return native, mcp


def _echo_ms(client: Client, tool: str) -> float:
    started = time.perf_counter()
    last: dict[str, object] = {}
    for reply in client.stream(
        "org.lightagent1.Tools.Call", agent="bench", tool=tool, action="echo", args={"text": "x"}
    ):
        last = reply["event"]
    assert last["type"] == "done", json.dumps(last)
    return (time.perf_counter() - started) * 1000
