"""`ask_agent` with a model that asks a person, wants a change, or is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.host.paths import Paths
from tests.agents.asking import TOML
from tests.agents.questions import QUESTION, ask
from tests.agents.scripted import Scripted, scripted, until
from tests.mcp_server.talking import FORM, Talk, text_of
from tests.scripted_model import call, say

FILE = "asked.txt"


@pytest.fixture
async def asking(paths: Paths) -> AsyncIterator[Scripted]:
    file = {"path": str(paths.state.parent / FILE), "content": "x"}
    script = [ask(choices=["sda", "sdb"]), call("file_write", file, call_id="c2"), say("done")]
    async with scripted(paths, script, toml=TOML) as test:
        yield test


def talk_to(paths: Paths, **options: Any) -> Talk:
    return Talk(str(paths.socket), agent="test", **options)


async def test_forms_ask_what_its_turn_asks(paths: Paths, asking: Scripted) -> None:
    async with talk_to(paths, capabilities=FORM) as talk:
        number = await talk.begin("tools/call", name="ask_agent", arguments={"prompt": "go"})
        asked = await talk.read()
        assert asked["params"]["message"] == QUESTION
        assert asked["params"]["requestedSchema"]["properties"]["answer"]["enum"] == ["sda", "sdb"]
        await talk.give({"id": asked["id"], "result": {"action": "accept", "content": {"answer": "sdb"}}})
        asked = await talk.read()
        assert FILE in asked["params"]["message"]
        await talk.give({"id": asked["id"], "result": {"action": "accept", "content": {"allow": True}}})
        answer = await talk.read()
    assert (answer["id"], answer["result"]["structuredContent"]["answer"]) == (number, "done")
    assert (paths.state.parent / FILE).read_text() == "x"


async def test_without_forms_it_is_told_and_the_same_call_goes_on(paths: Paths, asking: Scripted) -> None:
    async with talk_to(paths) as talk:
        waits = await talk.call("ask_agent", prompt="go")
        name = waits["_meta"]["org.lightagent1/error"]["id"]
        assert f"lactl answer {name} TEXT" in text_of(waits)
        async with AsyncClient(paths.socket) as client:
            await client.inputs_answer(input=name, text="sda")
        waits = await talk.call("ask_agent", prompt="go")
        assert f"lactl approve {waits['_meta']['org.lightagent1/error']['id']}" in text_of(waits)
    assert [len(asking.agent.sessions), len(asking.model.requests)] == [1, 2]
    (session,) = asking.agent.sessions.values()
    assert session.running is not None  # the client has gone, and the turn goes on waiting
    assert session.running.is_waiting


async def test_a_cancelled_request_cancels_the_turn(paths: Paths, asking: Scripted) -> None:
    async with talk_to(paths, capabilities=FORM) as talk:
        number = await talk.begin("tools/call", name="ask_agent", arguments={"prompt": "go"})
        asked = await talk.read()
        await talk.give({"method": "notifications/cancelled", "params": {"requestId": number}})
        await until(lambda: all(session.running is None for session in asking.agent.sessions.values()))
        assert await talk.result("ping") == {}
        assert talk.notices[-1]["params"] == {"requestId": asked["id"]}  # the form is taken back
