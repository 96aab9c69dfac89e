"""What the tests of sessions share: a daemon with a talking agent, and what one does with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from lightagentd import errors
from lightagentd.client.aio import AsyncClient
from lightagentd.host.paths import Paths
from tests.agents.asking import add, asking
from tests.agents.scripted import Scripted, until
from tests.scripted_model import Answer, call, say


@contextlib.asynccontextmanager
async def caring(paths: Paths, toml: str = "") -> AsyncIterator[Scripted]:
    """A daemon whose model echoes each prompt; the prompt `ask` has it want to add a line to `out_of(test)`,
    which a person is asked about.
    """

    def script(body: dict[str, Any]) -> Answer:
        last = body["messages"][-1]
        if last["role"] == "user" and last["content"].startswith("ask"):
            return call("probe_add", add(_out(paths)), call_id="call_1")
        prompts = [message["content"] for message in body["messages"] if message["role"] == "user"]
        return say(f"re: {prompts[-1]}")

    async with asking(paths, script, toml=toml) as test:
        yield test


def out_of(test: Scripted) -> Path:
    """The file that the agent adds lines to."""
    return _out(test.daemon.paths)


def _out(paths: Paths) -> Path:
    return paths.state.parent / "out" / "lines"


async def make(client: AsyncClient, *prompts: str, title: str = "") -> dict[str, Any]:
    """A session in which some prompts were answered."""
    made = (await client.call("Sessions.Create", agent="test", title=title))["session"]
    for text in prompts:
        await ask(client, text, session=made["id"])
    return await get(client, made["id"])


async def ask(client: AsyncClient, text: str, **where: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await client.call("Manager.Ask", agent="test", text=text, **where))["answer"]
    return found


async def get(client: AsyncClient, session: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.call("Sessions.Get", session=session))["session"]
    return found


async def conversation(client: AsyncClient, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.call("Sessions.Messages", session=session, limit=1000))[
        "messages"
    ]
    return found


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


class Watching:
    """Collects what a watcher of a session is told, on a connection of its own."""

    def __init__(self, test: Scripted, session: str) -> None:
        self._test, self._session = test, session
        self.events: list[dict[str, Any] | None] = []
        self.failure: errors.LightagentError | None = None

    async def __aenter__(self) -> Watching:
        self.task = asyncio.create_task(self._watch())
        await until(lambda: self.events or self.task.done())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _watch(self) -> None:
        async with AsyncClient(self._test.daemon.paths.socket) as client:
            try:
                async with aclosing(client.stream("Sessions.Watch", session=self._session)) as replies:
                    async for reply in replies:
                        self.events.append(reply["event"])
            except errors.LightagentError as err:
                self.failure = err

    def types(self) -> list[str]:
        return [event["type"] if event else "null" for event in self.events if not event or event["type"]]

    async def has(self, event_type: str, count: int = 1) -> dict[str, Any]:
        """Wait for so many events of a type; gives the newest of them."""
        await until(lambda: self.types().count(event_type) >= count)
        return [event for event in self.events if event and event["type"] == event_type][-1]
