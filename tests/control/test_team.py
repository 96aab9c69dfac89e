"""Events, messages and transfers over Varlink, over D-Bus and with lactl: the same answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dbus_next.signature import Variant

from lightagentd.bus.connection import connect
from lightagentd.client.aio import AsyncClient
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.cli.conftest import Finished, environment, finish
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.scripted_model import Answer, call, say

SESSIONS = "org.lightagent1.Sessions"


def script(body: dict[str, Any]) -> Answer:
    told = str(body["messages"])
    if "A message of the agent" in told or "You are the agent ops on" in told:
        return say("heard")
    if any(one["role"] == "tool" for one in body["messages"]):
        return say("sent")
    return call("message_parent", {"text": "3 errors"}) if "backup" in told else say("plain")


async def lactl(paths: Paths, *words: str) -> Finished:
    env = environment(LIGHTAGENT_SOCKET=str(paths.socket))
    return await asyncio.to_thread(finish, words, b"", env)


async def test_events_messages_and_transfers_are_the_same_everywhere(paths: Paths) -> None:
    async with (
        serving(paths, script) as (daemon, address),
        AsyncClient(paths.socket, timeout_s=60) as client,
        connect(address) as bus,
    ):
        given = [{"role": "user", "content": "before"}]
        options = {"content": "the backup failed", "agent": "talker", "max_steps": 3}
        over_varlink = (await client.call("Sessions.SendEvent", **options, initial_messages=given))["handled"]
        message = {name: Variant("s", one) for name, one in given[0].items()}
        optional = {
            "agent": Variant("s", "talker"),
            "max_steps": Variant("x", 3),
            "initial_messages": Variant("av", [Variant("a{sv}", message)]),
        }
        args = ("sa{sv}", ("the backup failed", optional))
        (over_dbus,) = await bus.call("org.lightagent1", ROOT, SESSIONS, "SendEvent", *args, 60.0)
        told = await lactl(paths, "event", "talker", "the", "backup", "failed", "--max-steps=3")
        by_lactl = dict(zip(("session", "trace_id"), told.out.split("\t"), strict=True))
        assert over_varlink["parent"] == over_dbus["parent"]
        sessions = [one["session"] for one in (over_varlink, over_dbus, by_lactl)]
        assert len({*sessions}) == 3
        agents = daemon.registry.agents.values()
        for session in sessions:
            await client.call("Sessions.Wait", session=session.strip())
        await until(lambda: not any(agent.turns_running or agent.turns_queued for agent in agents))
        async with asyncio.timeout(60):
            while any(one["waits"] for one in (await client.call("Sessions.Mail"))["letters"]):
                await asyncio.sleep(0.02)
        letters = (await client.call("Sessions.Mail"))["letters"]
        assert [one["text"] for one in letters] == ["3 errors"] * 3
        assert {one["session"] for one in letters} == {one.strip() for one in sessions}
        (same,) = await bus.call("org.lightagent1", ROOT, SESSIONS, "Mail", "a{sv}", ({},), 60.0)
        assert same == letters
        listed = json.loads((await lactl(paths, "messages", "--json")).out)
        assert listed == letters
        assert "3 errors" in (await lactl(paths, "messages", over_dbus["parent"])).out
        parent = over_varlink["parent"]
        found = await client.call("Sessions.Transfer", session=parent, agent="ops")
        assert found["session"]["holder"] == "ops"
        (back,) = await bus.call(
            "org.lightagent1", ROOT, SESSIONS, "Transfer", "ss", (parent, "talker"), 60.0
        )
        assert back["holder"] == ""
        assert (await lactl(paths, "sessions", "transfer", parent, "ops")).status == 0
        refused = await lactl(paths, "sessions", "transfer", parent, "nosuch")
        assert (refused.status, "agent 'nosuch'" in refused.err) == (66, True)
