"""Replay: what was recorded comes again, in order and once; what does not fit is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ModelCutOff, ModelError, ModelRejected
from lightagentd.llm.protocol import (
    Finish,
    Message,
    ModelSettings,
    Part,
    Reasoning,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)
from lightagentd.llm.replay import ReplayClient
from lightagentd.redaction import Redactor
from tests.llm.test_recording import ASKED, KEY, ask, recording
from tests.scripted_model import Fault, Script, call, say

USED = {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0}
RESULT = Message(role="tool", content="a file", tool_call_id="call_1", name="file_stat")


def replaying(folder: Path, *secrets: str, key: bytes = b"") -> ReplayClient:
    settings = ModelSettings(provider="old", model="m")
    return ReplayClient(settings, folder, Redactor(secrets, key=key))


async def play(client: ReplayClient, *messages: Message, system: str = "") -> list[Part]:
    return [part async for part in client.stream(Request(system=system, messages=messages or (ASKED,)))]


def put(folder: Path, name: str, **fields: Any) -> Path:
    """Write an exchange by hand."""
    whole = {
        "version": 1,
        "model": "p/m",
        "began": "2026-01-01T00:00:00Z",
        "request": {"system": "", "messages": [ASKED.to_dict()], "functions": []},
        "parts": [{"type": "text", "text": name}, {"type": "finish", "reason": "stop", "usage": None}],
        "usage": None,
        "outcome": "finished",
        "error": None,
        **fields,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(whole))
    return path


async def record(script: Script, folder: Path, *asked: Message) -> list[Part]:
    async with recording(script, folder) as (recorder, _):
        return await ask(recorder, *asked)


async def test_a_recorded_answer_comes_again(tmp_path: Path) -> None:
    recorded = await record([call("file_stat", {"path": "/"}, text="Let me see.")], tmp_path)
    assert await play(replaying(tmp_path)) == recorded


async def test_every_kind_of_part_comes_again(tmp_path: Path) -> None:
    parts = [
        {"at_ms": 1, "type": "thought", "text": "hm"},
        {"at_ms": 2, "type": "text", "text": "so"},
        {"at_ms": 3, "type": "call", "id": "c", "name": "f_g", "arguments": "{}"},
        {"at_ms": 3, "type": "reasoning", "model": "p/m", "text": "hm", "signature": "s"},
        {"at_ms": 4, "type": "finish", "reason": "tool_calls", "usage": USED},
    ]
    put(tmp_path, "one", parts=parts, usage=USED)
    told: list[Usage] = []
    request = Request(system="", messages=[ASKED], on_usage=told.append)
    assert [part async for part in replaying(tmp_path).stream(request)] == [
        ReasoningDelta("hm"),
        TextDelta("so"),
        ToolCall(id="c", name="f_g", arguments="{}"),
        Reasoning(model="p/m", text="hm", signature="s"),
        Finish(reason="tool_calls", usage=Usage(**USED)),
    ]
    assert told == [Usage(**USED)]


async def test_equal_requests_get_the_answers_in_order_and_each_once(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        put(tmp_path, name)
    client = replaying(tmp_path)
    said = [(await play(client))[0] for _ in range(3)]
    assert said == [TextDelta("a"), TextDelta("b"), TextDelta("c")]
    with pytest.raises(ModelRejected, match="all 3 recorded answers to this request were played already"):
        await play(client)


async def test_a_recorded_error_is_raised_again_with_its_class(tmp_path: Path) -> None:
    async with recording([Fault(status=400, body=b'{"error": {"message": "odd"}}')], tmp_path) as (made, _):
        with pytest.raises(ModelError) as first:
            await ask(made)
    with pytest.raises(ModelError) as again:
        await play(replaying(tmp_path))
    assert type(again.value) is type(first.value)
    assert vars(again.value) == vars(first.value)


@pytest.mark.parametrize(
    "code", ["model_rate_limited", "model_key_refused", "model_timeout", "model_cut_off"]
)
async def test_codes_are_classes_again(tmp_path: Path, code: str) -> None:
    error = {"code": code, "message": "x", "suggestion": "y", "retry_after_s": 2.5, "reached": True}
    put(tmp_path, "one", parts=[{"type": "text", "text": "half"}], outcome="failed", error=error)
    answer = replaying(tmp_path).stream(Request(system="", messages=[ASKED]))
    assert await anext(answer) == TextDelta("half")
    with pytest.raises(ModelError) as caught:
        await anext(answer)
    assert caught.value.code == code
    assert (caught.value.retry_after_s, caught.value.reached) == (2.5, True)


async def test_an_answer_that_was_left_breaks_off(tmp_path: Path) -> None:
    put(tmp_path, "one", parts=[{"type": "text", "text": "half"}], outcome="left")
    with pytest.raises(ModelCutOff):
        await play(replaying(tmp_path))


async def test_system_prompt_and_results_may_be_others(tmp_path: Path) -> None:
    asking = Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(id="call_1", name="file_stat", arguments="{}"),),
    )
    await record([say("old")], tmp_path, ASKED, asking, RESULT)
    await record([say("new")], tmp_path, ASKED, asking, Message(**{**vars(RESULT), "content": "another"}))
    client = replaying(tmp_path)
    same_results = await play(client, ASKED, asking, Message(**{**vars(RESULT), "content": "another"}))
    other_results = await play(
        client, ASKED, asking, Message(**{**vars(RESULT), "content": "third"}), system="x"
    )
    assert same_results[0] == TextDelta("new")
    assert other_results[0] == TextDelta("old")


async def test_a_request_with_secrets_fits_whatever_key_marks_them(tmp_path: Path) -> None:
    asked = Message(role="user", content=f"is {KEY} my key?")
    async with recording([say("yes")], tmp_path, Redactor([KEY], key=b"one")) as (recorder, _):
        await ask(recorder, asked)
    assert (await play(replaying(tmp_path, KEY, key=b"two"), asked))[0] == TextDelta("yes")


async def test_what_differs_first_is_said(tmp_path: Path) -> None:
    answer = Message(role="assistant", content="It is a file.")
    again = Message(role="user", content="and how large is it?")
    await record([say("big")], tmp_path, ASKED, answer, again)
    other = Message(role="user", content="and how old is it?")
    with pytest.raises(ModelRejected) as caught:
        await play(replaying(tmp_path), ASKED, answer, other)
    said = caught.value.message
    assert "message 3 of 3 (role user)" in said
    assert "how old is it?" in said
    assert "how large is it?" in said
    with pytest.raises(ModelRejected, match=r"has 2 messages, and the nearest, .*, .* has 3"):
        await play(replaying(tmp_path), ASKED, answer)


async def test_an_empty_and_a_missing_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="no recorded exchange"):
        await play(replaying(tmp_path))
    with pytest.raises(ModelRejected, match="cannot be read") as caught:
        await play(replaying(tmp_path / "none"))
    assert "recording" in caught.value.suggestion


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b"{", b'{"version": 2}', b'{"version": 1}', b"[" * 100_000, b'"x"', b"1"]
)
async def test_a_broken_file_is_named_and_the_others_play(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, "whole")
    (tmp_path / "broken.json").write_bytes(content)
    client = replaying(tmp_path)
    assert (await play(client))[0] == TextDelta("whole")
    with pytest.raises(ModelRejected, match=r"1 files cannot be read, such as broken\.json"):
        await play(client)


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "odd"},
        {"parts": [{"type": "odd"}]},
        {"parts": [{"type": "text"}]},
        {"parts": [{"type": "text", "text": "x", "more": 1}]},
        {"parts": [{"type": "text", "text": 5}]},
        {"parts": [{"type": "finish", "reason": "stop", "usage": {"prompt_tokens": "many"}}]},
        {"parts": 7},
        {"error": {"code": "x"}},
        {"request": {}},
        {"request": {"messages": [{"role": "user"}]}},
    ],
)
async def test_a_file_of_another_shape_is_no_exchange(tmp_path: Path, fields: dict[str, Any]) -> None:
    put(tmp_path, "odd", **fields)
    with pytest.raises(ModelRejected, match=r"cannot be read, such as odd\.json"):
        await play(replaying(tmp_path))


async def test_a_file_that_comes_later_is_found(tmp_path: Path) -> None:
    client = replaying(tmp_path)
    with pytest.raises(ModelRejected):
        await play(client)
    put(tmp_path, "late")
    assert (await play(client))[0] == TextDelta("late")
