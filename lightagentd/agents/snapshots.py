"""Snapshots of the machine's state: taken by the skill what-changed, kept in the history, compared by it.

The state is `{section: {name: value}}` as `skills/_lib/machine_state.py` tells it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import time
import zlib
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psutil

from lightagentd.errors import LightagentError, Refused, ToolError
from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.events.model import Event, new_id
from lightagentd.events.types.daemon import SnapshotTaken
from lightagentd.policy.call import Decision, PolicyCall
from lightagentd.tool import Effect
from lightagentd.worker.call import Call

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent

_log = logging.getLogger(__name__)

SKILL = "what-changed"
_TIMEOUT_S = 60.0
_DAY_S = 86_400.0 - 1800.0
"""A day, less than the time between two looks."""
_LOOKED_AT = 400
"""How many snapshots are looked at for the one before a time: more than a year of days."""


async def take(agent: Agent, owner: int) -> Event:
    """Have an agent's worker tell the state for a caller, and store it. Raises what policy and the worker do.

    The text goes past the bounds and the redaction of results: digests look like keys, and no model reads it.
    """
    parts = agent.running_parts()
    dispatcher, front = parts.dispatcher, parts.definition.front
    args = {"name": SKILL, "args": {"state": "yes"}, "effect": Effect.OBSERVE.value}
    asked = PolicyCall(
        agent=agent.name,
        tool="skill",
        action="run",
        args=args,
        effect=Effect.OBSERVE,
        agent_effects=tuple(front.effects),
        offered=parts.definition.offers("skill", "run"),
        agent_skills=None if front.skills is None else tuple(front.skills),
        caller=owner,
        trigger="person",
        tainted=False,
        host="",
        known_host=False,
        change_enabled=dispatcher.pool.has_change(agent.name),
        plan="",
    )
    ruling = dispatcher.policy.decide(asked)
    if ruling.decision is not Decision.ALLOW:
        raise ruling.error or Refused(f"Policy does not let {agent.name} run the skill {SKILL} now.")
    call = Call(
        call_id=new_id("call"),
        tool=asked.tool,
        action=asked.action,
        args=args,
        agent=agent.name,
        session="",
        effect=Effect.OBSERVE,
        timeout_s=_TIMEOUT_S,
        owner=owner,
    )
    text = ""
    async with aclosing(dispatcher.pool.call(call)) as events:
        async for event in events:
            if event["kind"] == "result":
                text = event["output"]
    counts = {section: len(names) for section, names in _state(text).items()}
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    [stored] = await dispatcher.history.append(SnapshotTaken(by=owner, counts=counts, state=packed).event())
    return stored


async def once_a_day(history: History, agents: list[Agent]) -> None:
    """Take a snapshot with the first agent that can, unless the newest one is from the last day."""
    newest = history.queries.of_topic(SnapshotTaken.topic, Filter(), 1)
    if newest and time.time() - newest[0].time_us / 1e6 < _DAY_S:
        return
    for agent in agents:
        try:
            await take(agent, os.geteuid())
        except LightagentError as err:
            _log.info("the agent %s cannot tell the state of the machine: %s", agent.name, err.message)
        else:
            return


def before(history: History, since: str) -> str:
    """The last snapshot before a time of the kind that skills take, else the first after it: `{"time":
    seconds, "state": ...}` as JSON; empty if there is none.
    """
    stored = history.queries.of_topic(SnapshotTaken.topic, Filter(), _LOOKED_AT)
    if not stored:
        return ""
    time_us = _seconds(since) * 1e6
    found = next((event for event in stored if event.time_us <= time_us), stored[-1])
    state = zlib.decompress(base64.b85decode((found.data or {})["state"]))
    return json.dumps({"time": found.time_us / 1e6, "state": json.loads(state)})


def _seconds(since: str) -> float:
    """Seconds since 1970 of a value of kind `time` (`lightagentd.skills.arguments`); now for what is none: a
    model may write anything.
    """
    now = datetime.now()  # noqa: DTZ005 - its times are local
    if since == "boot":
        return psutil.boot_time()
    if back := re.fullmatch(r"-([1-9]\d{0,5})(s|min|h|d)", since):
        return now.timestamp() - int(back[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86_400}[back[2]]
    day, _, clock = since.partition(" ")
    if day in ("today", "yesterday"):
        day = str((now - timedelta(days=day == "yesterday")).date())
    try:
        return datetime.fromisoformat(f"{day} {clock or '00:00'}").timestamp()
    except (ValueError, OverflowError):
        return now.timestamp()


def _state(text: str) -> dict[str, dict[str, Any]]:
    """Raises ToolError for what is no state."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ToolError(f"The skill {SKILL} told no state that can be read: {text[:200]}") from err
    if not isinstance(found, dict) or not all(isinstance(names, dict) for names in found.values()):
        raise ToolError(f"The skill {SKILL} told something else than a state.")
    return found
