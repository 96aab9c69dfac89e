"""The OpenAI endpoints of the gateway, with OpenAI's own SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, PROBE, TOML
from tests.agents.scripted import until
from tests.conftest import write
from tests.gateway.rig import Gateway, gateway
from tests.scripted_model import Answer, Fault, Stream, call, chunk, say

Messages = list[ChatCompletionMessageParam]


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


async def test_a_conversation_goes_on_in_one_session(paths: Paths) -> None:
    answers = [say("Hello ", "there"), say("Still ", "here"), say("branch"), say("named"), say("said")]
    async with gateway(paths, answers) as it:
        client = it.openai(await it.token())
        assert [model.id async for model in client.models.list()] == ["ops", "test"]
        assert (await client.models.retrieve("test")).id == "test"
        messages: Messages = [{"role": "system", "content": "Be kind."}, user("hi")]
        first = await client.chat.completions.create(
            model="test", messages=messages, user="anna", metadata={"ticket": "7"}
        )
        choice = first.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("Hello there", "stop")
        assert first.usage is not None
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (10, 5)
        messages += [{"role": "assistant", "content": "Hello there"}, user("are you?")]
        stream = await client.chat.completions.create(
            model="test", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(said) == "Still here"
        assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [15]
        (session,) = (await it.call("Sessions.List"))["sessions"]
        assert session["turns"] == 2
        assert "Be kind." in str(it.daemon.model.requests[0].body["messages"][-1])
        assert "Be kind." not in str(it.daemon.model.requests[0].body["messages"][0])
        (prompt, *_) = it.daemon.stored(topic="agent.prompt")
        name, _, told = prompt.correlation_id.partition(" ")
        assert (name[:6], told) == ("token:", '{"user": "anna", "ticket": "7"}')
        # An edited history is another conversation, and what it says of before counts as from outside.
        messages[-2] = {"role": "assistant", "content": "Go away"}
        await client.chat.completions.create(model="test", messages=messages)
        other, _ = (await it.call("Sessions.List"))["sessions"]
        assert (other["tainted"], other["current"], session["current"]) == (True, False, False)
        sent = it.daemon.model.requests[-1].body["messages"]
        assert [one["role"] for one in sent[-3:]] == ["user", "assistant", "user"]
        named = await client.chat.completions.create(
            model="test", messages=[user("and now?")], metadata={"session": session["id"]}
        )
        assert named.choices[0].message.content == "named"
        assert (await it.call("Sessions.Get", session=session["id"]))["session"]["turns"] == 3


async def test_responses(paths: Paths) -> None:
    answers: list[Answer] = [say("one"), say("two"), say("Sure!"), say('{"n": ', "3}"), Fault(status=400)]
    async with gateway(paths, answers) as it:
        client = it.openai()
        first = await client.responses.create(model="test", input="count", instructions="Up.")
        assert (first.output_text, first.status) == ("one", "completed")
        again = await client.responses.retrieve(first.id)
        assert again.output_text == "one"
        async with client.responses.stream(
            model="test", input=[{"role": "user", "content": "more"}], previous_response_id=first.id
        ) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            second = await stream.get_final_response()
        assert "".join(deltas) == second.output_text == "two"
        assert second.usage is not None
        assert second.usage.total_tokens == 15
        (session,) = (await it.call("Sessions.List"))["sessions"]
        assert session["turns"] == 2
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        text: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
        third = await client.responses.create(model="test", input="go", text=text)
        assert third.output_text == '{"n": 3}'  # and nothing of the first try
        with pytest.raises(openai.APIStatusError) as failed:
            await client.responses.create(model="test", input="x", stream=True)
        assert failed.value.code == "model_rejected"


async def test_a_response_in_the_background_is_polled_resumed_and_cancelled(paths: Paths) -> None:
    go_on = asyncio.Event()
    pieces = [*say("one ", "two ", "three").pieces]
    hangs = Stream(pieces=[chunk({"content": "word "})], hang=True)
    answers: list[Answer] = [Stream(pieces=pieces, gate=(2, go_on)), hangs, Fault(status=401)]
    async with gateway(paths, answers) as it:
        client = it.openai()
        stream = await client.responses.create(model="test", input="count", background=True, stream=True)
        seen: list[Any] = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        made = seen[0].response
        polled = await client.responses.retrieve(made.id)
        assert (made.status, polled.status, polled.background) == ("queued", "in_progress", True)
        after = seen[-1].sequence_number
        resumed = await client.responses.retrieve(made.id, stream=True, starting_after=after)
        go_on.set()
        seen += [event async for event in resumed]
        assert [event.sequence_number for event in seen] == [*range(len(seen))]
        said = [event.delta for event in seen if event.type == "response.output_text.delta"]
        assert "".join(said) == seen[-1].response.output_text == "one two three"
        assert (await client.responses.cancel(made.id)).status == "completed"
        other = it.openai(await it.token())
        with pytest.raises(openai.NotFoundError):
            await other.responses.cancel(made.id)
        hung = await other.responses.create(model="test", input="hang", background=True)
        await until(lambda: it.daemon.model.open_requests == 1)
        assert (await other.responses.cancel(hung.id)).status == "cancelled"
        await until(lambda: it.daemon.model.open_requests == 0)
        failed = await other.responses.create(model="test", input="fail", background=True)
        while failed.status in ("queued", "in_progress"):
            await asyncio.sleep(0.3)  # a token has 240 requests a minute
            failed = await other.responses.retrieve(failed.id)
        assert failed.error is not None
        assert "scripted failure" in failed.error.message


async def test_an_earlier_response_goes_on_in_a_fork(paths: Paths) -> None:
    async with gateway(paths, [say("one"), say("two"), say("three"), say("four")]) as it:
        client = it.openai(await it.token())
        how: Any = {"model": "test", "instructions": "Be kind."}
        first = await client.responses.create(input="1", **how)
        second = await client.responses.create(input="2", previous_response_id=first.id, **how)
        assert second.metadata == first.metadata
        fork = await client.responses.create(input="3", previous_response_id=first.id, **how)
        await client.responses.create(
            input="4", previous_response_id=fork.id, model="test", instructions="Be brief."
        )
        sent = [one["content"] for one in it.daemon.model.requests[-1].body["messages"][1:]]
        assert [text.partition("\n")[0] for text in sent] == ["1", "one", "3", "three", "4"]
        # Instructions hold for one response, and are told when they are new.
        assert ["Be kind." in text for text in sent] == [True, False, False, False, False]
        assert "Be brief." in sent[-1]
        (session,) = [one for one in (await it.call("Sessions.List"))["sessions"] if one["forked_from"]]
        assert (session["current"], fork.metadata) == (False, {"session": session["id"]})


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "nobody"}, 404, "agent_not_found"),
    ({"messages": []}, 400, "invalid_argument"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "invalid_argument"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "invalid_argument",
    ),
    ({"n": 2}, 400, "invalid_argument"),
    ({"logprobs": True}, 400, "invalid_argument"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 403, "refused"),
    ({"metadata": {"session": "ses_0000000000000000"}}, 404, "session_not_found"),
    ({"response_format": {"type": "grammar"}}, 400, "invalid_argument"),
    ({"stream": "yes"}, 400, "invalid_argument"),
    ({"modalities": ["text", "audio"]}, 400, "invalid_argument"),
]
REFUSED_RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.[0].content"),
    ({"text": "x"}, "text"),
    ({"text": {"format": {"type": "x"}}}, "text.format"),
    ({"include": ["message.output_text.logprobs"]}, "logprobs"),
    ({"background": True, "store": False}, "store"),
    ({"background": "yes"}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"model": "nobody", "background": True}, "model"),
    ({"previous_response_id": "resp_ses_0000000000000000_trace_00"}, "previous_response_id"),
]


async def test_what_is_refused_has_the_shape_of_openai(paths: Paths) -> None:
    async with gateway(paths, [Fault(status=401), say("ok")]) as it:
        base = {"model": "test", "messages": [user("hi")]}
        for change, status, code in REFUSED:
            answer = await it.http.post("/v1/chat/completions", json={**base, **change})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), change
        for change, field in REFUSED_RESPONSES:
            answer = await it.http.post("/v1/responses", json={"model": "test", "input": "hi", **change})
            assert answer.json()["error"]["param"] == field, change
        client = it.openai()
        with pytest.raises(openai.APIStatusError) as failed:
            await client.chat.completions.create(model="test", messages=[user("hi")])
        assert failed.value.code == "model_key_refused"
        assert failed.value.response.headers["x-should-retry"] == "false"
        ignored = {"temperature": 0.3, "seed": 7, "unheard_of": {"a": 1}, "tools": [], "tool_choice": "none"}
        answer = await it.http.post("/v1/chat/completions", json={**base, **ignored})
        assert answer.status_code == 200


async def test_tools_of_the_client_are_passed_on_where_that_is_allowed(paths: Paths) -> None:
    calls = '{"text": "", "calls": [{"name": "weather", "arguments": {"town": "Rome"}}]}'
    answers = [say(calls), say('{"text": "It rains.", "calls": []}')]
    async with gateway(paths, answers, toml="client_tools = true") as it:
        client = it.openai()
        parameters = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
        tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
        messages: Any = [user("Rome?")]
        first = await client.chat.completions.create(model="test", messages=messages, tools=tools)
        assert first.choices[0].finish_reason == "tool_calls"
        (made,) = first.choices[0].message.tool_calls or []
        assert made.type == "function"
        assert (made.function.name, made.function.arguments) == ("weather", '{"town": "Rome"}')
        messages += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": made.id, "content": "rain"},
        ]
        stream = await client.chat.completions.create(
            model="test", messages=messages, tools=tools, stream=True
        )
        said = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(said) == "It rains."
        (session,) = (await it.call("Sessions.List"))["sessions"]
        assert (session["turns"], session["tainted"]) == (2, True)


async def answered(it: Gateway, session: str) -> None:
    """Until the session is idle."""
    while (await it.call("Sessions.Get", session=session))["session"]["state"] != "idle":
        await it.call("Sessions.Wait", session=session, timeout_s=20)


async def test_a_question_goes_on_with_the_next_message(paths: Paths) -> None:
    asks = call("human_ask", {"question": "Which disk?"})
    adds = call("probe_add", {"path": str(paths.state / "never")})
    answers = [asks, say("sda it is"), adds, say("changed"), say("bye")]
    write(paths.config / "tools" / "probe.py", PROBE)
    write(paths.config / "lightagentd.toml", TOML)
    async with gateway(paths, answers, front=FRONT) as it:
        client = it.openai()
        messages: Messages = [user("clean up")]

        async def say_next(text: str = "") -> str:
            if text:
                messages.append(user(text))
            answer = await client.chat.completions.create(model="test", messages=messages)
            assert answer.choices[0].finish_reason == "stop"
            said = answer.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": said})
            return said

        assert "Which disk?" in await say_next()
        assert await say_next("sda") == "sda it is"
        told = await say_next("change it")
        (waiting,) = (await it.call("Approvals.List"))["approvals"]
        assert f"lactl approve {waiting['id']}" in told
        assert waiting["id"] in await say_next("well?")
        await it.call("Approvals.Deny", approval=waiting["id"])
        await answered(it, waiting["session"])
        assert await say_next("thanks") == "changed\n\nbye"
        assert len((await it.call("Sessions.List"))["sessions"]) == 1


async def test_a_client_that_hangs_up_ends_its_turn(paths: Paths) -> None:
    endless = Stream(pieces=[chunk({"content": "word "})] * 5, pause_s=0.01, hang=True)
    async with gateway(paths, [endless]) as it:
        client = it.openai(token := await it.token())
        body = {"model": "test", "messages": [user("talk")]}
        stream = await client.chat.completions.create(model="test", messages=[user("talk")], stream=True)
        async for one in stream:
            if one.choices[0].delta.content:
                break
        await stream.close()
        await until(lambda: it.daemon.model.open_requests == 0)
        async with it.over_tcp(token) as other:
            with pytest.raises(httpx.ReadTimeout):
                await other.post("/v1/chat/completions", json=body, timeout=0.3)
        await until(lambda: it.daemon.model.open_requests == 0)
        while "lightagent_turns_running 0.0" not in (shown := (await it.http.get("/metrics")).text):
            await asyncio.sleep(0.05)
        assert "lightagent_gateway_turns 0.0" in shown
