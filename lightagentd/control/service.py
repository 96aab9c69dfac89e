"""Every operation of the daemon, once. The control planes translate names, types and errors, no more.

Each operation takes the caller first and checks what he may do before anything else. Operations raise
LightagentError only.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from lightagentd import __version__, api
from lightagentd.agents.agent import Agent
from lightagentd.agents.definition import AgentFrontMatter
from lightagentd.agents.session import Session, check_prompt, new_record
from lightagentd.agents.stream import Watcher
from lightagentd.agents.toolcall import call_as_person
from lightagentd.control.approval_operations import ApprovalOperations, for_caller, may_approve
from lightagentd.control.authz import Caller, Operation, check
from lightagentd.control.checkup_operations import CheckupOperations
from lightagentd.control.policy_operations import PolicyOperations
from lightagentd.control.presentation import (
    broken_skill_info,
    error_of,
    skill_info,
    stored_event,
    tool_info,
)
from lightagentd.control.safety_operations import SafetyOperations
from lightagentd.control.undo_operations import UndoOperations
from lightagentd.errors import (
    InvalidArgument,
    LightagentError,
    SessionNotFound,
    ShuttingDown,
    SkillNotFound,
    TimedOut,
    ToolNotFound,
)
from lightagentd.events.feed import Feed
from lightagentd.events.history import History, NewEvent
from lightagentd.events.queries import Filter

if TYPE_CHECKING:
    from lightagentd.daemon import Daemon

_T = TypeVar("_T")
MAX_LIMIT = 1000
"""The most events or messages that one answer holds; a stream has no such limit."""
MAX_TIMEOUT_S = 86_400.0


class Service(ApprovalOperations, PolicyOperations, SafetyOperations, CheckupOperations, UndoOperations):
    """The operations. The daemon makes it and owns everything that it works on."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon
        self._registry = daemon.registry
        self._history: History = daemon.history
        self._feed: Feed = daemon.feed
        self._managing = asyncio.Lock()
        """Held while agents are made, removed, started, stopped or read again: one such change at a time."""

    # The daemon

    async def status(self, caller: Caller) -> api.Status:
        check(caller, Operation.INSPECT)
        daemon, agents = self._daemon, list(self._registry.agents.values())
        pool = daemon.pool
        return api.Status(
            version=__version__,
            pid=os.getpid(),
            state="draining" if daemon.draining else "panicked" if daemon.panic.on else "running",
            panic=self._panic_info(),
            started_us=daemon.started_us,
            uptime_s=round(time.time() - daemon.started_us / 1e6, 3),
            model=daemon.config.models.default,
            agents_running=sum(agent.state == "running" for agent in agents),
            agents_total=len(self._registry.definitions.paths),
            sessions=sum(len(self._visible(caller, agent)) for agent in agents),
            turns_running=sum(agent.turns_running - agent.turns_waiting for agent in agents),
            turns_queued=sum(agent.turns_queued for agent in agents),
            turns_waiting=sum(agent.turns_waiting for agent in agents),
            sandbox=pool.backend.name,
            journal=daemon.journal is not None,
            journal_dropped=daemon.journal.dropped if daemon.journal else 0,
            history=api.HistoryStatus(
                path=str(daemon.paths.history),
                events=self._history.head_seq,
                size_bytes=(daemon.paths.history / "data.mdb").stat().st_blocks * 512,
                disk_low=self._history.disk_low,
            ),
            workers=[
                api.WorkerStatus(
                    agent=worker.agent,
                    effect=worker.where.value,
                    backend=worker.backend.name,
                    enforced=worker.backend.enforced,
                    pid=worker.pid,
                    busy=worker.busy,
                )
                for worker in pool.workers()
            ],
            problems=daemon.problems(),
        )

    async def reload(self, caller: Caller) -> api.Reloaded:
        check(caller, Operation.ADMINISTER)
        return await self.reload_content()

    async def reload_content(self) -> api.Reloaded:
        """What SIGHUP asks for, and an administrator."""
        async with self._managing:
            return await self._daemon.reload()

    # Agents

    async def list_agents(self, caller: Caller) -> list[api.Agent]:
        check(caller, Operation.INSPECT)
        return [self._agent(caller, name) for name in sorted(self._registry.definitions.paths)]

    async def get_agent(self, caller: Caller, name: str) -> api.Agent:
        check(caller, Operation.INSPECT)
        if name not in self._registry.definitions.paths:
            self._registry.get(name)
        return self._agent(caller, name)

    async def create_agent(
        self,
        caller: Caller,
        *,
        name: str,
        description: str,
        role: str,
        model: str,
        base_url: str,
        api_key_file: str,
        prompt: str,
    ) -> api.Agent:
        check(caller, Operation.MANAGE_AGENTS)
        self._check_open()
        _check_no_nul(description=description, api_key_file=api_key_file, prompt=prompt)
        try:
            front = AgentFrontMatter(
                description=description,
                role=role,
                model=model,
                base_url=base_url,
                api_key_file=Path(api_key_file) if api_key_file else None,
            )
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidArgument(f"{field}: {first['msg']}.", field=field) from err
        async with self._managing:
            await self._registry.create(name, front, prompt)
        return self._agent(caller, name)

    async def delete_agent(self, caller: Caller, name: str) -> None:
        check(caller, Operation.MANAGE_AGENTS)
        async with self._managing:
            await self._registry.delete(name)

    async def start_agent(self, caller: Caller, name: str) -> api.Agent:
        check(caller, Operation.MANAGE_AGENTS)
        self._check_open()
        async with self._managing:
            await self._registry.get(name).start()
        return self._agent(caller, name)

    async def stop_agent(self, caller: Caller, name: str) -> api.Agent:
        check(caller, Operation.MANAGE_AGENTS)
        async with self._managing:
            await self._registry.get(name).stop()
            await self._daemon.pool.end_agent(name)
        return self._agent(caller, name)

    async def restart_agent(self, caller: Caller, name: str) -> api.Agent:
        check(caller, Operation.MANAGE_AGENTS)
        self._check_open()
        async with self._managing:
            await self._registry.get(name).stop()
            await self._daemon.pool.end_agent(name)
            await self._registry.get(name).start()
        return self._agent(caller, name)

    def _agent(self, caller: Caller, name: str) -> api.Agent:
        definitions = self._registry.definitions
        path = str(definitions.paths.get(name, ""))
        definition = definitions.agents.get(name)
        if definition is None:
            blank = AgentFrontMatter()
            problem, state, running = definitions.broken.get(name, ""), "broken", None
        else:
            blank, running = definition.front, self._registry.agents.get(name)
            problem, state = (running.problem, running.state) if running else ("", "stopped")
        return api.Agent(
            name=name,
            description=blank.description,
            role=blank.role,
            model=blank.model or self._daemon.config.models.default,
            fallback=blank.fallback,
            tools=blank.tools if blank.tools is not None else sorted(self._registry.toolbox.tools),
            skills=blank.skills if blank.skills is not None else sorted(self._registry.skills.skills),
            effects=[effect.value for effect in blank.effects],
            max_steps=blank.limits.max_steps or self._daemon.config.limits.max_steps,
            origin=path,
            state=state,
            restarts=running.restarts if running else 0,
            sessions=len(self._visible(caller, running)) if running else 0,
            problem=problem,
        )

    # Sessions

    async def create_session(self, caller: Caller, agent: str, title: str) -> api.Session:
        check(caller, Operation.PROMPT)
        return self._session_info(await self._new_session(caller, self._registry.get(agent), title))

    async def list_sessions(self, caller: Caller, agent: str) -> list[api.Session]:
        check(caller, Operation.INSPECT)
        agents = [self._registry.get(agent)] if agent else list(self._registry.agents.values())
        found = [session for one in agents for session in self._visible(caller, one)]
        found.sort(key=lambda session: session.record.updated_us, reverse=True)
        return [self._session_info(session) for session in found]

    async def get_session(self, caller: Caller, session: str) -> api.Session:
        check(caller, Operation.INSPECT)
        return self._session_info(self._own_session(caller, session)[1])

    async def messages(self, caller: Caller, session: str, limit: int) -> list[api.Message]:
        check(caller, Operation.INSPECT)
        _check_limit(limit)
        self._own_session(caller, session)
        return [
            api.Message(
                seq=event.seq,
                time_us=event.time_us,
                role=event.data["role"],
                content=event.data["content"],
                name=event.data.get("name", ""),
                tool_call_id=event.data.get("tool_call_id", ""),
                tool_calls=event.data.get("tool_calls", []),
            )
            for event in self._history.messages(session)[-limit:]
            if event.data is not None
        ]

    async def prompt(
        self,
        caller: Caller,
        *,
        agent: str,
        text: str,
        session: str,
        new: bool,
        correlation_id: str,
        unattended: bool = False,
        outside: bool = False,
    ) -> AsyncGenerator[api.TurnEvent, None]:
        check(caller, Operation.PROMPT)
        self._check_open()
        self._daemon.panic.check()
        check_prompt(text, self._daemon.config.limits.max_prompt_bytes)
        if len(correlation_id) > 256:
            raise InvalidArgument("The correlation id is longer than 256 characters.", field="correlation_id")
        begun = self._begin_turn(
            caller, agent, text, session, correlation_id, new=new, unattended=unattended, outside=outside
        )
        watcher = await _whole(begun)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield for_caller(event, caller)

    async def _begin_turn(
        self,
        caller: Caller,
        agent: str,
        text: str,
        session: str,
        correlation_id: str,
        *,
        new: bool,
        unattended: bool,
        outside: bool,
    ) -> Watcher:
        running, found = await self._session_for(caller, agent, session, new=new)
        turn = await running.prompt(found, text, correlation_id, unattended=unattended, outside=outside)
        return turn.stream.watch()

    async def ask(
        self, caller: Caller, *, agent: str, text: str, session: str, new: bool, timeout_s: float | None
    ) -> api.Answer:
        if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise InvalidArgument(
                f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g}.", field="timeout_s"
            )
        events = self.prompt(caller, agent=agent, text=text, session=session, new=new, correlation_id="")
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events:
                    if event["type"] == "error":
                        raise error_of(event)
                    if event["type"] == "done":
                        return api.Answer(
                            text=event["text"],
                            session=event["session"],
                            trace_id=event["trace_id"],
                            steps=event["steps"],
                            duration_ms=event["duration_ms"],
                        )
        except TimeoutError as err:
            raise TimedOut(
                f"There was no answer within {timeout_s:g} seconds; the turn goes on.",
                suggestion="Look at the session later, or cancel it.",
            ) from err
        finally:
            await events.aclose()
        raise LightagentError("The turn ended without a last event.")

    async def cancel(self, caller: Caller, session: str) -> int:
        check(caller, Operation.PROMPT)
        agent, found = self._own_session(caller, session)
        return agent.cancel(found)

    async def _session_for(
        self, caller: Caller, agent: str, session: str, *, new: bool
    ) -> tuple[Agent, Session]:
        if session:
            running, found = self._own_session(caller, session)
            if agent and running.name != agent:
                raise SessionNotFound(
                    f"The session {session} is not with the agent {agent[:60]!r}.", field="session"
                )
            return running, found
        if not agent:
            raise InvalidArgument("Name an agent or a session.", field="agent")
        running = self._registry.get(agent)
        own = [one for one in running.sessions.values() if one.record.owner == caller.uid]
        if own and not new:
            return running, max(own, key=lambda one: one.record.updated_us)
        return running, await self._new_session(caller, running, "")

    async def _new_session(self, caller: Caller, agent: Agent, title: str) -> Session:
        self._check_open()
        record = new_record(agent.name, caller.uid, title[:200])
        session = Session(record, self._history)
        with session.context():
            created = NewEvent(topic="session.created", type="created", data={"title": record.title})
            await self._history.append(created, changes=(record.change(),))
        return agent.adopt(session)

    def _own_session(self, caller: Caller, session: str) -> tuple[Agent, Session]:
        agent, found = self._registry.session(session)
        if found not in self._visible(caller, agent):
            raise SessionNotFound(
                f"There is no session {session[:60]!r}.",
                suggestion="Run: lactl sessions list",
                field="session",
            )
        return agent, found

    def _visible(self, caller: Caller, agent: Agent) -> list[Session]:
        viewer = caller.viewer
        return [one for one in agent.sessions.values() if viewer is None or one.record.owner == viewer]

    def _session_info(self, session: Session) -> api.Session:
        record = session.record
        return api.Session(
            id=record.id,
            agent=record.agent,
            owner=record.owner,
            title=record.title,
            state="waiting" if session.waiting else "running" if session.running else "idle",
            created_us=record.created_us,
            updated_us=record.updated_us,
            turns=record.turns,
            queued=len(session.queue),
            tainted=record.tainted,
            tainted_by=record.tainted_by,
            hosts=list(record.hosts),
        )

    # Events and history

    async def subscribe(
        self, caller: Caller, wanted: Filter, from_seq: int | None, *, follow: bool
    ) -> AsyncGenerator[api.StoredEvent, None]:
        check(caller, Operation.INSPECT)
        if from_seq is not None and from_seq < 0:
            raise InvalidArgument("from_seq must not be negative.", field="from_seq")
        wanted = replace(wanted, viewer=caller.viewer)
        first = self._history.head_seq + 1 if from_seq is None else max(1, from_seq)
        last = None if follow else self._history.head_seq
        async with aclosing(self._feed.follow(self._history, wanted, first, last)) as events:
            async for event in events:
                yield stored_event(event)

    async def query(self, caller: Caller, wanted: Filter, limit: int) -> list[api.StoredEvent]:
        check(caller, Operation.INSPECT)
        _check_limit(limit)
        wanted = replace(wanted, viewer=caller.viewer)
        found = await asyncio.to_thread(self._history.newest, wanted, limit)
        return [stored_event(event) for event in found]

    async def verify(self, caller: Caller) -> api.Verification:
        check(caller, Operation.INSPECT)
        found = await asyncio.to_thread(self._history.verify)
        return api.Verification(**asdict(found))

    # Tools and skills

    async def list_tools(self, caller: Caller) -> list[api.Tool]:
        check(caller, Operation.INSPECT)
        return [tool_info(tool) for tool in self._registry.toolbox.tools.values()]

    async def get_tool(self, caller: Caller, name: str) -> api.Tool:
        check(caller, Operation.INSPECT)
        tool = self._registry.toolbox.tools.get(name)
        if tool is None:
            raise ToolNotFound(f"There is no tool {name[:60]!r}.", suggestion="Run: lactl tools list")
        return tool_info(tool)

    async def call_tool(
        self, caller: Caller, *, agent: str, tool: str, action: str, args: Any
    ) -> AsyncGenerator[api.TurnEvent, None]:
        check(caller, Operation.PROMPT)
        self._check_open()
        self._daemon.panic.check()
        if not isinstance(args, dict):
            raise InvalidArgument("args must be an object.", field="args")
        running = self._registry.get(agent)
        called = call_as_person(running, caller.uid, tool, action, args, may_approve=may_approve(caller))
        async with aclosing(called) as events:
            async for event in events:
                yield for_caller(event, caller)

    async def list_skills(self, caller: Caller) -> list[api.Skill]:
        check(caller, Operation.INSPECT)
        catalog = self._registry.skills
        found = [skill_info(skill, body="") for skill in catalog.skills.values()]
        found += [broken_skill_info(name, why) for name, why in catalog.broken.items()]
        return sorted(found, key=lambda skill: skill.name)

    async def get_skill(self, caller: Caller, name: str) -> api.Skill:
        check(caller, Operation.INSPECT)
        catalog = self._registry.skills
        if name in catalog.broken:
            return broken_skill_info(name, catalog.broken[name])
        if name not in catalog.skills:
            raise SkillNotFound(f"There is no skill {name[:60]!r}.", suggestion="Run: lactl skills list")
        return skill_info(catalog.skills[name], body=catalog.skills[name].body)

    def _check_open(self) -> None:
        if self._daemon.draining:
            raise ShuttingDown("The daemon is stopping and takes no new work.", suggestion="Try again later.")


async def _whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Run what must not be left half done: a caller who is cancelled in it ends only after it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit must be from 1 to {MAX_LIMIT}.", field="limit")


def _check_no_nul(**texts: str) -> None:
    for field, text in texts.items():
        if "\0" in text:
            raise InvalidArgument(f"{field} holds a NUL byte.", field=field, suggestion="Remove it.")
