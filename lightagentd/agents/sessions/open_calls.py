"""Closes calls that were running when the daemon ended without a regular stop.

The intent of such a call is stored but its end is not, so its outcome is unknown. Its end is stored as
`outcome_unknown`, and it is never repeated automatically. A call that waits for a person's input stays open;
one that went on with the answer (`InputUsed`) was running again.
"""

from __future__ import annotations

import asyncio

from lightagentd.errors import OutcomeUnknown
from lightagentd.events.history import History
from lightagentd.events.model import Event, EventContext
from lightagentd.events.types.tool import INVOCATION, CallEnded
from lightagentd.policy.questions.questions import waited_for

DISPATCH, INTENT = "agent.tool_dispatch", "intent"
_BEGINS = {DISPATCH: INTENT, "input.used": "used"}
"""By topic, the type of the event before which nothing of a call ran."""
MOST_CALLS = 50_000
"""So many of the last run's calls are looked at, the newest: no call lasts while so many others begin."""
_MADE_BY = "daemon"
"""The source of the end of a call that a worker did not tell."""


async def close_open_calls(history: History) -> int:
    """Store the end of each open call; gives their number. Raises StorageError."""
    found = await asyncio.to_thread(_open_calls, history)
    last = history.queries.last()
    until_us = last.time_us if last is not None else 0
    ended = [_ended(intent, until_us).event(source=_MADE_BY, context=_context(intent)) for intent in found]
    if ended:
        await history.append(*ended)
    return len(ended)


def closed_at_start(event: Event) -> bool:
    """Whether the event is the end that a start stored for a call of unknown outcome."""
    result = (event.data or {}).get("result")
    return event.type == INVOCATION and event.source == _MADE_BY and result == OutcomeUnknown.code


def _open_calls(history: History) -> list[Event]:
    """The intents without an end, oldest first. Reads the last run; for a thread."""
    begun = _begun(history)
    for call_id in _waiting_calls(history):
        begun.pop(call_id, None)
    for tool in {tool for _, tool in begun.values()}:
        oldest = min((seq for seq, of_tool in begun.values() if of_tool == tool), default=0)

        def ended(event: Event, oldest: int = oldest) -> bool:
            if event.type == INVOCATION and event.data:
                begun.pop(str(event.data.get("call_id")), None)
            return event.seq <= oldest

        history.queries.find_in_topic(f"tool.{tool}", ended)
    found = [history.queries.range(seq, 1) for seq, _ in sorted(begun.values())]
    return [events[0] for events in found if events]


def _begun(history: History) -> dict[str, tuple[int, str]]:
    """For each call that began or went on since the last run that got ready began: the number of the event
    that says so, and its tool.
    """
    first = _first_seq(history)
    begun: dict[str, tuple[int, str]] = {}

    def over(event: Event) -> bool:
        data = event.data or {}
        if event.type == _BEGINS[event.topic] and {"call_id", "tool", "action", "effect"} <= data.keys():
            begun[str(data["call_id"])] = event.seq, str(data["tool"])
        return event.seq <= first or len(begun) >= MOST_CALLS

    for topic in _BEGINS:
        history.queries.find_in_topic(topic, over)
    return begun


def _first_seq(history: History) -> int:
    """The first event of the newest run that got ready; it closed the calls of earlier runs."""
    ready = history.queries.find_in_topic("daemon.state", lambda event: event.type == "ready")
    if ready is None:
        return 0
    starting = history.queries.find_in_topic(
        "daemon.state", lambda event: event.type == "starting" and event.seq < ready.seq
    )
    return starting.seq if starting is not None else 0


def _waiting_calls(history: History) -> set[str]:
    """The calls that ask a person, or wait for children who do, in turns that continue to wait."""
    inputs = history.queries.state("inputs")
    turns = history.queries.state("turns").values()
    joined = {str(own) for turn in turns for own in dict(turn.get("joins", {})).values()}
    return joined | {str(inputs[key].get("call_id", "")) for key in waited_for(history) & inputs.keys()}


def _ended(intent: Event, until_us: int) -> CallEnded:
    data = intent.data or {}
    return CallEnded(
        call_id=str(data["call_id"]),
        tool=str(data["tool"]),
        action=str(data["action"]),
        effect=str(data["effect"]),
        result=OutcomeUnknown.code,
        duration_ms=max(0, until_us - intent.time_us) // 1000,  # so long at least
        output_chars=0,
        taints=False,
        metadata={},
    )


def _context(event: Event) -> EventContext:
    return EventContext(
        agent=event.agent,
        session=event.session,
        owner=event.owner,
        caller=event.caller,
        request_id=event.request_id,
        trace_id=event.trace_id,
        correlation_id=event.correlation_id,
    )
