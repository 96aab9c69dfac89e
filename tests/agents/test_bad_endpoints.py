"""Endpoints that are not what they should be: a stable code, a sentence that says what to do, a bounded
number of requests, and a session that can be used afterwards. A real daemon, a real server that breaks.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightagentd.api import TurnEvent
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import AgentNotFound, ConfigError, LightagentError, table
from lightagentd.host.paths import Paths
from tests.agents.endpoints import NOWHERE, asking_providers
from tests.agents.scripted import Scripted, check_conversation
from tests.conftest import write
from tests.model_server import faults
from tests.model_server.said import Said, say
from tests.model_server.server import Asked, ModelServer
from tests.model_server.wire import Answer

KEY = "sk-test-0123456789abcdefghij"


@dataclass(frozen=True, kw_only=True)
class Bad:
    """What an endpoint does, and what comes of it."""

    answer: Callable[[], Answer | Said]
    code: str
    requests: int = 1
    """How many of them one prompt may make."""
    settings: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    """A part of the error's sentence."""


TRIES = 5
BAD = {
    "a wrong key": Bad(answer=faults.FAULTS["status_401"], code="model_key_refused"),
    "a key that may not": Bad(answer=faults.FAULTS["status_403"], code="model_key_refused"),
    "no such model": Bad(answer=faults.FAULTS["status_404"], code="model_not_found"),
    "an error page": Bad(answer=faults.FAULTS["status_502_html"], code="model_overloaded", requests=TRIES),
    "a page for an answer": Bad(answer=faults.web_page, code="model_garbled"),
    "a captive portal": Bad(answer=faults.captive_portal, code="model_redirected", says="portal.invalid"),
    "gzip garbage": Bad(answer=faults.gzip_garbage, code="model_garbled", requests=TRIES),
    "garbage": Bad(answer=faults.garbage, code="model_garbled", requests=TRIES),
    "a 200 with an error body": Bad(answer=faults.error_in_200, code="model_overloaded", requests=TRIES),
    "a 200 with a wrong key": Bad(
        answer=lambda: faults.error_in_200(kind="authentication_error", code="invalid_api_key"),
        code="model_key_refused",
    ),
    "an error in the stream": Bad(answer=faults.error_in_stream, code="model_overloaded", requests=TRIES),
    "an endless stream": Bad(
        answer=lambda: faults.endless(pause_s=0.01),
        code="model_timeout",
        settings={"total_timeout_s": 1.0, "max_retries": 1},
        requests=2,
    ),
    "a chunk a minute": Bad(
        answer=lambda: faults.a_chunk_a_minute(say("word ", "by ", "word")),
        code="model_timeout",
        settings={"idle_timeout_s": 1.0, "max_retries": 1},
        requests=2,
    ),
    "many chunks, each in time": Bad(
        answer=lambda: faults.a_chunk_a_minute(say(*["and so on "] * 5000), pause_s=0.01),
        code="model_timeout",
        settings={"idle_timeout_s": 60.0, "total_timeout_s": 1.0},
        requests=1,  # somebody has read the beginning
    ),
    "silence": Bad(
        answer=faults.silence,
        code="model_timeout",
        settings={"idle_timeout_s": 1.0, "max_retries": 1},
        requests=2,
    ),
    "a reset": Bad(answer=faults.FAULTS["reset_in_head"], code="model_cut_off", requests=TRIES),
    "no end": Bad(answer=lambda: faults.cut(say("x"), after=40), code="model_cut_off", requests=TRIES),
    "too many requests, for an hour": Bad(
        answer=lambda: faults.status(429, kind="rate_limit_error", retry_after="3600"),
        code="model_rate_limited",
        says="3,600 s",
    ),
    "too many requests": Bad(
        answer=faults.FAULTS["status_429"], code="model_rate_limited", requests=TRIES, says="tried 5 times"
    ),
    "overloaded": Bad(
        answer=faults.FAULTS["status_503"], code="model_overloaded", requests=TRIES, says="tried 5 times"
    ),
    "nothing at all": Bad(answer=say, code="model_empty", requests=2, says="tried 2 times"),
    "calls, and none": Bad(answer=lambda: say(finish="tool_calls"), code="model_empty", requests=2),
    "nothing but thoughts": Bad(answer=lambda: say(finish="length"), code="model_empty"),
    "filtered": Bad(answer=lambda: say(finish="content_filter"), code="model_filtered"),
}


class Turning:
    """A server's script: bad until it is told to behave."""

    def __init__(self, bad: Callable[[], Answer | Said]) -> None:
        self._bad = bad
        self.behaves = False

    def __call__(self, asked: Asked) -> Answer | Said:
        return say("fine again") if self.behaves else self._bad()


def provider(server: ModelServer, **more: Any) -> dict[str, Any]:
    return {"base_url": server.base_url, "api_key_env": "TEST_MODEL_KEY", **more}


def ending(events: list[TurnEvent], code: str) -> TurnEvent:
    """The last event of a turn that failed as it should."""
    last = events[-1]
    assert [event["type"] for event in events if event["type"] in ("done", "error")] == ["error"]
    assert last["code"] == code, last
    assert code in {row.code for row in table()}
    assert last["message"].endswith((".", ")")), last
    assert last["suggestion"], last
    assert KEY not in str(events)
    return last


async def works_again(test: Scripted, session: Any) -> None:
    """The same session, now that the endpoint behaves."""
    events = await test.prompt(session, "and now?")
    assert (events[-1]["type"], events[-1].get("text")) == ("done", "fine again"), events[-1]
    check_conversation(test.conversation(session))
    assert test.agent.restarts == 0
    assert KEY not in str([event.data for event in test.stored()])


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_endpoint_ends_the_turn_with_what_to_do(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    bad, script = BAD[name], Turning(BAD[name].answer)
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": provider(server, **bad.settings)}) as test,
    ):
        session = await test.session()
        last = ending(await test.prompt(session, "hello"), bad.code)
        assert bad.says in last["message"], last
        assert server.requests == bad.requests
        script.behaves = True
        await works_again(test, session)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_host_gets_no_request_and_no_key(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    async with ModelServer([say("here you are")]) as thief:
        to = f"{thief.base_url}/chat/completions"
        script = Turning(lambda: faults.web_page(status).over(headers=(("location", to),)))
        async with (
            ModelServer(script) as server,
            asking_providers(paths, {"main": provider(server)}) as test,
        ):
            session = await test.session()
            last = ending(await test.prompt(session, "hello"), "model_redirected")
            assert f"127.0.0.1:{thief.port}" in last["message"]
            assert (server.requests, thief.connections) == (1, 0)
            script.behaves = True
            await works_again(test, session)


async def test_a_certificate_that_nobody_signed_ends_the_turn_until_it_is_trusted(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    context: ssl.SSLContext = faults.bad_certificate(tmp_path)
    async with ModelServer([say("fine again")], tls=context) as server:
        async with asking_providers(paths, {"main": provider(server)}) as test:
            session = await test.session()
            last = ending(await test.prompt(session, "hello"), "model_certificate")
            assert "ca_file" in last["suggestion"]
            assert server.requests == 0
        trusting = provider(server, ca_file=str(tmp_path / "certificate.pem"))
        async with asking_providers(paths, {"main": trusting}) as test:
            await works_again(test, test.agent.sessions[session.id])


async def test_an_endpoint_that_is_not_there_is_named(paths: Paths) -> None:
    for url, retries, says in ((NOWHERE, 4, "tried 5 times"), (faults.NO_SUCH_HOST, 0, "no-such-host")):
        async with asking_providers(paths, {"main": {"base_url": url, "max_retries": retries}}) as test:
            session = await test.session()
            last = ending(await test.prompt(session, "hello"), "model_unreachable")
            assert url.split("/")[2].split(":")[0] in last["message"]
            assert says in last["message"]


async def test_a_megabyte_in_one_chunk_is_one_answer(paths: Paths) -> None:
    script = Turning(lambda: faults.big_chunk(1 << 20, events=1000))
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": {"base_url": server.base_url}}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        assert events[-1]["type"] == "done", events[-1]
        assert set(events[-1]["text"]) == {"x"}
        assert len(events[-1]["text"]) > 1_000_000
        assert server.requests == 1


@pytest.mark.parametrize("events", [1, 1000])
async def test_ten_megabytes_are_no_answer(paths: Paths, events: int) -> None:
    script = Turning(lambda: faults.big_chunk(events=events))
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": {"base_url": server.base_url}}) as test,
    ):
        session = await test.session()
        last = ending(await test.prompt(session, "hello"), "model_garbled")
        assert "MiB" in last["message"]
        assert server.requests == 1
        script.behaves = True
        found = await test.prompt(session, "and now?")
        assert found[-1]["text"] == "fine again"


@pytest.mark.parametrize("url", ["api.example.org/v1", "localhost:8080/v1", "ftp://h/v1", "https://"])
async def test_a_url_without_scheme_or_host_is_refused_with_its_line(paths: Paths, url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        async with asking_providers(paths, {"main": {"base_url": url}}):
            pass
    assert "lightagentd.toml:" in refused.value.message
    assert "base_url" in refused.value.message
    assert refused.value.suggestion


async def test_an_agents_own_url_without_scheme_disables_that_agent_alone(paths: Paths) -> None:
    text = "---\nmodel: openai/x\nbase_url: api.example.org/v1\n---\nBe brief.\n"
    write(paths.config / "agent" / "test" / "AGENT.md", text)
    async with Daemon(paths) as daemon:
        with pytest.raises(LightagentError) as refused:
            daemon.registry.get("test")
        assert not isinstance(refused.value, AgentNotFound)
        assert "base_url" in refused.value.message
        assert daemon.registry.get("ops").state == "running"
