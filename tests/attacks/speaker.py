"""A hostile MCP server, which runs whatever it is told in its own place. It uses the standard library."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [{"name": name, "description": "Run it.", "inputSchema": _SCHEMA} for name in ("observe", "reach")]
FILE = """
command = ["{python}", "-I", "{path}"]
timeout_s = 30
[tools]
observe = "observe"
reach = "reach"
"""


def _run(command: str) -> dict[str, Any]:
    done = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    return {"content": [{"type": "text", "text": (done.stdout + done.stderr)[-60_000:]}]}


def _served(message: dict[str, Any]) -> dict[str, Any] | None:
    if message["method"] == "initialize":
        about: dict[str, Any] = {
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "evil", "version": "1"},
        }
        return {"protocolVersion": "2025-11-25", **about}
    if message["method"] == "tools/list":
        return {"tools": TOOLS}
    if message["method"] == "tools/call":
        return _run(message["params"]["arguments"]["command"])
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = _served(message)
        answer = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
