"""A daemon whose agent `test` speaks to a scripted model: what the tests of agents are made of."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightagentd.agents.agent import Agent
from lightagentd.agents.sessions.session import Session
from lightagentd.agents.turn import Turn
from lightagentd.api import TurnEvent
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message
from tests.conftest import write
from tests.scripted_model import Script, ScriptedModel

ME = Caller(uid=os.getuid(), gid=os.getgid(), pid=os.getpid())


QUICKLY = "[models.providers.openai]\nmax_retry_s = 0.05\n"
"""Failed calls are made again, without long waits."""


@dataclass(kw_only=True)
class Scripted:
    """The daemon, its agent and its model."""

    daemon: Daemon
    model: ScriptedModel

    @property
    def agent(self) -> Agent:
        return self.daemon.registry.get("test")

    async def session(self) -> Session:
        made = await self.daemon.service.sessions.create(ME, "test", "")
        return self.agent.sessions[made.id]

    async def prompt(self, session: Session, text: str = "go") -> list[TurnEvent]:
        """Prompt, and give back all events of the turn."""
        events = await watch(await self.agent.prompt(session, text))
        check_calls(events)
        return events

    def stored(self, turn: str = "", topic: str = "") -> list[Event]:
        """The stored events of a turn or of everything, oldest first."""
        return self.daemon.history.queries.select(Filter(trace=turn, topic=topic), limit=10_000)

    def conversation(self, session: Session) -> list[Message]:
        """The session's messages as they are stored."""
        events = self.daemon.history.queries.messages(session.id)
        return [Message.from_dict(event.data) for event in events if event.data]


@contextlib.asynccontextmanager
async def scripted(
    paths: Paths, script: Script, *, front: str = "", toml: str = "", body: str = "Be brief."
) -> AsyncIterator[Scripted]:
    """A running daemon with the agent `test`; `front` are more lines of its front matter."""
    async with ScriptedModel(script) as model:
        define(paths, model, front=front, body=body)
        write(paths.config / "lightagentd.toml.d" / "10-retry.toml", QUICKLY)
        if toml:
            write(paths.config / "lightagentd.toml", toml)
        async with Daemon(paths) as daemon:
            yield Scripted(daemon=daemon, model=model)


def define(paths: Paths, model: ScriptedModel, *, front: str = "", body: str = "Be brief.") -> None:
    """Write the definition of the agent `test`."""
    text = f"---\nmodel: openai/x\nbase_url: {model.base_url}\n{front}\n---\n{body}\n"
    write(paths.config / "agent" / "test" / "AGENT.md", text)


async def watch(turn: Turn) -> list[TurnEvent]:
    """The events of a turn up to its last one."""
    return [event async for event in turn.stream.watch().events()]


async def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Wait until something is so; the time is only there to end a test that fails."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def types(events: Sequence[TurnEvent]) -> list[str]:
    """The types of events, without the live output of tools."""
    return [event["type"] for event in events if event["type"] != "tool_output"]


def check_calls(events: Sequence[TurnEvent]) -> None:
    """Each call of a turn that ended has a beginning, and then one result."""
    began = [event["call_id"] for event in events if event["type"] == "tool_call"]
    assert began == [event["call_id"] for event in events if event["type"] == "tool_result"]
    assert len({*began}) == len(began)


def check_conversation(messages: Sequence[Message]) -> None:
    """What every chat completions endpoint demands: each call is answered, once, before anything else."""
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id in open_calls, f"a result without a call: {message}"
            open_calls.remove(message.tool_call_id)
        else:
            assert not open_calls, f"{message.role} comes before the results of {open_calls}"
            open_calls = [call.id for call in message.tool_calls]
            assert len(set(open_calls)) == len(open_calls)
    assert not open_calls, f"calls without a result: {open_calls}"
