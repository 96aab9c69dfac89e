"""Finds whether the effects of a trigger's own turn fire a trigger again.

An event or an entry of the journal may name the session in which it came about: then it is sure. Else
something that happened while the turn of a trigger ran, or just after, counts as its effect when that turn
made a call that reaches or changes something.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.agents.triggers.records import Cause, Firing
from lightagentd.agents.turn import Turn
from lightagentd.errors import LightagentError
from lightagentd.events.context import own_task
from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.tool import Effect

MOST_ROUNDS = 3
"""So many firings may lead to each other."""
AFTER_US = 2_000_000
"""What happens within this time after a turn may be its effect."""
_KNOWN = 1000
_ACTING = frozenset({Effect.REACH.value, Effect.CHANGE.value})
_NAMES = ("session", "LIGHTAGENT_SESSION")
_UID = str(os.geteuid())


@dataclass(kw_only=True)
class _Asked:
    firing: Firing
    turn: Turn
    begun_us: int
    ended_us: int = 0


class Rounds:
    """Knows the turns of triggers in this run of the daemon, the newest last."""

    def __init__(self, history: History, parent_of: Callable[[str], str]) -> None:
        """`parent_of` gives the session above a session by its id, empty for none."""
        self._history, self._parent_of = history, parent_of
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        """By session."""

    def begun(self, firing: Firing, turn: Turn) -> None:
        """Take note of a question that is asked, until its turn is over."""
        asked = _Asked(firing=firing, turn=turn, begun_us=time.time_ns() // 1000)
        self._asked[turn.session.id] = asked
        own_task(_until_over(asked), name=f"trigger-rounds-{turn.trace_id}")
        while len(self._asked) > _KNOWN:
            self._asked.popitem(last=False)

    def cause(self, data: Mapping[str, Any], at_us: int) -> Cause | None:
        """The firing that may have made something happen."""
        own = str(data.get("_UID", _UID)) in (_UID, "0")  # anybody can log an entry that names a session
        session = next((str(data[name]) for name in _NAMES if data.get(name) and own), "")
        for _ in range(16):
            if not session:
                break
            if (asked := self._asked.get(session)) is not None:
                return _cause(asked, sure=True)
            session = self._parent_of(session)
        if (firing := str(data.get("firing") or "")) and (
            named := next((one for one in self._asked.values() if one.firing.id == firing), None)
        ):
            return _cause(named, sure=True)
        within = [
            one
            for one in self._asked.values()
            if one.begun_us <= at_us and (not one.ended_us or at_us <= one.ended_us + AFTER_US)
        ]
        last = max(within, key=lambda one: one.firing.round, default=None)
        return None if last is None else _cause(last, sure=False)

    def round_of(self, cause: Cause | None) -> int:
        """Which round of firings that lead to each other this is, from 1. Reads the history."""
        if cause is None or not (cause.sure or self._acted(cause)):
            return 1
        return cause.round + 1

    def _acted(self, cause: Cause) -> bool:
        """Whether the turn, or a child of it, made a call that reaches or changes something."""
        asked = next((one for one in self._asked.values() if one.firing.id == cause.firing), None)
        if asked is not None and not asked.turn.in_conversation:
            return True  # the run of a flow, whose steps are in many traces
        traces = [cause.trace_id] if asked is None else [one.trace_id for one in _tree(asked.turn)]
        for trace in traces:
            wanted = Filter(trace=trace, topic="agent.tool_dispatch", type="intent")
            try:
                events = self._history.queries.select(wanted, limit=1000)
            except LightagentError:
                return True  # it cannot be known, and the stricter answer stops at most a trigger
            if any((event.data or {}).get("effect") in _ACTING for event in events):
                return True
        return False


async def _until_over(asked: _Asked) -> None:
    await asked.turn.over.wait()
    asked.ended_us = time.time_ns() // 1000


def _cause(asked: _Asked, *, sure: bool) -> Cause:
    firing = asked.firing
    return Cause(
        trigger=firing.trigger,
        firing=firing.id,
        trace_id=asked.turn.trace_id,
        round=firing.round,
        sure=sure,
    )


def _tree(turn: Turn) -> list[Turn]:
    below = [one for child in turn.children.values() for made in child.turns for one in _tree(made)]
    return [turn, *below]
