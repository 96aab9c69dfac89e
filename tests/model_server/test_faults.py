"""The server breaks in every way that it names, and no way does more to a client than end its call.

Each fault meets a client in each dialect, alone and together with others; the call ends with a ModelError and
the next call of the same client gets its answer. What the errors say is tested beside what raises them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lightagentd.errors import ModelCertificate, ModelCutOff, ModelError, ModelTimedOut, ModelUnreachable
from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.dialects.dialect import Dialect as ClientDialect
from lightagentd.llm.dialects.messages import Messages
from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.http_client import HttpClient
from lightagentd.llm.protocol import Finish, Message, ModelSettings, Part, Request, TextDelta
from tests.clock import pass_time
from tests.model_server import faults
from tests.model_server.dialects import DIALECTS, Dialect
from tests.model_server.said import call, say
from tests.model_server.server import ModelServer, Script
from tests.model_server.wire import Answer

KINDS: dict[Dialect, Callable[[ModelSettings], ClientDialect]] = {
    "chat": ChatCompletions,
    "responses": Responses,
    "messages": Messages,
}
SIZES = {"chat": 2 << 20, "responses": 1 << 20, "messages": 2 << 20}
"""How much text one chunk can hold: Responses say it all again in single events, which may have 8 MiB."""
TOGETHER: dict[str, Callable[[], Answer]] = {
    "packed, and reset": lambda: faults.cut(faults.gzip(), after=30, ending="reset"),
    "packed, one byte short": lambda: faults.gzip(faults.unfinished(pieces=3)),
    "slow, and cut": lambda: faults.cut(faults.a_chunk_a_minute(pause_s=0.01), after=200),
    "in one chunk, and cut": lambda: faults.cut(after=200, ending="reset").over(one_chunk=True),
    "a call, and an error": lambda: faults.error_in_stream(call("file_stat", {"path": "/"})),
    "a call, and no end": lambda: faults.unfinished(call("file_stat", {"path": "/"}), pieces=3),
    "a refusal, packed as garbage": lambda: faults.status(429).over(packing="gzip_garbage"),
    "a refusal, cut": lambda: faults.status(500).over(body_bytes=10, ending="reset"),
    "a page, as a stream": lambda: faults.web_page().over(content_type="text/event-stream"),
    "garbage, packed": lambda: faults.garbage().over(packing="gzip"),
    "a portal, slowly, and reset": lambda: faults.captive_portal().over(
        wait_s=0.02, body_bytes=5, ending="reset"
    ),
    "an error behind text, and silence": lambda: faults.error_in_stream(say("half")).over(ending="silence"),
}


@contextlib.asynccontextmanager
async def talking(
    dialect: Dialect,
    script: Script,
    *,
    url: str = "",
    idle_timeout_s: float = 60.0,
    total_timeout_s: float = 60.0,
) -> AsyncIterator[tuple[HttpClient, ModelServer]]:
    async with ModelServer(script) as server:
        made = ModelSettings(
            provider="p",
            model="m",
            base_url=url or server.base_url,
            idle_timeout_s=idle_timeout_s,
            total_timeout_s=total_timeout_s,
        )
        client = HttpClient(made, KINDS[dialect](made))
        try:
            yield client, server
        finally:
            await client.close()


async def ask(client: HttpClient) -> list[Part]:
    request = Request(system="", messages=[Message(role="user", content="hello?")])
    return [part async for part in client.stream(request)]


async def breaks(dialect: Dialect, fault: Answer, *, passes_s: float = 0.0, **times: float) -> ModelError:
    """Have a call meet a fault, and the next one an answer; gives the error.

    So much time `passes_s` in the call at once, soon after it has begun.
    """
    async with talking(dialect, [fault, say("Hello.")], url="", **times) as (client, server):
        asking = asyncio.create_task(ask(client))
        if passes_s:
            while not server.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            pass_time(passes_s)
        with pytest.raises(ModelError) as caught:
            await asking
        try:
            parts = await ask(client)
        except ModelCutOff:  # a connection that the server closed behind a whole answer
            parts = await ask(client)
        assert TextDelta("Hello.") in parts
        assert isinstance(parts[-1], Finish)
        assert server.requests == 2
    assert caught.value.code != ModelError.code, "it has no code of its own"
    assert caught.value.suggestion, f"nothing says what to do: {caught.value.message}"
    return caught.value


@pytest.mark.parametrize("name", faults.FAULTS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_fault_ends_one_call(dialect: Dialect, name: str) -> None:
    await breaks(dialect, faults.FAULTS[name]())


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_faults_together_end_one_call(dialect: Dialect, name: str) -> None:
    await breaks(dialect, TOGETHER[name]())


@pytest.mark.parametrize("seed", range(40))
async def test_any_faults_together_end_one_call(seed: int) -> None:
    rng = random.Random(seed)
    dialect = rng.choice(DIALECTS)
    fault = faults.FAULTS[rng.choice(list(faults.FAULTS))]()
    changes = {
        "wait_s": 0.01,
        "pause_s": 0.002,
        "one_chunk": True,
        "packing": rng.choice(("gzip", "gzip_garbage")),
        "body_bytes": rng.randint(0, 60),
        "ending": rng.choice(("close", "reset")),
    }
    if fault.wire.chunked:
        changes["chunked"] = False
    if fault.wire.packing:
        del changes["packing"]  # it might become whole
    chosen = rng.sample(list(changes), rng.randint(1, 3))
    if "body_bytes" in chosen and "ending" not in chosen:
        chosen.append("ending")
    await breaks(dialect, fault.over(**{name: changes[name] for name in chosen}))


@pytest.mark.parametrize("after", [0, 150])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_silence_ends_with_the_time_for_it(dialect: Dialect, after: int) -> None:
    error = await breaks(dialect, faults.silence(after=after), idle_timeout_s=30, passes_s=30)
    assert isinstance(error, ModelTimedOut)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_without_end_ends(dialect: Dialect) -> None:
    error = await breaks(dialect, faults.endless(pause_s=0.01), total_timeout_s=30, passes_s=30)
    assert isinstance(error, ModelTimedOut)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_slow_first_byte_and_many_small_events_are_no_fault(dialect: Dialect) -> None:
    slow = faults.slow_first_byte(faults.gzip(), wait_s=0.1)
    big = faults.big_chunk(SIZES[dialect], events=2000)
    async with talking(dialect, [slow, big]) as (client, _):
        assert (
            "".join(part.text for part in await ask(client) if isinstance(part, TextDelta)) == "Hello there."
        )
        parts = await ask(client)
        assert (
            sum(len(part.text) for part in parts if isinstance(part, TextDelta))
            == SIZES[dialect] // 2000 * 2000
        )


async def test_a_certificate_that_nobody_signed_is_not_trusted(tmp_path: Path) -> None:
    async with ModelServer([say("Hello.")], tls=faults.bad_certificate(tmp_path)) as server:
        made = ModelSettings(provider="p", model="m", base_url=server.base_url)
        client = HttpClient(made, ChatCompletions(made))
        with pytest.raises(ModelCertificate):
            await ask(client)
        await client.close()
        trusting = ModelSettings(
            provider="p", model="m", base_url=server.base_url, ca_file=tmp_path / "certificate.pem"
        )
        client = HttpClient(trusting, ChatCompletions(trusting))
        assert TextDelta("Hello.") in await ask(client)
        await client.close()


async def test_no_such_host_and_nobody_there_are_unreachable() -> None:
    for url in (faults.NO_SUCH_HOST, f"http://127.0.0.1:{faults.refusing_port()}/v1"):
        async with talking("chat", [say("Hello.")], url=url) as (client, server):
            with pytest.raises(ModelUnreachable) as caught:
                await ask(client)
            assert not caught.value.reached
            assert server.requests == 0


async def test_the_script_goes_on_and_ends_with_its_last_answer() -> None:
    async with talking("chat", [say("one"), say("two")]) as (client, server):
        said = [(await ask(client))[0] for _ in range(3)]
        assert said == [TextDelta("one"), TextDelta("two"), TextDelta("two")]
        assert [asked.number for asked in server.asked] == [0, 1, 2]
        assert server.connections == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_one_server_speaks_every_dialect(dialect: Dialect) -> None:
    async with talking(dialect, [say("Hello.")]) as (client, server):
        await ask(client)
        assert server.asked[0].dialect == dialect
