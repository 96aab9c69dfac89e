"""The operations on triggers: list them, tell what happened, follow their sources, try and pause them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lightagentd import api
from lightagentd.agents.triggers.asking import Question
from lightagentd.agents.triggers.outbox import how_to_follow
from lightagentd.agents.triggers.records import Firing, Happening
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.triggers import KINDS, PROMPT, TriggerFile
from lightagentd.config.unattended import Unattended
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, correlation, is_last_event
from lightagentd.control.operations.declared import Operations, method, stream
from lightagentd.errors import InvalidArgument, LightagentError, NotFound
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

_UNIT = "what a unit of systemd asks"
_MOST = 1000


class Triggers(Operations, interface="org.lightagent1.Triggers"):
    """What happens on the machine becomes a question to an agent. Files below /etc/lightagentd/triggers say
    what to wait for, and those below /etc/lightagentd/prompts what units ask.
    """

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._triggers = access, runtime.triggers
        self._panic, self._flows = runtime.panic, runtime.flows.files

    @method("List", returns="triggers")
    async def listed(self, caller: Caller) -> list[api.Trigger]:
        """All triggers, broken ones too."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        shown = [self._shown(name) for name in self._triggers.names()]
        seen = await self._access.inspectable(caller, {one.agent for one in shown if one.agent})
        return [one for one in shown if not one.agent or one.agent in seen]

    @method("Get", returns="found")
    async def get(self, caller: Caller, name: str) -> api.Trigger:
        """One trigger."""
        caller = await self._access.admit(caller, Operation.INSPECT, agent=self._agent_of(name))
        if name not in self._triggers.files.broken:
            self._triggers.files.get(name)
        return self._shown(name)

    @method("Preview", returns="question")
    async def preview(self, caller: Caller, name: str, *, data: Any = None) -> api.TriggerQuestion:
        """What the agent would be asked about data, an object that says what happened; without it about a
        sample.
        """
        await self._access.admit(caller, Operation.INSPECT, agent=self._agent_of(name))
        file = self._triggers.files.get(name)
        happened = _object(data) if data is not None else self._sample(name)
        prompt = Question(trigger=name, file=file, happened=[happened]).prompt
        return api.TriggerQuestion(question=prompt.question, prompt=prompt.text, sample=happened)

    @stream("Run", returns="event", is_last=is_last_event)
    async def run(
        self,
        caller: Caller,
        name: str,
        *,
        data: Any = None,
        agent: str = "",
        flow: str = "",
        correlation_id: str = "",
    ) -> AsyncGenerator[api.TurnEvent, None]:
        """Ask the trigger's agent at once, in its owner's name, and stream the turn: for a test, and for the
        units that ask. data is an object that says what happened; without it a sample. It takes no part of
        the rate limit, and nobody delivers the answer. agent is asked in place of the file's, by an
        administrator. When the owner tests it, who says what happened, the effects of the file are only a
        limit, and what policy asks about is refused. triage is asked in the caller's own name; with flow an
        administrator has that run in its place, and an input named unit gets the unit.
        """
        await asyncio.to_thread(self._triggers.files.read_prompt, name)  # its unit may be new
        by_anybody = name == "triage"
        if flow:
            if not by_anybody:
                raise InvalidArgument("flow is for triage; a trigger names its own.", field="flow")
            caller = await self._access.admit(caller, Operation.ADMINISTER)
        elif by_anybody:
            asked = agent or self._agent_of(name)
            caller = await self._access.admit(caller, Operation.PROMPT, agent=asked)
        else:
            if agent:
                await self._access.admit(caller, Operation.ADMINISTER)
            caller = await self._admit(caller, name)
        await self._access.check_open(caller)
        self._panic.check()
        correlation_id = correlation(caller, correlation_id)
        happened = _object(data) if data is not None else self._sample(name)
        owner = caller.uid if by_anybody else None
        # An owner who says what happened could have the agent do whatever the file lets it do.
        file = self._triggers.files.found.get(name)
        if file is not None and file.session == "new":
            await self._access.check_new_session(caller)
        granted = not by_anybody and (caller.uid == 0 or file is None or _uid(file) != caller.uid)
        asking = self._triggers.run(
            name,
            happened,
            agent=agent,
            flow=flow,
            owner=owner,
            granted=granted,
            correlation_id=correlation_id,
        )
        turn = await uninterrupted(asking)
        watcher = turn.stream.watch()
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield await self._access.for_caller(event, caller, turn.session.record.agent)

    @method("Fire", returns="counts")
    async def fire(
        self, caller: Caller, name: str, *, happened: Any, position: str = "", problem: str = ""
    ) -> api.Fired:
        """Tell what happened: a list of objects with data (an object), at_us (UTC, now without it) and missed
        (whether nobody followed the source then). position says how far the source was followed, and is
        given to the next follower; problem why it cannot be followed now, until the next call. Answers once
        it is stored. For administrators.
        """
        await self._access.admit(caller, Operation.ADMINISTER)
        await self._access.check_open(caller)
        counts = await self._triggers.fire(name, _happenings(happened), position[:4096])
        self._triggers.outbox.problems[name] = problem[:1000]
        return api.Fired(**counts)

    @method("Deliver", returns="number", over_bus=False)
    async def deliver(self, caller: Caller, name: str, *, headers: Any, body: str) -> str:
        """Take a request for a webhook, with its headers (an object of texts, in small letters) and its body
        as it came. Gives its number, once it is stored with what it fires. Fails with PermissionDenied for a
        wrong signature or an old time, with Conflict for a request that was taken before. For the gateway,
        which needs no token for this, and root.
        """
        if not caller.is_gateway:
            await self._access.admit_owner(caller, Operation.ADMINISTER)
        if not isinstance(headers, dict) or not all(isinstance(one, str) for one in headers.values()):
            raise InvalidArgument("headers is an object of texts.", field="headers")
        self._panic.check()
        return await self._triggers.webhooks.take(name, headers, body)

    @method("Replay", returns="number")
    async def replay(self, caller: Caller, number: str) -> str:
        """Have a stored request for a webhook asked about again; for its owner and administrators. Gives the
        number of the new one.
        """
        caller = await self._access.admit_owner(caller, Operation.INSPECT)
        name, _ = await asyncio.to_thread(self._triggers.webhooks.stored, number)
        await self._admit(caller, name)
        return await self._triggers.webhooks.again(number)

    @stream("Follow", returns="work")
    async def follow(self, caller: Caller) -> AsyncGenerator[api.TriggerWork, None]:
        """What the service that follows sources and delivers answers is to do, as it comes: the triggers to
        follow, again whenever the files were read, and each answer. One follows at a time: the stream ends
        when another one does, or the daemon stops. For administrators.
        """
        await self._access.admit(caller, Operation.ADMINISTER)
        async with aclosing(self._triggers.outbox.follow()) as items:
            async for item in items:
                if isinstance(item, Firing):
                    yield api.TriggerWork(follow=None, answer=_answer(item))
                else:
                    yield api.TriggerWork(follow=self._followed(), answer=None)

    @method("Delivered")
    async def delivered(self, caller: Caller, firing: str, *, problem: str = "") -> None:
        """Say that an answer was delivered, or with problem why it cannot be. For administrators."""
        await self._access.admit(caller, Operation.ADMINISTER)
        await self._triggers.outbox.delivered(firing, problem[:2000])

    @method("Pause")
    async def pause(self, caller: Caller, name: str) -> None:
        """Refuse what happens until Resume."""
        await self._admit(caller, name)
        await self._triggers.set_paused(name, paused=True)

    @method("Resume")
    async def resume(self, caller: Caller, name: str) -> None:
        """Let a trigger go on that was paused, or stopped because its own effects fired it."""
        await self._admit(caller, name)
        await self._triggers.set_paused(name, paused=False)

    async def _admit(self, caller: Caller, name: str) -> Caller:
        """The owner of a trigger may do with it what an administrator may: it is asked in their name."""
        file = self._triggers.files.found.get(name)
        if file is not None and _uid(file) == caller.uid:
            return await self._access.admit_owner(caller, Operation.PROMPT, agent=self._agent_of(name))
        return await self._access.admit(caller, Operation.ADMINISTER)

    def _agent_of(self, name: str) -> str:
        file = self._triggers.files.found.get(name)
        if file is not None and file.flow is not None:
            with contextlib.suppress(NotFound):
                flow = self._flows.file(file.flow).checked.flow
                return (flow.agent or "") if flow is not None else ""
            return ""
        return file.agent if file is not None else ""

    def _sample(self, name: str) -> dict[str, Any]:
        file = self._triggers.files.found.get(name)
        kind = KINDS.get(file.handling().on) if file is not None else None
        return dict(kind.sample) if kind is not None else {}

    def _followed(self) -> list[api.Followed]:
        return [
            api.Followed(name=name, position=self._triggers.standing(name).position)
            for name, file in self._triggers.files.found.items()
            if (kind := KINDS.get(file.handling().on)) is not None and kind.followed_by == "service"
        ]

    def _shown(self, name: str) -> api.Trigger:
        files, standing = self._triggers.files, self._triggers.standing(name)
        file, broken = files.found.get(name), files.broken.get(name)
        how = file.handling() if file is not None else None
        on = how.on if how is not None else "unit" if name.startswith(PROMPT) else ""
        state, problem = "active", ""
        if broken is not None:
            state, problem = "broken", f"{broken.message} {broken.suggestion}".strip()
        elif standing.stopped:
            state, problem = "stopped", standing.stopped
        elif standing.paused:
            state = "paused"
        elif problem := self._unfollowed(name, on):
            state = "unfollowed"
        return api.Trigger(
            name=name,
            on=on,
            about=KINDS[on].about if on in KINDS else _UNIT,
            agent=self._agent_of(name),
            owner=file.owner if file is not None else "",
            prompt=file.prompt if file is not None else "",
            flow=(file.flow or "") if file is not None else "",
            session=file.session if file is not None else "",
            effects=[] if how is None or how.effects is None else list(how.effects),
            rate_limit=how.rate_limit if how is not None else 0,
            rate_period_s=how.rate_period_s if how is not None else 0.0,
            coalesce_s=how.coalesce_s if how is not None else 0.0,
            catch_up=how.catch_up if how is not None else False,
            answer=_target(file) if file is not None else "",
            state=state,
            problem=problem,
            **standing.counts,
            waiting=self._triggers.waits(name),
            answered=standing.answered,
            failed=standing.failed,
            last_us=max(standing.recent_us, default=0),
        )

    def _unfollowed(self, name: str, on: str) -> str:
        by = KINDS[on].followed_by if on in KINDS else ""
        if by == "gateway":
            file = self._triggers.files.found.get(name)
            signed = file.signed if isinstance(file, TriggerFile) else None
            return "" if signed else "It has no signed and secret_file, so nobody can send to it."
        if by == "service" and not self._triggers.outbox.followed:
            return f"Nobody follows it. Run: {how_to_follow()}"
        return self._triggers.outbox.problems.get(name, "")


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    data: dict[str, Any]
    at_us: int = Field(default=0, ge=0)
    missed: bool = False


_TOLD = TypeAdapter(list[_Told])


def _happenings(value: Any) -> list[Happening]:
    """Raises InvalidArgument."""
    try:
        told = _TOLD.validate_python(value)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidArgument(
            f"happened is a list of objects with data, at_us and missed: {where}: {first['msg']}.",
            field="happened",
        ) from None
    if len(told) > _MOST:
        raise InvalidArgument(f"At most {_MOST} things are told at once.", field="happened")
    now = time.time_ns() // 1000
    return [Happening(data=one.data, at_us=one.at_us or now, missed=one.missed) for one in told]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument("data is an object that says what happened.", field="data")
    return value


def _target(file: Unattended) -> str:
    if file.answer == "file":
        return f"file {file.file}"
    if file.answer == "mail":
        return f"mail to {file.mail_to or file.owner}"
    return f"command {file.command[0]}" if file.answer == "command" else file.answer


def _uid(file: Unattended) -> int | None:
    try:
        return file.account(Path()).pw_uid
    except LightagentError:
        return None


def _answer(firing: Firing) -> api.TriggerAnswer:
    return api.TriggerAnswer(
        firing=firing.id,
        trigger=firing.trigger,
        agent=firing.agent,
        session=firing.session,
        trace_id=firing.trace_id,
        text=firing.text,
        code=firing.code,
        refused=list(firing.refused),
        duration_ms=firing.duration_ms,
    )
