"""The runs of flows as objects on D-Bus, and their progress as signals to their owner."""

from __future__ import annotations

import asyncio
import os

from lightagentd.host.paths import Paths
from tests.conftest import write
from tests.control.dbus.on_the_bus import GET_ALL, MANAGED, ROOT, serving
from tests.control.dbus.test_streams import NOBODY, needs_root
from tests.dbus_client import BusClient
from tests.scripted_model import say

RUN = "org.lightagent1.Run"
FLOWS = "org.lightagent1.Flows"
FLOW = """
description = "Ask"
agent = "talker"
[inputs.what]
[[step]]
name = "ask"
ask = "Go on with {inputs.what}?"
[[step]]
name = "think"
depends_on = ["ask"]
prompt = "Think of {ask.output}"
"""


@needs_root
async def test_a_run_is_an_object_that_tells_its_owner_of_its_progress(paths: Paths) -> None:
    write(paths.config / "flows" / "ask.toml", FLOW)
    async with (
        serving(paths, [say("thought")]) as (daemon, address),
        BusClient(address, os.geteuid()) as me,
        BusClient(address, NOBODY) as other,
    ):
        await me.call(ROOT, MANAGED)
        await other.call(ROOT, MANAGED)
        [run] = await me.call(ROOT, f"{FLOWS}.Run", "sa{sv}", "ask", {"inputs": ["s", '{"what": "it"}']})
        path = f"{ROOT}/runs/{run['id'].replace('_', '_5f')}"
        await me.do("wait", "InterfacesAdded", RUN, 1)
        [known] = await me.call(path, GET_ALL, "s", RUN)
        assert (known["Flow"], known["Owner"], known["Inputs"]) == ("ask", os.geteuid(), '{"what": "it"}')
        async with asyncio.timeout(60):
            while not (known := (await me.call(path, GET_ALL, "s", RUN))[0])["Waits"]:
                await asyncio.sleep(0.02)
        [found] = known["Waits"]
        await me.call(ROOT, "org.lightagent1.Inputs.Answer", "ss", found, "yes")
        await me.do("wait", "PropertiesChanged", '"success"', 1)
        [shown] = await me.call(path, f"{RUN}.Show")
        assert [(one["name"], one["output"]) for one in shown["steps"]] == [
            ("ask", "yes"),
            ("think", "thought"),
        ]
        assert path not in (await other.call(ROOT, MANAGED))[0]
        assert not [one for one in await other.do("signals") if "runs" in str(one)]
        assert daemon.flows.stored.record(run["id"]).state == "success"
