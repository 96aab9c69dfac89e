"""The AI SDK's endpoint of the gateway, held to the schema of its chunks; `browser.py` has its own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx

from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, PROBE, TOML, lines
from tests.agents.scripted import until
from tests.conftest import write
from tests.gateway.rig import Gateway, gateway
from tests.gateway.test_openai import answered
from tests.scripted_model import DONE, Fault, Script, Stream, call, chunk, say

Chunk = dict[str, Any]
CALL = {"toolCallId": str, "toolName": str, "dynamic": bool, "providerExecuted": bool}
FIELDS: dict[str, dict[str, type]] = {
    "start": {"messageId": str, "messageMetadata": dict},
    "start-step": {},
    "text-start": {"id": str},
    "text-delta": {"id": str, "delta": str},
    "text-end": {"id": str},
    "reasoning-start": {"id": str},
    "reasoning-delta": {"id": str, "delta": str},
    "reasoning-end": {"id": str},
    "tool-input-start": CALL,
    "tool-input-delta": {"toolCallId": str, "inputTextDelta": str},
    "tool-input-available": {**CALL, "input": dict},
    "tool-approval-request": {"approvalId": str, "toolCallId": str, "approvalDescriptor": dict},
    "tool-output-available": {"toolCallId": str, "output": str, "dynamic": bool, "providerExecuted": bool},
    "tool-output-denied": {"toolCallId": str},
    "tool-output-error": {"toolCallId": str, "errorText": str, "dynamic": bool, "providerExecuted": bool},
    "error": {"errorText": str},
    "abort": {"reason": str},
    "finish-step": {},
    "finish": {"finishReason": str, "messageMetadata": dict},
}
"""As `uiMessageChunkSchema` of `ai` 5 to 7 has the types that are sent; `data-NAME` have `data`."""


def read(line: str) -> Chunk | None:
    """The chunk of a line, None at the end; it is what the schema says."""
    text = line.removeprefix("data: ")
    if text == "[DONE]":
        return None
    found: Chunk = json.loads(text)
    kind = found["type"]
    if kind.startswith("data-"):
        assert {"type", "data"} <= found.keys() <= {"type", "data", "id", "transient"}
        return found
    fields = {name: type(value) for name, value in found.items() if name != "type"}
    assert fields == FIELDS[kind], found
    return found


def user(text: str, name: str = "u") -> Chunk:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": text}]}


def message(chunks: Sequence[Chunk], *, part: Chunk | None = None) -> Chunk:
    """The assistant's message as the client has it, as far as it is looked at."""
    parts = [part] if part else [{"type": "text", "text": text(chunks)}]
    metadata = {**chunks[0]["messageMetadata"], **chunks[-1]["messageMetadata"]}
    return {"id": chunks[0]["messageId"], "role": "assistant", "parts": parts, "metadata": metadata}


def responded(chunks: Sequence[Chunk], approved: bool, reason: str = "") -> Chunk:
    """The message after `addToolApprovalResponse`."""
    (asked,) = (one for one in chunks if one["type"] == "tool-approval-request")
    answer = {"id": asked["approvalId"], "approved": approved, "reason": reason}
    answer["descriptor"] = asked["approvalDescriptor"]
    part = {"type": "dynamic-tool", "toolCallId": asked["toolCallId"], "state": "approval-responded"}
    return message(chunks, part={**part, "input": {}, "approval": answer})


def text(chunks: Sequence[Chunk]) -> str:
    return "".join(one["delta"] for one in chunks if one["type"] == "text-delta")


def kinds(chunks: Sequence[Chunk]) -> list[str]:
    return [one["type"] for one in chunks if not one.get("transient")]


async def ask(client: httpx.AsyncClient, messages: list[Chunk], query: str = "", **body: Any) -> list[Chunk]:
    """The chunks of a response."""
    body = {"id": "chat", "agent": "test", "messages": messages, "trigger": "submit-message", **body}
    answer = await client.post(f"/api/chat{query}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    return [found for line in answer.text.split("\n\n") if line and (found := read(line))]


async def chunks_of(answer: httpx.Response) -> AsyncIterator[Chunk]:
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and (found := read(line)) is not None:
            yield found


async def sessions(it: Gateway) -> int:
    return len((await it.call("Sessions.List"))["sessions"])


async def test_a_chat_goes_on_in_its_session_and_branches_from_it(paths: Paths) -> None:
    thinks = [chunk({"reasoning_content": "Hm."}), chunk({"content": "two"}), chunk({}, "stop"), DONE]
    answers: Script = [say("o", "ne"), Stream(pieces=thinks), say("other"), say("more"), Fault(status=401)]
    async with gateway(paths, answers) as it:
        one = await ask(it.http, [user("1")])
        said = ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]
        assert kinds(one) == said
        assert one[-1]["messageMetadata"]["usage"]["total_tokens"] == 15
        history = [user("1"), message(one), user("2")]
        two = await ask(it.http, history)
        assert [kind for kind in kinds(two) if "-" in kind] == [
            *("start-step", "reasoning-start", "reasoning-delta", "reasoning-end"),
            *("text-start", "text-delta", "text-end", "finish-step"),
        ]
        assert await sessions(it) == 1
        # Its answer made anew: what came after the message before is in no request.
        other = await ask(it.http, history, trigger="regenerate-message")
        assert text(other) == "other"
        assert await sessions(it) == 2
        sent = it.daemon.model.requests[-1].body["messages"]
        assert [one["content"] for one in sent if one["role"] in ("user", "assistant")] == ["1", "one", "2"]
        # Nothing but the chat's id, of a client that this process does not know.
        bare = {"id": "m", "role": "assistant", "parts": []}
        client = it.over_tcp(await it.token("inspect", "prompt", agents=("test",)))
        more = await ask(client, [user("1"), bare, user("3")], agent="")
        assert (more[0]["messageMetadata"]["session"], await sessions(it)) == (
            other[0]["messageMetadata"]["session"],
            2,
        )
        failed = await ask(client, [user("4")])
        assert "scripted failure" in failed[-2]["errorText"]
        assert (failed[-2]["type"], failed[-1]["finishReason"]) == ("error", "error")


async def test_approvals_and_questions_are_answered_by_the_client(paths: Paths) -> None:
    out = paths.state.parent / "lines"
    adds = call("probe_add", {"path": str(out)})
    asks = call("human_ask", {"question": "Which disk?"})
    answers = [
        adds,
        say("added"),
        adds,
        say("left it"),
        adds,
        say("late"),
        say("bye"),
        asks,
        say("sda it is"),
    ]
    write(paths.config / "tools" / "probe.py", PROBE)
    write(paths.config / "lightagentd.toml", TOML)
    async with gateway(paths, answers, front=FRONT, toml='on_disconnect = "continue"') as it:
        client = it.over_tcp(await it.token("inspect", "prompt", "approve"))
        asked = await ask(client, [user("add")])
        assert asked[-1]["finishReason"] == "tool-calls"
        assert "lactl approve" not in text(asked)
        done = await ask(
            client, [user("add"), responded(asked, approved=True)], messageId=asked[0]["messageId"]
        )
        assert done[0]["messageId"] == asked[0]["messageId"]
        assert kinds(done)[:3] == ["start", "tool-output-available", "start-step"]
        assert (text(done), lines(out)) == ("added", ["ran"])
        asked = await ask(client, [user("again")])
        done = await ask(client, [user("again"), responded(asked, approved=False, reason="not now")])
        assert kinds(done)[1] == "tool-output-denied"
        assert text(done) == "left it"
        assert "not now" in str(it.daemon.model.requests[-1].body["messages"][-1])
        # Without the scope it says who may, and goes on once they did.
        weak = it.over_tcp(await it.token("inspect", "prompt"))
        asked = await ask(weak, [user("add more")], id="weak")
        (request,) = (one for one in asked if one["type"] == "tool-approval-request")
        assert request["approvalDescriptor"]["mayAnswer"] is False
        assert f"lactl approve {request['approvalId']}" in text(asked)
        body = {"id": "weak", "messages": [responded(asked, approved=True)]}
        refused = await weak.post("/api/chat", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert f"lactl approve {request['approvalId']}" in refused.json()["error"]["message"]
        async with weak.stream("GET", "/api/chat/weak/stream") as resumed:
            chunks = chunks_of(resumed)
            seen = [await anext(chunks)]
            await it.call("Approvals.Deny", approval=request["approvalId"])
            seen += [one async for one in chunks]
        assert seen[0]["messageId"] == asked[0]["messageId"]
        assert (seen[-1]["finishReason"], text(seen).endswith("late")) == ("stop", True)
        assert text(await ask(weak, [user("thanks")], id="weak")) == "bye"
        asked = await ask(client, [user("clean up")], id="q")
        (question,) = (one for one in asked if one["type"] == "data-question")
        assert question["data"]["question"] == "Which disk?"
        assert text(await ask(client, [user("sda")], id="q")) == "sda it is"


async def test_a_client_comes_back_to_its_stream(paths: Paths) -> None:
    words = [f"word{number} " for number in range(100)]
    answers = [say(*words, pause_s=0.01), say(*words, pause_s=0.01)]
    async with gateway(paths, answers, toml='on_disconnect = "continue"') as it:
        body = {"id": "c", "agent": "test", "messages": [user("talk")], "trigger": "submit-message"}
        assert (await it.http.get("/api/chat/c/stream")).status_code == 204
        async with it.http.stream("POST", "/api/chat", json=body) as first:
            async for one in chunks_of(first):
                if one["type"] == "text-delta":
                    break
        async with it.http.stream("GET", "/api/chat/c/stream") as again:
            seen = [one async for one in chunks_of(again)]
        assert (kinds(seen)[0], text(seen), kinds(seen)[-1]) == ("start", "".join(words), "finish")
        assert (await it.http.get("/api/chat/c/stream")).status_code == 204
        async with it.http.stream("POST", "/api/chat", json=body) as second:
            kinds_seen = []
            async for one in chunks_of(second):
                if one["type"] == "text-delta" and "text-delta" not in kinds_seen:
                    assert (await it.http.delete("/api/chat/c/stream")).status_code == 204
                kinds_seen.append(one["type"])
        assert kinds_seen[-4:] == ["abort", "text-end", "finish-step", "finish"]


async def test_a_client_that_hangs_up_ends_its_turn(paths: Paths) -> None:
    slow = say(*(f"word{number} " for number in range(2000)), pause_s=0.01)
    async with gateway(paths, [slow]) as it:
        body = {"id": "c", "agent": "test", "messages": [user("talk")], "trigger": "submit-message"}
        async with it.http.stream("POST", "/api/chat", json=body) as first:
            async for one in chunks_of(first):
                if one["type"] == "text-delta":
                    break
        await until(lambda: it.daemon.model.open_requests == 0)
        (session,) = (await it.call("Sessions.List"))["sessions"]
        await answered(it, session["id"])
        (last,) = (await it.call("Sessions.Messages", session=session["id"], limit=1))["messages"]
        assert "cancelled" in last["cut_off"]


REFUSED: list[tuple[Chunk, int, str]] = [
    ({"messages": []}, 400, "invalid_argument"),
    ({"messages": [{"role": "tool"}]}, 400, "invalid_argument"),
    ({"messages": [user(" ")]}, 400, "invalid_argument"),
    (
        {"messages": [{"role": "user", "parts": [{"type": "file", "url": "data:,x"}]}]},
        400,
        "invalid_argument",
    ),
    ({"messages": [{"role": "assistant", "parts": []}]}, 400, "invalid_argument"),
    ({"id": ""}, 400, "invalid_argument"),
    ({"agent": "nobody"}, 404, "agent_not_found"),
    ({"agent": ""}, 400, "invalid_argument"),
    ({"id": "ses_0000000000000000"}, 404, "session_not_found"),
]


async def test_the_older_data_stream_and_what_is_refused(paths: Paths) -> None:
    write(paths.config / "tools" / "probe.py", PROBE)
    answers: Script = [call("probe_read", {"url": "x"}), say("He", "llo"), Fault(status=401)]
    async with gateway(paths, answers) as it:
        base: Chunk = {"id": "c", "agent": "test", "messages": [user("hi")], "trigger": "submit-message"}
        for change, status, code in REFUSED:
            answer = await it.http.post("/api/chat", json={**base, **change})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), change
        assert (await it.http.post("/api/chat?protocol=x", json=base)).status_code == 400
        old = {"id": "c", "agent": "test", "messages": [{"role": "user", "content": "hi"}]}
        answer = await it.http.post("/api/chat?protocol=data", json=old)
        assert answer.headers["x-vercel-ai-data-stream"] == "v1"
        found = [(line[0], json.loads(line[2:])) for line in answer.text.splitlines()]
        assert [code for code, _ in found if code != "2"] == [*"fbc9ae", *"f0e8d"]
        by_code = dict(found)
        assert (by_code["9"]["toolName"], by_code["a"]["result"], by_code["0"]) == (
            "probe_read",
            "x",
            "Hello",
        )
        assert by_code["d"] == {"finishReason": "stop", "usage": {"promptTokens": 20, "completionTokens": 10}}
        answer = await it.http.post("/api/chat?protocol=data", json=old)
        assert '3:"The model' in answer.text
