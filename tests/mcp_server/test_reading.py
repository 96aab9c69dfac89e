"""Skills as prompts, sessions and events as resources, and words to complete."""

from __future__ import annotations

import asyncio
import json

from lightagentd.client.blocking import Client
from lightagentd.mcp_server.watching import MOST
from lightagentd.text.jsonrpc import BUSY
from lightagentd.text.mcp import PREFIX
from tests.mcp_server.talking import Talk


async def test_skills_are_prompts(socket: str) -> None:
    async with Talk(socket) as talk:
        prompts = {one["name"]: one for one in (await talk.result("prompts/list"))["prompts"]}
        found = await talk.result("prompts/get", name="disk-check", arguments={"request": "look at /var"})
        ref = {"type": "ref/prompt", "name": "disk-check"}
        asked = {"ref": ref, "argument": {"name": "request", "value": "FULL"}}
        completed = (await talk.result("completion/complete", **asked))["completion"]
    assert prompts["disk-check"]["description"] == found["description"]
    said = found["messages"][0]["content"]["text"]
    assert said.startswith("Use this skill for: look at /var")
    assert "# disk-check" in said
    assert completed["values"]
    assert all("full" in value.lower() for value in completed["values"])


async def test_a_client_hears_of_resources_that_change_until_it_wants_no_more(socket: str) -> None:
    with Client(socket) as client:
        found = client.call("Sessions.Create", agent="ops", title="one")["session"]["id"]
        uri, other = f"lightagent://sessions/{found}", "lightagent://events"
        updated = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
        async with Talk(socket) as old, Talk(socket, modern=True) as new:
            assert await old.result("resources/subscribe", uri=uri) == {}
            number = await new.begin(
                "subscriptions/listen", notifications={"resourceSubscriptions": [uri, f"{uri}0"]}
            )
            meta = {f"{PREFIX}subscriptionId": number}
            told = {"_meta": meta, "notifications": {"resourceSubscriptions": [uri]}}
            assert (await new.sent.get())["params"] == told
            for title in ("two", "three"):
                await asyncio.to_thread(client.call, "Sessions.Rename", session=found, title=title)
                assert await old.sent.get() == updated
                assert (await new.sent.get())["params"] == {"_meta": meta, "uri": uri}
            await old.result("resources/unsubscribe", uri=uri)
            await new.give({"method": "notifications/cancelled", "params": {"requestId": number}})
            await asyncio.to_thread(client.call, "Sessions.Rename", session=found, title="four")
            for number in range(MOST):
                await old.result("resources/subscribe", uri=f"lightagent://traces/t{number}")
            assert (await old.error("resources/subscribe", uri=other))["code"] == BUSY
            many = {"resourceSubscriptions": (MOST + 1) * [other]}
            assert (await new.error("subscriptions/listen", notifications=many))["code"] == BUSY
            assert (await old.error("resources/subscribe", uri="lightagent://x"))["code"] == -32002
            assert (old.notices, new.notices) == ([], [])


async def test_sessions_and_events_are_resources(socket: str) -> None:
    with Client(socket) as client:
        events = [reply["event"] for reply in client.sessions_prompt(agent="ops", text="xyzzy", new=True)]
    session = events[-1]["session"]  # it ended without an answer
    uri = f"lightagent://sessions/{session}"
    async with Talk(socket) as talk:
        listed = [one["uri"] for one in (await talk.result("resources/list"))["resources"]]
        assert listed[:2] == ["lightagent://events", uri]
        (told,) = (await talk.result("resources/read", uri=uri))["contents"]
        assert (told["mimeType"], "xyzzy" in told["text"]) == ("text/markdown", True)
        (listing,) = (await talk.result("resources/read", uri=f"{uri}/events"))["contents"]
        stored = json.loads(listing["text"])
        assert {event["session"] for event in stored} == {session}
        turn = f"lightagent://traces/{stored[-1]['trace_id']}"
        (one_turn,) = (await talk.result("resources/read", uri=turn))["contents"]
        assert {event["trace_id"] for event in json.loads(one_turn["text"])} == {stored[-1]["trace_id"]}
        ref = {"type": "ref/resource", "uri": "lightagent://sessions/{session}"}
        asked = {"ref": ref, "argument": {"name": "session", "value": session[:8]}}
        assert session in (await talk.result("completion/complete", **asked))["completion"]["values"]
        error = await talk.error("resources/read", uri="lightagent://sessions/ses_0")
        assert (error["code"], error["data"]["code"]) == (-32002, "session_not_found")
    async with Talk(socket, modern=True) as talk:
        assert (await talk.error("resources/read", uri="lightagent://sessions/ses_0"))["code"] == -32602
        templates = await talk.result("resources/templates/list")
        assert templates["resourceTemplates"][0]["uriTemplate"].endswith("sessions/{session}")
