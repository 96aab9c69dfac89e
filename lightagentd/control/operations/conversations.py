"""The operations on conversations in sessions: prompts, answers, messages, and watching a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.choosing import NOTHING, Choice, admit, chosen
from lightagentd.agents.sessions.attachments import compose
from lightagentd.agents.sessions.checks import check_prompt
from lightagentd.agents.sessions.session import Session, session_not_found
from lightagentd.agents.stream import REQUESTS, Watcher
from lightagentd.agents.team.asides import Aside
from lightagentd.agents.turn import Asked
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, correlation, is_last_event
from lightagentd.control.operations.declared import Operations, method, stream
from lightagentd.control.operations.sessions import Sessions, session_info, tell_of_former
from lightagentd.errors import (
    InvalidArgument,
    LightagentError,
    SessionNotFound,
    ShuttingDown,
    TimedOut,
    from_dict,
)
from lightagentd.llm.protocol import Message
from lightagentd.policy.operation import Operation
from lightagentd.quoted import Prompt, sent

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

MAX_TIMEOUT_S = 86_400.0


class Conversations(Operations, interface="org.lightagent1.Sessions"):
    """What is said in sessions."""

    def __init__(self, access: Access, runtime: Runtime, sessions: Sessions) -> None:
        self._access, self._now, self._panic = access, runtime.now, runtime.panic
        self._registry, self._history = runtime.registry, runtime.history
        self._sessions, self._asides = sessions, runtime.registry.shared.asides

    @stream("Prompt", returns="event", is_last=is_last_event)
    async def prompt(
        self,
        caller: Caller,
        *,
        text: str,
        agent: str = "",
        session: str = "",
        new: bool = False,
        correlation_id: str = "",
        unattended: bool = False,
        outside: bool = False,
        attachments: list[api.Attachment] | None = None,
        model: str = "",
        tools: list[str] | None = None,
        effects: list[str] | None = None,
        max_steps: int | None = None,
        schema: Any = None,
        stubs: Any = None,
        deliberate: bool | None = None,
        becomes_current: bool = True,
    ) -> AsyncGenerator[api.TurnEvent, None]:
        """Prompt an agent and stream the turn. Without session the caller's current one with the agent goes
        on, or with new a fresh one begins. The turn goes on when the caller hangs up. With unattended nobody
        is asked for approvals: what would be asked for is refused. With outside the prompt holds text that
        the caller did not write himself, such as standard input: it taints the session. attachments follow
        the text, each in a block of its own; they taint the session, too. The session becomes the caller's
        current one, unless becomes_current is false.

        What follows is for this one turn, and never gives it more than the agent has. model is asked first,
        one that the agent or [models] of the configuration names. tools (TOOL or TOOL.ACTION, none when
        empty) and effects are those that the turn may use, and the agents that it asks; max_steps is at most
        the agent's own limit. With schema, a JSON Schema as an object or as its text, the answer is JSON that
        fits it: the event done has it as data, too. The model is asked once more when it does not fit, then
        the turn ends with the error answer_misfit. deliberate has drafts of a plan made and judged first, for
        an agent with deliberate in its AGENT.md, or with false none; each is a model call that counts.

        stubs are for assessments: a list of objects with tool, action, args (what the call's arguments have
        in them), and output or error. A call that one matches runs nowhere, and its result is the stub's.
        With stubs, even an empty list, a call that none matches runs only if it observes, and only the first
        model is asked.
        """
        caller = await self._admitted(caller, agent, session)
        given: dict[str, Any] = {"model": model, "tools": tools, "effects": effects, "max_steps": max_steps}
        choice = await chosen(**given, schema=schema, stubs=stubs, deliberate=deliberate)
        asked = Asked(
            prompt=self._composed(text, attachments or [], outside=outside),
            correlation_id=correlation(caller, correlation_id),
            unattended=unattended,
            outside=outside or bool(attachments),
            choice=choice,
        )
        begun = self._begin(caller, asked, agent, session, new=new, becomes_current=becomes_current)
        name, watcher = await uninterrupted(begun)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield await self._access.for_caller(event, caller, name)

    async def _admitted(self, caller: Caller, agent: str, session: str) -> Caller:
        """The caller who may prompt the agent, or go on with the session. Raises what `Access` does."""
        if session:
            caller, _, _ = await self._access.admit_to(caller, Operation.PROMPT, session)
        else:
            caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        await self._access.check_open(caller)
        self._panic.check()
        return caller

    async def _admit_to_member(self, caller: Caller, agent: str, session: str, member: str) -> None:
        """Raises PermissionDenied for who may not prompt a member of the agent's team."""
        if not member:
            return
        running = self._access.session(caller, session)[0] if session else self._registry.get(agent)
        members = self._registry.shared.content.members_of(running.running_parts().definition)
        if member in members:  # of another one there is an error later
            await self._access.admit(caller, Operation.PROMPT, agent=members[member])

    @method("SendEvent", returns="handled")
    async def send_event(
        self,
        caller: Caller,
        *,
        content: str,
        agent: str = "",
        session: str = "",
        system_append: str = "",
        initial_messages: Any = "empty",
        tools_add: list[str] | None = None,
        tools_remove: list[str] | None = None,
        skills_remove_prefix: str = "",
        allow_activate_skill: bool = True,
        sub_agent_name: str = "",
        max_steps: int | None = None,
        unattended: bool = False,
        outside: bool = True,
    ) -> api.Handled:
        """Have an event handled aside: by one bounded turn in a session of its own, a child of the caller's
        current one with the agent, or of session. That conversation is untouched, unless the turn writes a
        message into it. Answers once the event is stored.

        initial_messages is what the turn knows of before: empty, forked for the conversation, or a list of
        objects with role (user, assistant) and content. system_append is more text for the system prompt. The
        rest only narrows: the turn is without the tools in tools_remove (TOOL or TOOL.ACTION), but those in
        tools_add, without skills whose names begin with skills_remove_prefix, and without skill.activate
        unless allow_activate_skill. sub_agent_name is a member of the team that handles it. With unattended
        nobody is asked for approvals. content counts as text from outside, unless outside is false.
        """
        caller = await self._admitted(caller, agent, session)
        await self._admit_to_member(caller, agent, session, sub_agent_name)
        check_prompt(content, self._now.config.limits.max_prompt_bytes)
        how = Aside(
            system_append=system_append,
            initial_messages=_given(initial_messages),
            tools_add=tools_add or (),
            tools_remove=tools_remove or (),
            skills_remove_prefix=skills_remove_prefix,
            allow_activate_skill=allow_activate_skill,
            sub_agent_name=sub_agent_name,
            max_steps=(await chosen(max_steps=max_steps)).max_steps,
            unattended=unattended,
            outside=outside,
        )
        running, found = await self._session_for(
            caller, agent, session, new=False, becomes_current=True, choice=NOTHING
        )
        turn = await self._asides.send(self._registry, running, found, content, how)
        return api.Handled(session=turn.session.id, parent=found.id, trace_id=turn.trace_id)

    @method("Ask", returns="answer", interface="org.lightagent1.Manager")
    async def ask(
        self,
        caller: Caller,
        *,
        agent: str,
        text: str,
        session: str = "",
        new: bool = False,
        timeout_s: float | None = None,
        model: str = "",
        tools: list[str] | None = None,
        effects: list[str] | None = None,
        max_steps: int | None = None,
        schema: Any = None,
        deliberate: bool | None = None,
    ) -> api.Answer:
        """Prompt an agent and wait for the final answer; Sessions.Prompt streams instead, and says what
        model, tools, effects, max_steps, schema and deliberate mean.
        """
        check_timeout(timeout_s)
        events = self.prompt(
            caller,
            agent=agent,
            text=text,
            session=session,
            new=new,
            model=model,
            tools=tools,
            effects=effects,
            max_steps=max_steps,
            schema=schema,
            deliberate=deliberate,
        )
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events:
                    if event["type"] == "error":
                        raise from_dict(event)
                    if event["type"] == "done":
                        return api.answer_of(event)
        except TimeoutError as err:
            raise TimedOut(
                f"There was no answer within {timeout_s:g} seconds; the turn goes on.",
                suggestion="Look at the session later, or cancel it.",
            ) from err
        finally:
            await events.aclose()
        raise LightagentError("The turn ended without a last event.")

    @stream("Watch", returns="event")
    async def watch(self, caller: Caller, session: str) -> AsyncGenerator[api.TurnEvent, None]:
        """What happens in a session from now on, turn after turn, whoever prompts. First comes an event
        session with the session as it is, and what the running turn waits for, if it waits. Ends with a null
        event when the session is deleted or the daemon stops.
        """
        caller, agent, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        sight = self._access.sight(caller, agent.name)
        watcher = found.stream.watch()
        async with aclosing(watcher.events(of_session=True)) as events:
            info = asdict(session_info(found))
            opened = turn_events.SessionChanged(session_info=info)
            yield {"type": opened.type, "session": found.id, "trace_id": "", **opened.fields()}
            if (asked := _waits_for(found)) is not None:
                yield await self._access.for_caller(asked, caller, agent.name)
            if found.stream.ended:
                return
            async for event in events:
                if not await sight.sees_of(agent.name, found.record.owner):
                    raise session_not_found(found.id)
                yield await self._access.for_caller(event, caller, agent.name)

    @method("Wait", returns="session_info")
    async def wait(self, caller: Caller, session: str, timeout_s: float | None = None) -> api.Session:
        """Wait until nothing runs or waits in a session, or until timeout_s is over (error timeout). A paused
        session counts as done when its running turn is, and so does a plan that stopped at a failed task.
        """
        check_timeout(timeout_s)
        caller, _, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        try:
            async with asyncio.timeout(timeout_s):
                await _until_at_rest(found, caller)
        except TimeoutError as err:
            raise TimedOut(
                f"The session {found.id} did not come to rest within {timeout_s:g} seconds; it goes on.",
                suggestion="Look at it later, or cancel what runs in it.",
            ) from err
        found.check_there()
        if not found.at_rest and self._now.draining:
            raise ShuttingDown("The daemon stops; what runs in the session goes on with its next start.")
        return session_info(found)

    @method("Cancel", returns="cancelled")
    async def cancel(self, caller: Caller, session: str) -> int:
        """Cancel the running turn and the queued prompts of a session; says how many turns that were."""
        _, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        return agent.cancel(found)

    async def _begin(
        self, caller: Caller, asked: Asked, agent: str, session: str, *, new: bool, becomes_current: bool
    ) -> tuple[str, Watcher]:
        """Begin the turn of a prompt; gives the agent's name, and the turn's events."""
        # A program that speaks for its owner does not move what they go on with themselves.
        becomes_current = becomes_current and not asked.unattended and caller.grant is None
        running, found = await self._session_for(
            caller, agent, session, new=new, becomes_current=becomes_current, choice=asked.choice
        )
        owner = found.record.owner
        named = bool(session) and becomes_current and owner == caller.uid and not found.is_current
        before = running.current_of(owner) if named else None
        turn = await running.ask(found, replace(asked, becomes_current=named))
        watcher = turn.stream.watch()
        tell_of_former(before)
        return running.name, watcher

    def _composed(self, text: str, attachments: list[api.Attachment], *, outside: bool) -> Prompt:
        """The prompt with its attachments. Raises InvalidArgument."""
        limits = self._now.config.limits
        composed = compose(sent(text, outside=outside), attachments, limits)
        check_prompt(composed.text, limits.max_prompt_bytes)
        return composed

    async def _session_for(
        self,
        caller: Caller,
        agent: str,
        session: str,
        *,
        new: bool,
        becomes_current: bool,
        choice: Choice,
    ) -> tuple[Agent, Session]:
        """The session for a prompt. A newly made session becomes the current one, if that is wanted. Raises
        AgentNotRunning, and for a choice what `admit` raises, where one would have to be made.
        """
        if session:
            running, found = self._access.session(caller, session)
            if agent and running.name != agent:
                raise SessionNotFound(
                    f"The session {session} is not with the agent {agent[:60]!r}.", field="session"
                )
            return running, found
        if not agent:
            raise InvalidArgument("Name an agent or a session.", field="agent")
        running = self._registry.get(agent)
        current = None if new else running.current_of(caller.uid)
        if current is not None:
            return running, current
        admit(choice, running.running_parts())  # else a refused prompt would leave an empty session
        made = self._sessions.begin(caller, running, "", becomes_current=becomes_current)
        return running, await made


def _given(messages: Any) -> Literal["empty", "forked"] | list[Message]:
    """Raises InvalidArgument."""
    if messages == "empty" or messages == "forked":
        return cast(Literal["empty", "forked"], messages)
    try:
        return [Message(role=one.role, content=one.content) for one in _MESSAGES.validate_python(messages)]
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidArgument(
            f"initial_messages is empty, forked, or messages with role and content: {where}: {first['msg']}.",
            field="initial_messages",
        ) from None


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["user", "assistant"]
    content: str = Field(min_length=1, max_length=1 << 20)


_MESSAGES = TypeAdapter(Annotated[list[_Given], Field(max_length=1000)])


def check_timeout(timeout_s: float | None) -> None:
    """Raises InvalidArgument."""
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidArgument(
            f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g}.", field="timeout_s"
        )


def _waits_for(session: Session) -> api.TurnEvent | None:
    """The request that the running turn waits for, for a client that attaches late."""
    turn = session.running
    latest = turn.stream.latest if turn is not None and turn.is_waiting else None
    return latest if latest is not None and latest["type"] in REQUESTS else None


async def _until_at_rest(session: Session, caller: Caller) -> None:
    """Wait until the session is at rest, or the caller has hung up."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(session.until_at_rest())]
    if caller.process is not None:
        tasks.append(asyncio.create_task(caller.process.gone.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
