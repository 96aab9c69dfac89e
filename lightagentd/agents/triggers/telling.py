"""The events of triggers, and what the history tells of a question that was asked before a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightagentd.agents.triggers.records import Firing, Happening
from lightagentd.config.unattended import Handling, Unattended
from lightagentd.errors import Cancelled, LightagentError
from lightagentd.events.context import within
from lightagentd.events.filter import Filter
from lightagentd.events.history import History, NewEvent
from lightagentd.events.model import Event
from lightagentd.events.types import trigger as types

_LOOKED_AT = 1000


def held(name: str, found: Mapping[str, int], why: str) -> list[NewEvent]:
    """What is told of things about which nobody is asked by themselves."""
    counts = {key: found[key] for key in ("coalesced", "limited", "refused") if found.get(key)}
    if not counts:
        return []
    said = ", ".join(f"{count} {key}" for key, count in counts.items())
    return [types.TriggerHeld(message=f"{name}: {said}: {why}", trigger=name, **counts).event()]


def missed_event(name: str, missed: Sequence[Happening], how: Handling | None) -> list[NewEvent]:
    """What is told of things that nobody followed."""
    if not missed:
        return []
    catch_up = how is not None and how.catch_up
    then = "its agent is asked once about them" if catch_up else "nobody is asked about them"
    return [
        types.TriggerMissed(
            message=f"{name}: {len(missed)} missed while nobody followed; {then}.",
            trigger=name,
            count=len(missed),
            from_us=min(one.at_us for one in missed),
            to_us=max(one.at_us for one in missed),
            catch_up=catch_up,
        ).event()
    ]


def fired(firing: Firing, file: Unattended, *, test: bool = False) -> NewEvent:
    """What is told of a question that is asked."""
    on = file.handling().on
    times = f", {firing.count} times" if firing.count > 1 else ""
    event = types.TriggerFired(
        message=f"{firing.trigger}: {firing.agent} is asked ({on}{times})",
        trigger=firing.trigger,
        firing=firing.id,
        on=on,
        happened=firing.data[0] if firing.data else {},
        count=firing.count,
        round=firing.round,
        test=test,
    )
    with within(agent=firing.agent, session=firing.session, owner=firing.owner):
        return event.event()


def ending(history: History, session: str, correlation_id: str) -> tuple[str, LightagentError | None, str]:
    """How the turn with this correlation id ended: its answer, its error if it has none, and its trace."""
    events = history.queries.newest(Filter(session=session), _LOOKED_AT)
    own = [event for event in reversed(events) if event.correlation_id == correlation_id]
    ended = next((event for event in own if _ends(event)), None)
    if ended is None:
        return "", Cancelled("The daemon ended before the question was asked."), ""
    if ended.topic == "agent.error":
        said = str((ended.data or {}).get("message", ""))
        return "", Cancelled(said or "The daemon ended while the agent worked."), ended.trace_id
    answers = [
        str((event.data or {}).get("content", ""))
        for event in own
        if event.topic == "agent.message" and (event.data or {}).get("role") == "assistant"
    ]
    return next(iter(answers), ""), None, ended.trace_id


def _ends(event: Event) -> bool:
    return (event.topic, event.type) == ("session.turn", "done") or (
        event.topic == "agent.error" and event.type != "fallback"
    )
