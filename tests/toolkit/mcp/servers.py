"""Puts MCP servers into the folders of a daemon, for tests, and approves them as an administrator does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.toolkit.mcp.server_file import approved_path
from lightagentd.worker.pool import Pool

SMALL = Path(__file__).with_name("small_server.py")
TOOLS = """
[tools]
echo = "observe"
count = "observe"
"Odd-Name.2" = "observe"
where = "observe"
outside = "observe"
progress = "observe"
die = "observe"
hang = "observe"
long = "observe"
escapes = "observe"
fail = "observe"
ask = "observe"
turn = "observe"
flood = "reach"
"""


def install(paths: Paths, *words: str, name: str = "small", more: str = "", tools: str = TOOLS) -> Path:
    """Write the file of the small server; gives it. Nothing of it is approved."""
    folder = paths.config / "mcp.d"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SMALL, folder / "small_server.py")
    command = [sys.executable, "-I", str(folder / "small_server.py"), *words]
    path = folder / f"{name}.toml"
    path.write_text(f"command = {json.dumps(command)}\ntimeout_s = 20\n{more}{tools}")
    return path


async def approve(pool: Pool, path: Path, effect: Effect = Effect.OBSERVE, **credentials: str) -> None:
    """Approve what a server offers, and have the next call read it."""
    seen = await pool.servers.look(path.stem, effect, "", credentials)
    approval = {key: seen[key] for key in ("tools", "resources", "prompts")}
    approved_path(path).write_text(json.dumps(approval))
    await pool.end_idle_now()
