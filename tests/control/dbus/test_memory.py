"""Memories and profiles on D-Bus: the same operations and errors, and each user has his own."""

from __future__ import annotations

import json
from typing import Any

from lightagentd.host.paths import Paths
from lightagentd.memory.memories import Wanted
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.control.dbus.test_streams import NOBODY, needs_root
from tests.dbus_client import BusClient
from tests.scripted_model import say

MEMORY = "org.lightagent1.Memory"
ERROR = "org.lightagent1.Error"


async def call(client: BusClient, member: str, signature: str = "", *args: Any) -> Any:
    """The first value of the reply, or the name of the error."""
    found = await client.call(ROOT, f"{MEMORY}.{member}", signature, *args)
    if isinstance(found, dict):
        return found["error"][0]
    return found[0] if found else None


@needs_root
async def test_every_operation_is_there_for_each_user_by_himself(paths: Paths) -> None:
    async with (
        serving(paths, [say("the answer")]) as (daemon, address),
        BusClient(address, 0) as root,
        BusClient(address, NOBODY) as nobody,
    ):
        options = {"tags": ["as", ["disk"]], "confidence": ["d", 0.5]}
        kept = await call(nobody, "Remember", "sa{sv}", "The backup disk is sdb", options)
        assert (kept["owner"], kept["state"], kept["tags"]) == (NOBODY, "kept", ["disk"])
        wanted = Wanted(owner=NOBODY, agent="talker", text="proposed", by_agent=True, candidate=True)
        first = await daemon.registry.shared.memories.remember(wanted)
        for member in ("Promote", "Reject", "Forget"):
            for memory in (kept["id"], first.id, "mem_0000000000000000"):
                assert await call(root, member, "s", memory) == f"{ERROR}.MemoryNotFound"
        assert await call(root, "List", "a{sv}", {"state": ["s", "all"]}) == []
        assert await call(root, "Search", "sa{sv}", "disk", {}) == []
        assert await call(root, "Export") == ""
        await call(nobody, "SetProfile", "s", "I am nobody.")
        assert await call(root, "GetProfile") == ""
        assert await call(nobody, "GetProfile") == "I am nobody."
        assert [each["id"] for each in await call(nobody, "Search", "sa{sv}", "disks", {})] == [kept["id"]]
        assert (await call(nobody, "Promote", "s", first.id))["state"] == "kept"
        assert await call(nobody, "Reject", "s", first.id) == f"{ERROR}.Conflict"
        exported = [json.loads(line) for line in (await call(nobody, "Export")).splitlines()]
        assert [each["id"] for each in exported] == [kept["id"], first.id]
        assert await call(nobody, "Forget", "s", kept["id"]) is None
        assert await call(nobody, "Remember", "sa{sv}", "", {}) == f"{ERROR}.InvalidArgument"
