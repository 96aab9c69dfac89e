"""Models on D-Bus: the same operations and errors as over Varlink, and a test ends with whoever wants it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.control.dbus.test_streams import NOBODY, needs_root
from tests.dbus_client import BusClient
from tests.scripted_model import Stream, call, chunk

MODELS = "org.lightagent1.Models"
ERROR = "org.lightagent1.Error"
REPORT = call("report_word", {"word": "lantern", "number": 7}, text="Light is fast.")
TABLE = {"openai": {"models": {"x": {"name": "X", "limit": {"context": 64_000}}}}}


async def asked(client: BusClient, member: str, signature: str = "", *args: Any) -> Any:
    """The first value of the reply, or the name of the error."""
    found = await client.call(ROOT, f"{MODELS}.{member}", signature, *args)
    if isinstance(found, dict):
        return found["error"][0]
    return found[0] if found else None


@needs_root
async def test_every_operation_is_there_and_only_administrators_refresh(paths: Paths) -> None:
    async with (
        serving(paths, [REPORT]) as (_, address),
        BusClient(address, 0) as root,
        BusClient(address, NOBODY) as nobody,
    ):
        listed = await asked(nobody, "List", "a{sv}", {})
        (used,) = [each for each in listed if each["model"].startswith("openai/")]
        assert used["state"] == "ready"
        assert "context_tokens" not in used  # what is not known is left out
        assert await asked(nobody, "Show", "s", "nobody/x") == f"{ERROR}.NotFound"
        assert isinstance(await asked(nobody, "Providers"), list)
        data = json.dumps(TABLE).replace('"x"', json.dumps(used["model"].partition("/")[2]))
        assert await asked(nobody, "Refresh", "s", data) == f"{ERROR}.PermissionDenied"
        assert (await asked(root, "Refresh", "s", data))["models"] == 1
        assert await asked(root, "Refresh", "s", "{}") == f"{ERROR}.InvalidArgument"
        shown = await asked(nobody, "Show", "s", used["model"])
        assert (shown["context_tokens"], shown["facts_from"]) == (64_000, "refreshed")
        report = await asked(nobody, "Test", "a{sv}", {"agent": ["s", "talker"]})
        assert {check["name"]: check.get("seen") for check in report["checks"]}["tool call"] is True
        assert await asked(nobody, "Test", "a{sv}", {"model": ["s", "vllm/x"]}) == f"{ERROR}.PermissionDenied"


@needs_root
async def test_a_test_ends_with_whoever_wants_it(paths: Paths) -> None:
    hanging = Stream(pieces=[chunk({"content": "Light"})], hang=True)
    async with serving(paths, [hanging]) as (daemon, address):
        meters = daemon.registry.shared.ledger.meters
        async with BusClient(address, NOBODY) as nobody:
            asking = asyncio.create_task(asked(nobody, "Test", "a{sv}", {"agent": ["s", "talker"]}))
            await until(lambda: any(meter.asks for meter in meters))
            os.kill(nobody.pid, signal.SIGKILL)
            await until(lambda: not meters)
            await asyncio.gather(asking, return_exceptions=True)
        calls = Filter(topic="agent.llm_response")
        await until(lambda: daemon.history.queries.select(calls, limit=10))
        assert [event.type for event in daemon.history.queries.select(calls, limit=10)] == ["failed"]
