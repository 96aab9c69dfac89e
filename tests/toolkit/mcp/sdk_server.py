"""A server made with the official Python SDK: over standard streams, or over HTTP on a port, new and old."""

from __future__ import annotations

import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from starlette.applications import Starlette

server = MCPServer("sdk")


@server.tool()
async def add(a: int, b: int, context: Context) -> int:
    """Add two numbers."""
    await context.report_progress(1, 2, "adding")
    return a + b


@server.resource("note://one")
def note() -> str:
    """Give a note."""
    return "the note"


@server.prompt()
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Greet {who}"


def main(port: int) -> None:
    new, old = server.streamable_http_app(), server.sse_app()
    app = Starlette(routes=[*new.routes, *old.routes], lifespan=new.router.lifespan_context)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(int(sys.argv[1]))
    else:
        server.run()
