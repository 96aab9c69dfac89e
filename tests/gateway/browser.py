"""`useChat` of `@ai-sdk/react` in Chromium, with the page of docs/examples/ai-sdk: `make browser`.

No part of `make test`: the browser and the packages cost more than all other tests of the gateway. Needs
npm, node and Chromium (`CHROMIUM` names its program); `AI_SDK` may name other packages than the page's own.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, PROBE, TOML, lines
from tests.conftest import REPOSITORY, write
from tests.gateway.rig import gateway
from tests.scripted_model import Fault, call, say

PAGE = REPOSITORY / "docs" / "examples" / "ai-sdk"
DRIVER = Path(__file__).with_suffix(".mjs")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def built(folder: Path) -> None:
    """The page in a folder, with its packages."""
    shutil.copytree(PAGE, folder, ignore=shutil.ignore_patterns("node_modules", "package-lock.json"))
    packages = ["npm", "install", "--ignore-scripts", "--no-save", "playwright-core"]
    for command in ([*packages, *os.environ.get("AI_SDK", "").split()], ["npm", "run", "build"]):
        subprocess.run(command, cwd=folder, check=True, timeout=300)


async def test_a_page_talks_to_an_agent(paths: Paths) -> None:
    folder, out = paths.state.parent / "page", paths.state.parent / "lines"
    await asyncio.to_thread(built, folder)
    adds = call("probe_add", {"path": str(out)})
    words = say(*(f"word{number} " for number in range(200)), pause_s=0.02)
    answers = [say("Hello ", "there"), say("Hello again"), adds, say("It is changed"), adds, say("I did not")]
    answers += [call("human_ask", {"question": "Which disk?"}), say("sda it is"), words]
    write(paths.config / "tools" / "probe.py", PROBE)
    write(paths.config / "lightagentd.toml", TOML)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    origin = f"http://127.0.0.1:{server.server_port}"
    toml = f'origins = ["{origin}"]\non_disconnect = "continue"'
    try:
        async with gateway(paths, [*answers, Fault(status=401)], front=FRONT, toml=toml) as it:
            token = await it.token("inspect", "prompt", "approve")
            where = {"gateway": f"http://127.0.0.1:{it.port}", "agent": "test", "token": token, "chat": "one"}
            chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
            argv = ["node", str(DRIVER), f"{origin}/index.html#{urlencode(where)}", str(chromium)]
            driver = await asyncio.create_subprocess_exec(*argv, f"{folder}/package.json")
            async with asyncio.timeout(120):
                assert await driver.wait() == 0
            assert lines(out) == ["ran"]
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
