"""Recovers the turns that the last run of the daemon did not end.

A turn that was queued goes back into its session's queue. A turn that waited for an approval continues to
wait, ahead of the queued ones. Its steps are in the conversation, and the call in question is its first call
without a result. A turn that was running is ended. Its calls with a stored intent but no result become
`outcome unknown` and are never repeated automatically. The session says so until its next turn is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightagentd.agents.choosing import Choice
from lightagentd.agents.sessions.open_calls import INTENT, closed_at_start
from lightagentd.agents.sessions.session import (
    Session,
    SessionRecord,
    cut_off,
    is_answered,
    result_event,
)
from lightagentd.agents.turn import Asked, Resumed, Turn, unanswered
from lightagentd.errors import LightagentError, OutcomeUnknown
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.events.store.states import checked, decoding
from lightagentd.events.types.agent import CallRefused, TurnFailed, TurnInterrupted
from lightagentd.events.types.tool import INVOCATION
from lightagentd.policy.call import CHECK, CONTEXT
from lightagentd.policy.questions.asked import AllQuestions
from lightagentd.quoted import Prompt

UNKNOWN = (
    "Error (outcome_unknown): The daemon stopped while this call ran. Whether it took effect is not known; "
    "look before you ask for it again."
)
NOT_RUN = "Error (cancelled): The daemon stopped before this call was run."


@dataclass(kw_only=True)
class Found:
    """The result of recovering one session's unfinished turns."""

    requeued: list[Turn] = field(default_factory=list)
    resumed: list[Turn] = field(default_factory=list)
    interrupted: int = 0
    unknown_calls: int = 0


@dataclass(kw_only=True)
class Left:
    """The numbers of unfinished turns that the starts of an agent found."""

    interrupted: int = 0
    requeued: int = 0
    waiting: int = 0

    def count(self, found: Found) -> None:
        self.interrupted += found.interrupted
        self.requeued += len(found.requeued)
        self.waiting += len(found.resumed)


async def resume(session: Session, unfinished: dict[str, dict[str, Any]]) -> Found:
    """`recover` the turns that are not in memory, and queue those that can continue; gives the result."""
    found = await recover(session, not_in_memory(session, unfinished))
    session.queue.extend(found.requeued)
    session.queue.extendleft(reversed(found.resumed))
    return found


def not_in_memory(session: Session, unfinished: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The unfinished turns of a session that are stored alone."""
    waiting = {turn.trace_id for turn in session.queue} | session.storing
    return {trace: state for trace, state in unfinished.items() if trace not in waiting}


async def recover(session: Session, unfinished: dict[str, dict[str, Any]]) -> Found:
    """End or queue again the unfinished turns of a session, oldest first. Raises StorageError."""
    found = Found()
    for trace_id, state in unfinished.items():
        events = session.history.queries.select(Filter(trace=trace_id), limit=100_000)
        prompt = next((event for event in events if event.topic == "agent.prompt" and event.data), None)
        data = (prompt.data if prompt is not None else None) or {"text": ""}
        whole = Prompt(str(data["text"]), int(data.get("question_chars", 0)))
        waits = waited(trace_id, state)
        if waits is not None:
            begun = {int(data.get("position", 0)) for data in _begun(events)}
            waits = replace(waits, begun=frozenset(begun))
        turn = Turn(
            session,
            Asked(
                prompt=whole,
                correlation_id=str(state.get("correlation_id", "")),
                unattended=bool(state.get("unattended", False)),
                trigger=str(state.get("trigger", "")),
                choice=choice_in(trace_id, state),
            ),
            trace_id=trace_id,
            caller=state.get("caller"),
            resumed=waits,
        )
        turn.client = str(state.get("client", ""))
        turn.task_id = str(state.get("task", ""))
        turn.hops, turn.sent_by = int(state.get("hops", 0)), tuple(state.get("sent_by", ()))
        turn.repaired = bool(state.get("repaired", False))
        if state["state"] == "queued" and whole.text:
            found.requeued.append(turn)
            continue
        if waits is not None:
            for ended in _asked_for(events):
                turn.note_call(ended)
            found.resumed.append(turn)
            continue
        found.interrupted += 1
        found.unknown_calls += await _end(session, turn, events)
    return found


def waited(trace_id: str, state: dict[str, Any]) -> Resumed | None:
    """Where a stored turn waited, if it did. Raises HistoryDamaged for an invalid state."""
    with decoding("turns", trace_id):
        checked(state, session=str, state=str, caller=(int, type(None)), steps=int, left_s=(int, float))
        choice_in(trace_id, state)
        return _taken_up(state) if state["state"] == "waiting" else None


def choice_in(trace_id: str, state: dict[str, Any]) -> Choice:
    """What the prompt of a stored turn chose. Raises HistoryDamaged for an invalid state."""
    with decoding("turns", trace_id):
        return Choice.from_dict(checked(state, choice=dict).get("choice", {}))


def _taken_up(state: dict[str, Any]) -> Resumed | None:
    """Where a turn waited; None if a caller drove it, who is gone now."""
    if not state.get("approval"):
        return None
    return Resumed(
        waits_for=str(state["approval"]),
        steps=int(state["steps"]),
        left_s=float(state["left_s"]),
        request_id=str(state["request_id"]),
        calls_left=None if (left := state.get("calls_left")) is None else int(left),
        wall_ms=int(state.get("wall_ms", 0)),
        joins={str(call): str(own) for call, own in dict(state.get("joins", {})).items()},
    )


def _open_intents(events: Sequence[Event]) -> list[Event]:
    """The intents without a stored end."""
    intents = {event.data["call_id"]: event for event in events if event.type == INTENT and event.data}
    for event in _told_ends(events):
        intents.pop((event.data or {}).get("call_id"), None)
    return [*intents.values()]


def _begun(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [event.data for event in _open_intents(events) if event.data]


def _asked_for(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The ends of the calls that the model asked for."""
    own = {e.data["call_id"] for e in events if e.data and e.data.get("trigger") in (CHECK, CONTEXT)}
    refused = (CallRefused.topic, CallRefused.type)
    ends = [e.data for e in events if e.data and (e.type == INVOCATION or (e.topic, e.type) == refused)]
    return [ended for ended in ends if ended.get("call_id") not in own]


def _told_ends(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.type == INVOCATION and not closed_at_start(event)]


async def _end(session: Session, turn: Turn, events: Sequence[Event]) -> int:
    """End a turn that was running, and note it in the session. Gives the number of unknown outcomes."""
    results: list[NewEvent] = []
    open_functions = [(str(data["function"]), int(data.get("position", 0))) for data in _begun(events)]
    unknown: list[str] = []
    with session.context(turn):
        # Calls begin in their order, so the first without a result are those that ran. Otherwise their places
        # say which they are.
        answer = next((one for one in reversed(session.messages) if one.tool_calls), None)
        places = {call.id: place for place, call in enumerate(answer.tool_calls if answer else (), 1)}
        for call in unanswered(session.messages):
            own = [(call.name, places.get(call.id, 0)), (call.name, 0)]
            if ran := next((one for one in own if one in open_functions), None):
                open_functions.remove(ran)
                unknown.append(call.name)
            results.append(result_event(call.id, call.name, UNKNOWN if ran else NOT_RUN))
        not_run = len(results) - len(unknown)
        unknown += [name for name, _ in open_functions]  # no calls of the conversation: checks of tasks
        code = OutcomeUnknown.code if unknown else "interrupted"
        told = _told(turn.trace_id, len(_told_ends(events)), unknown, not_run)
        session.record = replace(session.record, interrupted=told)
        ended = TurnInterrupted(
            code=code,
            message="The daemon stopped in the middle of this turn.",
            unknown_calls=len(unknown),
            **_unattended(turn),
        ).event()
        if not is_answered(session.messages):
            results.append(cut_off(ended))
        over = Change(state="turns", key=turn.trace_id, value=None)
        await session.history.append(*results, ended, changes=(session.record.change(), over))
    session.forget_messages()
    return len(unknown)


def _told(trace_id: str, done: int, unknown: Sequence[str], not_run: int) -> str:
    """What is known and unknown about an interrupted turn, in one sentence."""
    parts = [f"{done} of its calls ended before that" if done else "none of its calls had ended before that"]
    if unknown:
        parts.append(f"whether {' and '.join(unknown)} took effect is not known")
    if not_run:
        parts.append(f"{not_run} of its calls {'was' if not_run == 1 else 'were'} not run")
    return f"The daemon stopped in the middle of the turn {trace_id}: {', '.join(parts)}."


async def end_stored_turns(
    history: History,
    asked: AllQuestions,
    why: LightagentError,
    *,
    agent: str,
    sessions: Mapping[str, Session],
) -> None:
    """End the turns that the next start of an agent would run, and close their open questions.

    `sessions` are those in memory; turns in their queues are left to their agent. Raises StorageError.
    """
    records = history.queries.state("sessions")
    for session_id, unfinished in unfinished_turns(history).items():
        if records.get(session_id, {}).get("agent") != agent:
            continue
        session = sessions.get(session_id) or Session(SessionRecord.from_dict(records[session_id]), history)
        found = await recover(session, not_in_memory(session, unfinished))
        for turn in [*found.resumed, *found.requeued]:
            await end_stored(turn, asked, why)


async def end_stored(turn: Turn, asked: AllQuestions, why: LightagentError) -> None:
    """End a turn that does not run, and close its open question. Raises StorageError."""
    with turn.session.context(turn):
        about = {"steps": turn.steps_done, "duration_ms": 0, **_unattended(turn)}
        data: dict[str, Any] = {**why.to_dict(), **about}
        ended = TurnFailed(**data).event()
        await turn.session.end(turn, ended, lapsed=asked.lapse(turn.waits_for, why.message))


async def end_interrupted_turns(history: History, agent: str) -> int:
    """End the running turns of an agent that does not start. Waiting turns stay stored, because the agent may
    come back. Gives the number of ended turns. Raises StorageError.
    """
    records = history.queries.state("sessions")
    ended = 0
    for session_id, unfinished in unfinished_turns(history).items():
        if records.get(session_id, {}).get("agent") == agent:
            session = Session(SessionRecord.from_dict(records[session_id]), history)
            ended += (await recover(session, unfinished)).interrupted
    return ended


def agents_with_turns(history: History) -> set[str]:
    """The names of the agents, running or not, that have stored unfinished turns."""
    sessions = {str(turn["session"]) for turn in history.queries.state("turns").values()}
    records = history.queries.state("sessions")
    return {str(records[session]["agent"]) for session in sessions if session in records}


def _unattended(turn: Turn) -> dict[str, bool]:
    return {"unattended": True} if turn.unattended else {}


def unfinished_turns(history: History) -> dict[str, dict[str, dict[str, Any]]]:
    """The stored unfinished turns: session id → trace id → state, in the order of their prompts."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    turns = history.queries.state("turns")
    order = {trace: _first_seq(history, trace) for trace in turns}
    for trace_id in sorted(turns, key=lambda trace: order[trace]):
        state = turns[trace_id]
        with decoding("turns", trace_id):
            found.setdefault(str(state["session"]), {})[trace_id] = state
    return found


def _first_seq(history: History, trace_id: str) -> int:
    events = history.queries.select(Filter(trace=trace_id), limit=1)
    return events[0].seq if events else 0
