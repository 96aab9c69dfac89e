"""A client of the administrator's own: what it says is checked, and whatever it does ends as a ModelError."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from lightagentd.config.configuration import Models, Provider
from lightagentd.errors import ConfigError, ModelCutOff, ModelError, ModelRateLimited, ModelTimedOut
from lightagentd.host.paths import Paths
from lightagentd.llm import own_client
from lightagentd.llm.factory import client_of, recipe_of
from lightagentd.llm.own_client import OwnClient
from lightagentd.llm.protocol import (
    Finish,
    Message,
    ModelSettings,
    Part,
    Reasoning,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)
from lightagentd.redaction import Redactor
from lightagentd.skills import SkillCatalog
from tests.conftest import DaemonProcess, write
from tests.llm import own_clients
from tests.llm.own_clients import Scripted

HERE = "tests.llm.own_clients"
SETTINGS = ModelSettings(provider="own", model="m", api_key="sk-secret-key-0123456789")
ASKED = Request(system="", messages=[Message(role="user", content="one two")])


async def answer(client: OwnClient, request: Request = ASKED) -> list[Part]:
    return [part async for part in client.stream(request)]


def scripted(monkeypatch: pytest.MonkeyPatch, script: Callable[[Request], Any], **settings: Any) -> OwnClient:
    monkeypatch.setattr(Scripted, "script", script)
    monkeypatch.setattr(Scripted, "ended", [])
    return OwnClient(f"{HERE}:Scripted", dataclasses.replace(SETTINGS, **settings))


async def test_an_example_works_by_its_name_in_the_configuration() -> None:
    models = Models(providers={"own": Provider(kind=f"{HERE}:Echo", max_retries=2)})
    client = client_of(recipe_of("own/m", models), catalog=SkillCatalog, redactor=Redactor())
    assert isinstance(client, OwnClient)
    assert (client.name, client.context_tokens, client.window_known) == ("own/m", 100_000, True)
    assert client.retry.max_retries == 2
    assert await answer(client) == [
        TextDelta("one "),
        TextDelta("two "),
        Finish(reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=2)),
    ]
    await client.close()
    assert vars(client)["_client"].closed


def test_the_window_of_the_configuration_goes_before_the_clients() -> None:
    client = OwnClient(f"{HERE}:Echo", dataclasses.replace(SETTINGS, context_tokens=9000))
    assert client.context_tokens == 9000


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("no.such.module:Class", "there is no module no"),
        (f"{HERE}:Nothing", "has no class Nothing"),
        (f"{HERE}:not_a_class", "has no class not_a_class"),
        (f"{HERE}:NoStream", "it lacks the methods stream"),
        (f"{HERE}:BlockingClose", "its method close is not async"),
        (f"{HERE}:NeverMade", "ValueError when it is imported and made"),
        (f"{HERE}:Ends", "SystemExit when it is imported and made"),
    ],
)
def test_one_that_cannot_be_made_is_told_without_what_it_says(named: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OwnClient(named, SETTINGS)
    assert why in caught.value.message
    assert "models.providers.own.kind" in caught.value.message
    assert SETTINGS.api_key not in caught.value.message


async def test_parts_come_through_as_they_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    client = scripted(monkeypatch, own_clients.everything)
    assert await answer(client) == [
        TextDelta("lone ? surrogate"),
        Reasoning(model="own/m", text="hm", signature="s"),
        ToolCall(id="call_1", name="proc_list", arguments="{}"),
        Finish(reason="tool_calls"),
    ]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (7, "what is no part of an answer: int"),
        (None, "what is no part of an answer: NoneType"),
        ("text", "what is no part of an answer: str"),
        (TextDelta(b"x"), "bytes where text should be"),  # type: ignore[arg-type]
        (ToolCall(id="", name="x", arguments=""), "without an id or a name"),
        (ToolCall(id="1", name="x", arguments={}), "dict where text should be"),  # type: ignore[arg-type]
        (ToolCall(id="1", name="x" * 300, arguments=""), "more than 256 characters"),
        (Finish(reason="whatever"), "reason is none of stop"),
        (Finish(reason="stop", usage={"prompt_tokens": 1}), "dict where a Usage"),  # type: ignore[arg-type]
        (Finish(reason="stop", usage=Usage(prompt_tokens=-1)), "no numbers of tokens"),
        (Finish(reason="stop", usage=Usage(prompt_tokens=10**12)), "no numbers of tokens"),
    ],
)
async def test_what_is_no_part_fails_the_call(
    monkeypatch: pytest.MonkeyPatch, part: object, said: str
) -> None:
    client = scripted(monkeypatch, lambda _: own_clients.garbage(part))
    with pytest.raises(ModelError, match=said) as caught:
        await answer(client)
    assert caught.value.code == "model_failed"
    assert "own/m" in caught.value.message


async def test_more_than_an_answer_has_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_client, "MOST_CHARS", 10)
    client = scripted(monkeypatch, lambda _: own_clients.garbage(TextDelta("x" * 11)))
    with pytest.raises(ModelError, match="characters"):
        await answer(client)


@pytest.mark.parametrize(
    "err", [ValueError("with sk-secret-key-0123456789"), KeyError(), TimeoutError(), SystemExit(1)]
)
async def test_what_it_raises_is_a_model_error_with_the_name_of_the_class_alone(
    monkeypatch: pytest.MonkeyPatch, err: BaseException
) -> None:
    client = scripted(monkeypatch, lambda _: own_clients.raising(err))
    with pytest.raises(ModelError) as caught:
        await answer(client)
    assert type(caught.value) is ModelError
    assert type(err).__name__ in caught.value.message
    assert SETTINGS.api_key not in caught.value.message


async def test_a_model_error_of_its_own_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    client = scripted(monkeypatch, own_clients.limited)
    with pytest.raises(ModelRateLimited) as caught:
        await answer(client)
    assert caught.value.retry_after_s == 3.0


async def test_one_that_cancels_itself_cancels_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    client = scripted(monkeypatch, lambda _: own_clients.raising(asyncio.CancelledError()))
    with pytest.raises(ModelError, match="it cancelled itself"):
        await answer(client)


async def test_an_answer_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelCutOff):
        await answer(scripted(monkeypatch, own_clients.unfinished))


@pytest.mark.parametrize("limit", ["idle_timeout_s", "total_timeout_s"])
async def test_one_that_says_nothing_is_given_up_and_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    client = scripted(monkeypatch, own_clients.silent, **{limit: 0.01})
    with pytest.raises(ModelTimedOut):
        await answer(client)
    assert Scripted.ended == ["silent"]


@pytest.mark.parametrize("script", [own_clients.silent, own_clients.deaf])
async def test_a_cancel_ends_the_call_whatever_the_client_does_with_it(
    monkeypatch: pytest.MonkeyPatch, script: Callable[[Request], AsyncGenerator[Part, None]]
) -> None:
    client = scripted(monkeypatch, script)
    waiting = asyncio.create_task(answer(client))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_nothing_is_taken_after_the_end_and_the_stream_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = scripted(monkeypatch, own_clients.talks_on)
    assert await answer(client) == [Finish(reason="stop")]
    assert Scripted.ended == ["talks_on"]


async def test_whoever_leaves_closes_the_clients_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    async def script(_request: Request) -> AsyncGenerator[Part, None]:
        try:
            yield TextDelta("x")
            yield TextDelta("y")
        finally:
            ended.append(True)

    stream = scripted(monkeypatch, script).stream(ASKED)
    assert await anext(stream) == TextDelta("x")
    await stream.aclose()
    assert ended == [True]


@pytest.mark.parametrize("stream", [lambda _: 7, lambda _: [TextDelta("x")]])
async def test_a_stream_that_is_none_fails_the_call(
    monkeypatch: pytest.MonkeyPatch, stream: Callable[[Request], Any]
) -> None:
    with pytest.raises(ModelError, match="no async generator"):
        await answer(scripted(monkeypatch, stream))


async def test_a_coroutine_in_place_of_a_stream_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(_request: Request) -> list[Part]:
        return []

    with pytest.raises(ModelError, match="no async generator"):
        await answer(scripted(monkeypatch, script))


async def test_usage_that_it_tells_meanwhile_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Usage] = []

    async def script(request: Request) -> AsyncGenerator[Part, None]:
        assert request.on_usage is not None
        request.on_usage(Usage(prompt_tokens=3))
        request.on_usage(Usage(prompt_tokens=-3))
        yield Finish(reason="stop")

    client = scripted(monkeypatch, script)
    with pytest.raises(ModelError, match="ValueError"):
        await answer(client, dataclasses.replace(ASKED, on_usage=told.append))
    assert told == [Usage(prompt_tokens=3)]


async def test_one_that_does_not_close_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    await OwnClient(f"{HERE}:ClosesBadly", SETTINGS).close()


def test_a_daemon_answers_through_one_and_says_when_one_cannot_be_made(
    daemon_process: DaemonProcess, paths: Paths
) -> None:
    write(
        paths.config / "lightagentd.toml",
        f'[models.providers.own]\nkind = "{HERE}:Echo"\n'
        f'[models.providers.broken]\nkind = "{HERE}:NeverMade"\n',
    )
    write(paths.config / "agent/echo/AGENT.md", "---\nmodel: own/m\n---\n")
    write(paths.config / "agent/broken/AGENT.md", "---\nmodel: broken/m\n---\n")
    daemon_process.start()
    assert "hello there" in daemon_process.lactl("prompt", "echo", "hello there").stdout
    status = daemon_process.lactl("status").stdout
    assert "The agent broken does not run" in status
    assert "ValueError when it is imported and made" in status
