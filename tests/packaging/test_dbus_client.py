"""The D-Bus client of org.lightagent1(5), run as it stands there: it loses no signal."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from lightagentd.host.paths import Paths
from tests.control.dbus.on_the_bus import serving
from tests.scripted_model import say

from .test_man import _CHARACTERS


async def test_the_client_of_the_page_gets_every_event_and_the_answer(paths: Paths, generated: Path) -> None:
    page = (generated / "man" / "org.lightagent1.5").read_text()
    [client] = re.findall(r"^\.EX\n(import asyncio\n.*?)^\.EE$", page, re.DOTALL | re.MULTILINE)
    for sequence, char in _CHARACTERS.items():
        client = client.replace(sequence, char)
    async with serving(paths, [say("unused")]) as (_, address):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            client,
            env={**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": address},
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await process.communicate()
    types = [line.partition(" ")[0] for line in told.decode().splitlines()]
    assert types[:3] == ["queued", "started", "tool_call"]
    assert process.returncode == 0
    assert told.decode().count("\ndone ") == 2, "the event, and then the state of the turn that is over"
