"""Recording: what lies in the files, what does not, and that a call never suffers from it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ModelError
from lightagentd.events.context import within
from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.http_client import HttpClient
from lightagentd.llm.protocol import Finish, Function, Message, ModelSettings, Part, Request, TextDelta, Usage
from lightagentd.llm.recording import Recorder
from lightagentd.redaction import Redactor
from tests.scripted_model import DONE, Fault, Script, ScriptedModel, Stream, call, chunk, say, usage

KEY = "correct-horse-battery-staple"
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
ASKED = Message(role="user", content="what is it?")
FUNCTION = Function(name="file_stat", description="Look at a file.", parameters={"type": "object"})


@contextlib.asynccontextmanager
async def recording(
    script: Script, folder: Path, redactor: Redactor | None = None
) -> AsyncIterator[tuple[Recorder, ScriptedModel]]:
    async with ScriptedModel(script) as model:
        settings = ModelSettings(provider="p", model="m", base_url=model.base_url, api_key=KEY)
        client = HttpClient(settings, ChatCompletions(settings))
        recorder = Recorder(client, folder, redactor or Redactor([KEY]))
        try:
            yield recorder, model
        finally:
            await recorder.close()


async def ask(recorder: Recorder, *messages: Message, system: str = "") -> list[Part]:
    request = Request(system=system, messages=messages or (ASKED,), functions=(FUNCTION,))
    return [part async for part in recorder.stream(request)]


def files(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


async def test_an_exchange_is_one_file_with_the_request_and_its_parts(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "records"
    with within(agent="ops", session="ses_1", request_id="req_1", trace_id="trace_1"):
        async with recording([call("file_stat", {"path": "/etc/hosts"}, text="Let me see.")], folder) as made:
            parts = await ask(made[0], system="Be brief.")
    (found,) = files(folder)
    assert found["model"] == "p/m"
    assert [found[name] for name in ("agent", "session", "request_id", "trace_id")] == [
        "ops",
        "ses_1",
        "req_1",
        "trace_1",
    ]
    assert found["request"] == {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "what is it?"}],
        "functions": [
            {"name": "file_stat", "description": "Look at a file.", "parameters": {"type": "object"}}
        ],
    }
    kinds = [part["type"] for part in found["parts"]]
    assert kinds == ["text", "call", "finish"]
    assert found["parts"][0]["text"] == "Let me see."
    assert json.loads(found["parts"][1]["arguments"]) == {"path": "/etc/hosts"}
    assert found["parts"][2]["usage"]["prompt_tokens"] == 10
    assert found["outcome"] == "finished"
    assert found["error"] is None
    assert found["duration_ms"] >= found["parts"][-1]["at_ms"] >= found["parts"][0]["at_ms"] >= 0
    assert isinstance(parts[-1], Finish)


async def test_files_are_the_daemons_alone_and_sort_by_time(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    async with recording([say("one"), say("two"), say("three")], folder) as (recorder, _):
        for _ in range(3):
            await ask(recorder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    texts = [found["parts"][0]["text"] for found in files(folder)]
    assert texts == ["one", "two", "three"]


async def test_no_key_and_no_header_is_recorded(tmp_path: Path) -> None:
    async with recording([Fault(status=401, body=f"no: {KEY}".encode())], tmp_path) as (recorder, model):
        with pytest.raises(ModelError):
            await ask(recorder, Message(role="user", content=f"my key is {KEY}"), system=f"token={TOKEN}")
        assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
    text = next(tmp_path.iterdir()).read_text()
    assert KEY not in text
    assert TOKEN not in text
    assert "authorization" not in text.lower()
    assert text.count("[removed: ") >= 2


@pytest.mark.parametrize("secret", [KEY, TOKEN])
@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
async def test_a_secret_that_is_cut_over_deltas_is_removed(tmp_path: Path, secret: str, pieces: int) -> None:
    text = f"It is {secret} and no other."
    size = -(-len(text) // pieces)
    cut = [text[place : place + size] for place in range(0, len(text), size)]
    apart_s = 0.06 if pieces < 10 else 0.0  # so that each is a part of the file of its own, or few are
    async with recording([say(*cut, pause_s=apart_s)], tmp_path) as (recorder, _):
        parts = await ask(recorder)
    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == text
    (found,) = files(tmp_path)
    said = "".join(part.get("text", "") for part in found["parts"])
    assert secret not in said
    assert said.startswith("It is [removed: ")
    assert said.endswith("] and no other.")


async def test_a_secret_in_the_arguments_of_a_call_is_removed(tmp_path: Path) -> None:
    async with recording([call("web_get", {"headers": f"Bearer {TOKEN}"})], tmp_path) as (recorder, _):
        await ask(recorder)
    assert TOKEN not in next(tmp_path.iterdir()).read_text()


async def test_a_failed_call_is_recorded_with_its_error_and_raised(tmp_path: Path) -> None:
    async with recording([Fault(status=400, body=b'{"error": {"message": "no"}}')], tmp_path) as (
        recorder,
        _,
    ):
        with pytest.raises(ModelError) as caught:
            await ask(recorder)
    (found,) = files(tmp_path)
    assert found["outcome"] == "failed"
    assert found["error"]["code"] == caught.value.code
    assert found["error"]["message"] == caught.value.message
    assert found["error"]["reached"] is caught.value.reached


async def test_a_cut_answer_keeps_what_came(tmp_path: Path) -> None:
    async with recording([Fault(cut=True, body=chunk({"content": "half "}))], tmp_path) as (recorder, _):
        with pytest.raises(ModelError):
            await ask(recorder)
    (found,) = files(tmp_path)
    assert [part["text"] for part in found["parts"]] == ["half "]
    assert found["error"]["code"] == "model_cut_off"


async def test_a_call_that_is_left_is_recorded_as_left(tmp_path: Path) -> None:
    pieces = [chunk({"content": "one two "}), usage(7, 2)]
    async with recording([Stream(pieces=pieces, hang=True)], tmp_path) as (recorder, _):
        told = asyncio.Event()

        def on_usage(_: Usage) -> None:
            told.set()

        async def listen() -> None:
            async for _ in recorder.stream(Request(system="", messages=[ASKED], on_usage=on_usage)):
                pass

        listening = asyncio.create_task(listen())
        await told.wait()
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
    (found,) = files(tmp_path)
    assert found["outcome"] == "left"
    assert found["parts"][0]["text"] == "one two "
    assert found["usage"]["prompt_tokens"] == 7


async def test_the_conversation_may_go_on_while_it_is_written(tmp_path: Path) -> None:
    messages = [ASKED]
    async with recording([say("yes")], tmp_path) as (recorder, _):
        async for _ in recorder.stream(Request(system="", messages=messages)):
            messages.append(Message(role="assistant", content="later"))  # noqa: PERF401 - while it answers
    (found,) = files(tmp_path)
    assert len(found["request"]["messages"]) == 1


async def test_a_call_goes_on_where_nothing_can_be_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "file"
    folder.write_text("this is no folder")
    with caplog.at_level(logging.ERROR):
        async with recording([say("yes"), say("yes"), say("yes")], folder) as (recorder, _):
            for _ in range(2):
                assert TextDelta("yes") in await ask(recorder)
            await recorder.settle()
            assert str(folder) in recorder.problem
            folder.unlink()
            await ask(recorder)
            await recorder.settle()
            assert recorder.problem == ""
    assert len(caplog.records) == 1
    assert "not recorded" in caplog.text
    assert len(files(folder)) == 1


async def test_many_small_deltas_are_few_parts(tmp_path: Path) -> None:
    pieces = [chunk({"content": "word "}) for _ in range(2000)]
    async with recording([Stream(pieces=[*pieces, chunk({}, "stop"), DONE])], tmp_path) as (recorder, _):
        parts = await ask(recorder)
    assert len(parts) == 2001
    (found,) = files(tmp_path)
    said = [part for part in found["parts"] if part["type"] == "text"]
    assert "".join(part["text"] for part in said) == "word " * 2000
    assert all(later["at_ms"] - part["at_ms"] >= 50 for part, later in itertools.pairwise(said))
