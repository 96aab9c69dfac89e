"""Whoever calls on the bus is the caller of what comes of it, in whatever task the daemon works it off."""

from __future__ import annotations

import json

from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.control.dbus.on_the_bus import MANAGER, ROOT, serving
from tests.control.dbus.test_streams import NOBODY, needs_root
from tests.dbus_client import BusClient
from tests.scripted_model import call, say

SESSIONS = "org.lightagent1.Sessions"


@needs_root
async def test_the_caller_of_a_turn_is_who_asked_for_it_on_the_bus(paths: Paths) -> None:
    script = [call("proc_list", {"limit": 1}), say("one"), say("two"), say("three")]
    async with serving(paths, script) as (daemon, address):

        def of_topic(topic: str) -> list[Event]:
            return daemon.history.queries.select(Filter(topic=topic), limit=100)

        async with BusClient(address, NOBODY) as nobody, BusClient(address, 0) as root:
            await nobody.call(ROOT, f"{MANAGER}.Ask", "ssa{sv}", "talker", "first", {})
            [created] = of_topic("session.created")
            options = {"session": ["s", created.session]}
            await root.call(ROOT, f"{SESSIONS}.Prompt", "sa{sv}", "second", options)
            await until(lambda: len([one for one in of_topic("session.turn") if one.type == "done"]) == 2)
            await nobody.call(ROOT, f"{MANAGER}.Ask", "ssa{sv}", "talker", "third", {})
            await root.call(ROOT, f"{SESSIONS}.Rename", "ss", created.session, "a name")
        by_prompt = {
            (event.data or {})["text"]: {
                one.caller for one in daemon.history.queries.select(Filter(trace=event.trace_id), limit=100)
            }
            for event in of_topic("agent.prompt")
        }
        assert by_prompt == {"first": {NOBODY}, "second": {0}, "third": {NOBODY}}
        assert [event.caller for event in of_topic("session.renamed")] == [0]
        assert created.caller == NOBODY
        assert {event.caller for event in of_topic("daemon")} == {None}, json.dumps(
            [event.to_dict() for event in of_topic("daemon")]
        )
