"""A daemon whose agent speaks each dialect over real HTTP: tool loops, restarts, and models that change."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message
from tests.agents.asking import FRONT, TOML, add, lines, prepare
from tests.agents.scripted import ME, watch
from tests.agents.test_approvals_restart import ask, prompted, settled
from tests.conftest import DaemonProcess, write
from tests.model_server import messages, responses
from tests.model_server.said import call, say
from tests.model_server.server import Asked, ModelServer, Script, Scripted
from tests.model_server.wire import Answer, Wire

KINDS = {"openai": "chat", "openai-responses": "responses", "anthropic": "messages"}
each_kind = pytest.mark.parametrize("kind", KINDS)
KEY = "sk-test-abcdefghijklmnop0123456789"


def define(paths: Paths, server: ModelServer, kind: str, *, front: str = "", toml: str = "") -> None:
    """The agent `test`, with a model behind a provider of that kind, and one of each kind to change to."""
    write(paths.config / "key", KEY)
    providers = "".join(
        f'[models.providers.{each}]\nkind = "{each}"\nbase_url = "{server.base_url}"\n'
        f'api_key_file = "{paths.config / "key"}"\n'
        + ("thinking_tokens = 2000\n" if each == "anthropic" else "")
        for each in KINDS
    )
    write(paths.config / "lightagentd.toml", toml + providers)
    write(paths.config / "agent" / "test" / "AGENT.md", f"---\nmodel: {kind}/x\n{front}\n---\nBe brief.\n")


@contextlib.asynccontextmanager
async def speaking(
    paths: Paths, kind: str, script: Script, front: str = ""
) -> AsyncIterator[tuple[Daemon, ModelServer]]:
    async with ModelServer(script) as server:
        define(paths, server, kind, front=front)
        async with Daemon(paths) as daemon:
            yield daemon, server


async def turn(daemon: Daemon, session: str, text: str = "go") -> dict[str, Any]:
    """Prompt in a session; gives the turn's last event."""
    agent = daemon.registry.get("test")
    events = await watch(await agent.prompt(agent.sessions[session], text))
    return dict(events[-1])


def thinking_in(asked: Asked) -> list[str]:
    """What the model thought, as it got that back."""
    match asked.dialect:
        case "messages":
            blocks = [block for message in asked.body["messages"] for block in message["content"]]
            return [block["signature"] for block in blocks if block["type"] == "thinking"]
        case "responses":
            items = asked.body["input"]
            return [item["encrypted_content"] for item in items if item["type"] == "reasoning"]
        case _:
            said = asked.body["messages"]
            return [message["reasoning_content"] for message in said if "reasoning_content" in message]


GIVEN_BACK = {"messages": messages.SIGNATURE, "responses": responses.CIPHER, "chat": "Hm."}
LOOK = call("proc_info", {"pid": 1}, thinking=["Hm", "."], text=["Looking. "])


@each_kind
async def test_a_tool_loop(paths: Paths, kind: str) -> None:
    second = call("proc_list", {"limit": 1}, call_id="call_2", thinking=["Hm", "."])
    script = [LOOK, second, say("All ", "is well.", cached_tokens=4)]
    async with speaking(paths, kind, script) as (daemon, server):
        session = (await daemon.service.sessions.create(ME, "test", "")).id
        agent = daemon.registry.get("test")
        events = await watch(await agent.prompt(agent.sessions[session], "go"))
        last = events[-1]
        assert (last["type"], last["text"], last["steps"]) == ("done", "All is well.", 3)
        thought = [event["text"] for event in events if event["type"] == "reasoning_delta"]
        assert "".join(thought) == "Hm.Hm."
        assert [asked.dialect for asked in server.asked] == [KINDS[kind]] * 3
        assert [len(thinking_in(asked)) for asked in server.asked] == [0, 1, 2]
        assert set(thinking_in(server.asked[2])) == {GIVEN_BACK[KINDS[kind]]}
        assert "systemd" in json.dumps(server.asked[1].body) or "pid" in json.dumps(server.asked[1].body)
        stored = [Message.from_dict(event.data or {}) for event in daemon.history.queries.messages(session)]
        assert [message.role for message in stored] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "tool",
            "assistant",
        ]
        assert [len(message.reasoning) for message in stored] == [0, 1, 0, 1, 0, 0]
        key = server.asked[0].headers
        assert (key.get("x-api-key") or key["authorization"].removeprefix("Bearer ")) == KEY


@each_kind
async def test_thinking_goes_back_after_the_daemon_was_killed_in_the_middle(paths: Paths, kind: str) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out), thinking=["Hm", "."]), say("it is done")]
    async with ModelServer(script) as server:
        define(paths, server, kind, front=FRONT, toml=TOML)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            async with prompted(paths) as question:
                await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            await ask(paths, "Approvals.Approve", approval=question, note="go on")
            session = await settled(paths)
        finally:
            await asyncio.to_thread(daemon.close)
        assert lines(out) == ["ran"]
        assert session["messages"][-1]["content"] == "it is done"
        assert [thinking_in(asked) for asked in server.asked] == [[], [GIVEN_BACK[KINDS[kind]]]]


async def test_a_model_that_refuses_the_form_of_the_thinking_gets_the_other(paths: Paths) -> None:
    words = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    refused = Answer(
        body=(messages.error_body(words, "invalid_request_error"),),
        wire=Wire(status=400, content_type="application/json"),
    )
    script: list[Scripted] = [refused, LOOK, say("All is well.")]
    async with speaking(paths, "anthropic", script) as (daemon, server):
        session = (await daemon.service.sessions.create(ME, "test", "")).id
        assert (await turn(daemon, session))["text"] == "All is well."
        forms = [asked.body["thinking"]["type"] for asked in server.asked]
        assert forms == ["enabled", "adaptive", "adaptive"]


CHANGES = [("openai", "anthropic"), ("anthropic", "openai-responses"), ("openai-responses", "openai")]


@pytest.mark.parametrize(("first", "then"), CHANGES)
async def test_a_session_goes_on_with_another_model(paths: Paths, first: str, then: str) -> None:
    odd = call("proc_info", {"pid": 1}, call_id="odd id/é", thinking=["Hm", "."])
    script = [odd, say("one"), LOOK, say("two")]
    async with speaking(paths, first, script) as (daemon, server):
        session = (await daemon.service.sessions.create(ME, "test", "")).id
        assert (await turn(daemon, session))["text"] == "one"
        define(paths, server, then)
        await daemon.reload()
        assert (await turn(daemon, session, "more"))["text"] == "two"
        assert [asked.dialect for asked in server.asked] == [KINDS[first]] * 2 + [KINDS[then]] * 2
        whole = json.dumps(server.asked[3].body)
        assert "odd id" not in whole
        assert whole.count("[Result of proc_info") == 2
        assert thinking_in(server.asked[3]) == [GIVEN_BACK[KINDS[then]]]


@pytest.mark.parametrize(("first", "then"), CHANGES)
async def test_another_model_takes_over_in_the_middle_of_a_tool_loop(
    paths: Paths, first: str, then: str
) -> None:
    refused = Answer(body=(b"{}",), wire=Wire(status=401, content_type="application/json"))
    script: list[Scripted] = [LOOK, refused, say("All is well.")]
    async with speaking(paths, first, script, front=f"fallback: [{then}/x]") as (daemon, server):
        session = (await daemon.service.sessions.create(ME, "test", "")).id
        last = await turn(daemon, session)
        assert (last["type"], last["text"].partition("\n")[0]) == ("done", "All is well.")
        assert [asked.dialect for asked in server.asked] == [KINDS[first], KINDS[first], KINDS[then]]
        taken_over = server.asked[2]
        assert thinking_in(taken_over) == []
        assert "thinking" not in taken_over.body
        assert json.dumps(taken_over.body).count("[Result of proc_info") == 1
