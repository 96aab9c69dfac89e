"""Each thing that a prompt chooses, over Varlink, over D-Bus and with lactl: one table, the same answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dbus_next.signature import Variant

from lightagentd.bus.connection import Bus, connect
from lightagentd.client.aio import AsyncClient
from lightagentd.errors import LightagentError, from_dict
from lightagentd.host.paths import Paths
from tests.cli.conftest import environment, finish
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.scripted_model import Stream, call, say

SCHEMA = {"type": "object", "properties": {"used": {"type": "integer"}}, "required": ["used"]}
NAME = "org.lightagent1"
SIGNATURES = {"model": "s", "tools": "as", "effects": "as", "max_steps": "x", "schema": "v"}


def script(body: dict[str, Any]) -> Stream:
    """Looks at processes when asked to, then answers; with JSON if that is wanted."""
    system = body["messages"][0]["content"]
    if "look" in body["messages"][-1]["content"]:
        return call("proc_list", {})
    return say('{"used": 42}' if "The form of your answer" in system else "plain")


@dataclass(kw_only=True)
class Planes:
    """A daemon, and all ways to it."""

    paths: Paths
    bus: Bus
    folder: Path

    async def ask(self, text: str, **choice: Any) -> dict[str, Any]:
        async with AsyncClient(self.paths.socket, timeout_s=60) as client:
            reply = await client.call("Manager.Ask", agent="talker", text=text, **choice)
        return dict(reply["answer"])

    async def prompt(self, text: str, **choice: Any) -> dict[str, Any]:
        async with AsyncClient(self.paths.socket, timeout_s=60) as client:
            events = client.stream("Sessions.Prompt", agent="talker", text=text, **choice)
            return ended([reply["event"] async for reply in events])

    async def dbus_ask(self, text: str, **choice: Any) -> dict[str, Any]:
        args = ("talker", text, options(choice))
        (said,) = await self.bus.call(NAME, ROOT, f"{NAME}.Manager", "Ask", "ssa{sv}", args, 60.0)
        return {"text": said}

    async def dbus_answer(self, text: str, **choice: Any) -> dict[str, Any]:
        args = ("talker", text, options(choice))
        (answer,) = await self.bus.call(NAME, ROOT, f"{NAME}.Manager", "AskForAnswer", "ssa{sv}", args, 60.0)
        return dict(answer)

    async def dbus_prompt(self, text: str, **choice: Any) -> dict[str, Any]:
        """The caller gets the signals of the turn, the last one with all that Varlink tells."""
        args = ("talker", text, options(choice))
        async with self.bus.signals(sender=NAME, interface=f"{NAME}.Turn", member="Event") as signals:
            await self.bus.call(NAME, ROOT, f"{NAME}.Manager", "Prompt", "ssa{sv}", args, 60.0)
            async with asyncio.timeout(60):
                async for signal in signals:
                    event = next(one for one in signal.args if isinstance(one, dict))
                    if event["type"] in ("done", "error"):
                        return ended([event])
        raise AssertionError("the turn told no end")

    async def lactl(self, text: str, **choice: Any) -> dict[str, Any]:
        words = ["prompt", "talker", text, "--json"]
        for name, value in choice.items():
            if name == "schema":
                file = self.folder / "schema.json"
                file.write_text(value if isinstance(value, str) else json.dumps(value))
                value = str(file)
            words.append(
                f"--{name.replace('_', '-')}={','.join(value) if isinstance(value, list) else value}"
            )
        env = environment(LIGHTAGENT_SOCKET=str(self.paths.socket))
        done = await asyncio.to_thread(finish, words, b"", env)
        if done.status and not done.out:
            raise from_dict(json.loads(done.err)["error"])
        return ended([json.loads(line) for line in done.out.splitlines()])


def options(choice: dict[str, Any]) -> dict[str, Variant]:
    given = {name: nested(value) if name == "schema" else value for name, value in choice.items()}
    return {name: Variant(SIGNATURES[name], value) for name, value in given.items()}


def nested(value: Any) -> Variant:
    if isinstance(value, dict):
        return Variant("a{sv}", {name: nested(one) for name, one in value.items()})
    if isinstance(value, list):
        return Variant("av", [nested(one) for one in value])
    return Variant("s", value)


def ended(events: list[dict[str, Any]]) -> dict[str, Any]:
    if events[-1]["type"] == "error":
        raise from_dict(events[-1])
    return events[-1]


WAYS = ("ask", "prompt", "dbus_ask", "dbus_answer", "dbus_prompt", "lactl")
FITS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({}, "plain", ["ok"]),
    ({"model": "openai/x"}, "plain", ["ok"]),
    ({"tools": ["proc"]}, "plain", ["ok"]),
    ({"tools": ["proc.info"]}, "plain", ["policy_denied"]),
    ({"tools": []}, "plain", ["policy_denied"]),
    ({"effects": ["reach"]}, "plain", ["policy_denied"]),
    ({"max_steps": 2}, "plain", ["ok"]),
    ({"schema": SCHEMA}, '{"used": 42}', ["ok"]),
    ({"schema": json.dumps(SCHEMA)}, '{"used": 42}', ["ok"]),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "other/y"}, "invalid_argument"),
    ({"tools": ["nosuch"]}, "tool_not_found"),
    ({"tools": ["systemd"]}, "choice_too_wide"),
    ({"effects": ["observe", "change"]}, "choice_too_wide"),
    ({"effects": ["nosuch"]}, "invalid_argument"),
    ({"max_steps": 0}, "invalid_argument"),
    ({"max_steps": 99}, "choice_too_wide"),
    ({"max_steps": 1}, "step_limit"),
    ({"schema": "{"}, "schema_invalid"),
    ({"schema": {"type": "nosuch"}}, "schema_invalid"),
    ({"schema": {"$ref": "https://example.org/x"}}, "schema_invalid"),
]


@pytest.fixture
async def planes(paths: Paths, tmp_path: Path) -> AsyncIterator[Planes]:
    extra = "tools: [proc]\neffects: [observe, reach]\nlimits: {max_steps: 5}\n"
    async with serving(paths, script, extra=extra) as (_, address), connect(address) as bus:
        yield Planes(paths=paths, bus=bus, folder=tmp_path)


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_takes_every_choice(planes: Planes, way: str) -> None:
    ask: Callable[..., Awaitable[dict[str, Any]]] = getattr(planes, way)
    for choice, text, results in FITS:
        answer = await ask("look", **choice)
        assert answer["text"] == text, choice
        if way == "dbus_ask":  # it gives the text alone, as it always did
            continue
        assert [one["result"] for one in answer["calls"]] == results, choice
        assert answer.get("data") == ({"used": 42} if "schema" in choice else None)
        assert answer["usage"]["total_tokens"] == 15 * answer["steps"]
        assert answer["finish_reason"] == "stop"
    for choice, code in REFUSED:
        with pytest.raises(LightagentError) as failure:
            await ask("look", **choice)
        assert failure.value.code == code, choice


@pytest.mark.parametrize("way", WAYS[:-1])
async def test_a_huge_schema_is_refused_by_every_way(planes: Planes, way: str) -> None:
    ask: Callable[..., Awaitable[dict[str, Any]]] = getattr(planes, way)
    for schema in ("x" * (10 << 20), {"description": "x" * (10 << 20)}):
        with pytest.raises(LightagentError) as failure:
            await ask("look", schema=schema)
        assert failure.value.code == "schema_invalid", str(failure.value)[:300]
    assert (await ask("look"))["text"] == "plain"


async def test_lactl_prints_json_as_it_is_and_ends_with_the_status_of_the_error(planes: Planes) -> None:
    env = environment(LIGHTAGENT_SOCKET=str(planes.paths.socket))
    file = planes.folder / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    words = ("prompt", "talker", "x", "--schema")
    done = await asyncio.to_thread(finish, (*words, str(file)), b"", env)
    assert (done.status, done.out) == (0, '{"used": 42}\n')
    file.write_text("x" * (10 << 20))
    for named, status, told in (
        (str(file), 65, "larger than 65536 bytes"),
        (str(planes.folder / "nosuch"), 66, "There is no file"),
        (str(planes.folder), 65, "cannot be read"),
    ):
        done = await asyncio.to_thread(finish, (*words, named), b"", env)
        assert (done.status, told in done.err) == (status, True), done.err
