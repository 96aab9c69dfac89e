"""Undoes the changes that a call made: lists calls that can be undone, and explains why others cannot.

Only changes of files can be undone, by the action `undo` of the tool file, in the worker that made them. An
undo is a `change` like any other: it goes through policy, with the caller's own approval, and can itself be
undone. The calls are read from the history's index of topics, so nothing extra is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from lightagentd import api
from lightagentd.agents.registry import Registry
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, is_last_event
from lightagentd.control.operations.declared import Operations, method, stream
from lightagentd.errors import Conflict, NotFound
from lightagentd.events.history import History
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.policy.operation import Operation
from lightagentd.policy.panic import Panic
from lightagentd.tool import by_hand

LISTED = 200
"""How many of the newest changes of files are looked at."""
_OPPOSITE = {"start": "stop", "stop": "start", "enable": "disable", "disable": "enable"}
_ROOT = 0
"""To the worker an administrator is root, who may take back what anybody changed."""
_DISPATCH = "agent.tool_dispatch"


class Undo(Operations, interface="org.lightagent1.Undo"):
    """Changes of files that can be taken back."""

    def __init__(self, access: Access, registry: Registry, history: History, panic: Panic) -> None:
        self._access, self._registry, self._history, self._panic = access, registry, history, panic

    @method("List", returns="changes")
    async def listed(self, caller: Caller, agent: str = "") -> list[api.Change]:
        """The newest changes of files that were kept, newest first."""
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent, viewing=True)
        wanted = await self._readable_by(caller, agent)
        return await asyncio.to_thread(self._changes, wanted)

    @stream("Run", returns="event", is_last=is_last_event)
    async def run(
        self, caller: Caller, call_id: str = "", agent: str = ""
    ) -> AsyncGenerator[api.TurnEvent, None]:
        """Take back what a call changed, or the caller's newest change that still stands. It is a call of its
        own, through policy, and can be taken back in the same way. A file that was changed since is left.
        """
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent, viewing=True)
        self._panic.check()
        readable = await self._readable_by(caller, agent)
        wanted = await asyncio.to_thread(self._find, caller, readable, call_id)
        if wanted.agent != agent:
            caller = await self._access.admit(caller, Operation.PROMPT, agent=wanted.agent)
        running = self._registry.get(wanted.agent)
        called = call_as_person(
            running,
            caller.uid,
            "file",
            "undo",
            {"call_id": wanted.call_id},
            approver=await self._access.approver(caller, wanted.agent),
            for_owner=_ROOT if caller.viewer is None else None,
        )
        async with aclosing(called) as events:
            async for event in events:
                yield await self._access.for_caller(event, caller, wanted.agent)

    async def _readable_by(self, caller: Caller, agent: str) -> Filter:
        """The events that may be searched for a caller, of one agent or of all."""
        return Filter(agent=agent, viewer=caller.viewer, agents=await self._access.readable(caller))

    def _find(self, caller: Caller, readable: Filter, call_id: str) -> api.Change:
        """Find the call. Runs in a thread."""
        agent = readable.agent
        changes = self._changes(readable)
        if call_id:
            found = next((one for one in changes if one.call_id == call_id), None)
            if found is None and (event := self._event_of("tool.file", readable, call_id)) is not None:
                found = _change(event, {})  # an old one; what it left tells whether it still stands
            if found is None:
                raise self._why_not(readable, call_id)
        else:
            own = [one for one in changes if one.owner == caller.uid and one.action != "undo"]
            found = next((one for one in own if not one.undone_by), None)
            if found is None:
                where = f" with the agent {agent[:60]}" if agent else ""
                raise NotFound(
                    f"You have changed no file{where} that could be taken back.",
                    suggestion="lactl undo --list shows what there is.",
                )
        if found.undone_by:
            raise Conflict(
                f"The call {found.call_id} was taken back already, by {found.undone_by}.",
                suggestion=f"Make the change again with: lactl undo {found.undone_by}",
            )
        return found

    def _changes(self, readable: Filter) -> list[api.Change]:
        """The newest changes of files first, each with the call that undid it."""
        events = self._history.queries.of_topic("tool.file", readable, LISTED)
        undone: dict[str, str] = {}
        found: list[api.Change] = []
        for event in events:  # newest first: an undo comes before the change it undid
            change = _change(event, undone)
            if change is not None:
                found.append(change)
                if change.action == "undo" and not change.undone_by:
                    undone[str((event.data or {})["metadata"].get("undone", ""))] = change.call_id
        return found

    def _why_not(self, readable: Filter, call_id: str) -> NotFound | Conflict:
        """Why a call cannot be undone, and what to do instead."""
        intent = self._event_of(_DISPATCH, readable, call_id)
        data: dict[str, Any] = (intent.data or {}) if intent is not None else {}
        if not data.get("tool"):
            return NotFound(
                f"There is no call {call_id[:60]!r}.", suggestion="lactl undo --list shows what there is."
            )
        assert intent is not None
        name = f"{data['tool']}.{data.get('action', '')}"
        if intent.type == "refused":
            return Conflict(f"The call {call_id} of {name} was refused, so it changed nothing.")
        if data.get("effect") != "change":
            return Conflict(
                f"The call {call_id} of {name} only looked ({data.get('effect')}): it changed nothing."
            )
        ended = self._event_of(f"tool.{data['tool']}", readable, call_id)
        outcome = (ended.data or {}) if ended is not None else {}
        result = outcome.get("result") or "unknown"
        what = f"{name} {_shown(data.get('args') or {})}".strip()
        if data["tool"] == "file":
            if result != "ok":
                return Conflict(
                    f"The call {call_id} did not end well ({result}): {what}. Nothing is kept of it."
                )
            why = str((outcome.get("metadata") or {}).get("previous_note") or "it changed nothing")
            return Conflict(f"Nothing is kept of the call {call_id}: {what}. {why.rstrip('.')}.")
        return Conflict(
            f"What the call {call_id} did cannot be taken back: {what} (result: {result}).",
            suggestion=_instead(intent.agent, data, outcome),
        )

    def _event_of(self, topic: str, readable: Filter, call_id: str) -> Event | None:
        # The id alone names a call, whichever agent made it.
        wanted = replace(readable, agent="")
        return self._history.queries.find_in_topic(
            topic, lambda event: wanted.wants(event) and (event.data or {}).get("call_id") == call_id
        )


def _change(event: Event, undone: dict[str, str]) -> api.Change | None:
    """The change of a file that an event is about; None when it kept nothing."""
    data = event.data or {}
    metadata = data.get("metadata") or {}
    if data.get("result") != "ok" or not metadata.get("previous_kept"):
        return None
    return api.Change(
        call_id=str(data["call_id"]),
        agent=event.agent,
        owner=event.owner if event.owner is not None else -1,
        action=str(data["action"]),
        path=str(metadata.get("path", "")),
        time_us=event.time_us,
        undone_by=undone.get(str(data["call_id"]), ""),
    )


def _instead(agent: str, data: dict[str, Any], outcome: dict[str, Any]) -> str:
    """The call that does the opposite, where there is one."""
    tool, action, args = str(data["tool"]), str(data.get("action")), data.get("args") or {}
    undo = (outcome.get("metadata") or {}).get("undo")
    if tool == "systemd" and action in _OPPOSITE and "unit" in args:
        undo = {"action": _OPPOSITE[action], "args": {"unit": args["unit"]}}
    if isinstance(undo, dict) and isinstance(undo.get("args"), dict):
        return f"The opposite is: {by_hand(agent, tool, str(undo.get('action')), undo['args'])}"
    return "Only changes that the tool file made to files are kept; see what it did, and mend it by hand."


def _shown(args: dict[str, Any]) -> str:
    text = " ".join(f"{name}={value}" for name, value in args.items() if value not in (None, ""))
    return text if len(text) <= 300 else text[:300] + "…"
