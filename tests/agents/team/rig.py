"""A daemon with a team: agents that ask each other, whose models follow one script for each agent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from lightagentd.agents.sessions.session import Session, SessionRecord
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, QUICKLY, Scripted
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, Stream, call

Says = Callable[[dict[str, Any]], Answer]
"""From the body of a request to the answer."""


class Team(Scripted):
    """The daemon, its agents and their model. `test` is the one that is prompted."""

    def records(self, agent: str) -> list[SessionRecord]:
        """The stored child sessions with an agent, the oldest first."""
        stored = self.daemon.history.queries.state("sessions").values()
        found = [SessionRecord.from_dict(one) for one in stored]
        return sorted(
            (one for one in found if one.parent and one.agent == agent), key=lambda one: one.created_us
        )

    def ends(self, session: str) -> list[str]:
        """How the turns of a session ended."""
        return [
            event.type
            for event in self.stored()
            if event.session == session and event.topic in ("session.turn", "agent.error")
            if event.type != "started"
        ]

    async def begin(self) -> Session:
        made = await self.daemon.service.sessions.create(ME, "test", "")
        return self.agent.sessions[made.id]


def by_agent(scripts: Mapping[str, Sequence[Answer] | Says]) -> Says:
    """Answers each agent by its own script: the number of results since the prompt says which is next."""

    def answer(body: dict[str, Any]) -> Answer:
        system = str(body["messages"][0]["content"])
        name = next(one for one in scripts if f"You are the agent {one} on" in system)
        script = scripts[name]
        if callable(script):
            return script(body)
        done = 0
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                break
            done += message["role"] == "tool"
        return script[min(done, len(script) - 1)]

    return answer


def results(body: dict[str, Any]) -> list[str]:
    """The results of calls since the newest prompt."""
    found: list[str] = []
    for message in reversed(body["messages"]):
        if message["role"] == "user":
            break
        if message["role"] == "tool":
            found.insert(0, str(message["content"]))
    return found


def ask(agent: str, text: str = "look", *, call_id: str = "ask1", **more: Any) -> Stream:
    """A model's answer that asks another agent."""
    return call("agent_ask", {"agent": agent, "text": text, **more}, call_id=call_id)


@contextlib.asynccontextmanager
async def team(
    paths: Paths,
    scripts: Mapping[str, Sequence[Answer] | Says],
    *,
    fronts: Mapping[str, str] | None = None,
    toml: str = "",
) -> AsyncIterator[Team]:
    """A running daemon with an agent for each script; `fronts` are more lines of their front matter."""
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, fronts or {}, toml)
        async with Daemon(paths) as daemon:
            yield Team(daemon=daemon, model=model)


def define_team(
    paths: Paths,
    model: ScriptedModel,
    names: Mapping[str, Any],
    fronts: Mapping[str, str],
    toml: str = "",
) -> None:
    for name in names:
        front = f"model: openai/x\nbase_url: {model.base_url}\n{fronts.get(name, '')}"
        write(paths.config / "agent" / name / "AGENT.md", f"---\n{front}\n---\nBe brief.\n")
    write(paths.config / "lightagentd.toml.d" / "10-retry.toml", QUICKLY)
    if toml:
        write(paths.config / "lightagentd.toml", toml)


def functions(body: dict[str, Any]) -> list[str]:
    """The functions that a request offers."""
    return [str(tool["function"]["name"]) for tool in body.get("tools", [])]


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
