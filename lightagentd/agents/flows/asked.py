"""A prompt of a step: asked in a child session of the run, found again after a restart, or read back."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightagentd.agents.choosing import Choice
from lightagentd.agents.flows.records import StepRecord
from lightagentd.agents.sessions.session import Session, SessionRecord, new_record, title_from
from lightagentd.agents.turn import Asked, Turn
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import Cancelled, LightagentError, NotFound, OutcomeUnknown, ShuttingDown, TimedOut
from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.events.model import within
from lightagentd.events.types.agent import CallIntended
from lightagentd.events.types.session import SessionCreated, TurnDone
from lightagentd.events.types.tool import INVOCATION
from lightagentd.policy.questions.questions import Suspended
from lightagentd.quoted import Prompt
from lightagentd.tool import Effect

if TYPE_CHECKING:
    from lightagentd.agents.flows.run import Run
    from lightagentd.config.flows.definition import Step

_LOOKED_AT = 10_000
_TOLD = 5
_STARTING_S = 0.1
_RUNS = "flows.run"
"""The call that observes for itself, and whose run may change something."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the history tells of an attempt that an earlier run of the daemon began."""

    answer: str | None
    """Of a prompt that was answered."""
    tainted: bool
    """Whether text from outside may be in it."""
    known: tuple[str, bool]
    """What the calls were, as a sentence, and whether one of them may have changed something."""


async def asked_in_child(run: Run, step: Step, record: StepRecord, prompt: Prompt | None) -> Turn | None:
    """Ask a prompt, or without one go on with what was asked before a restart; gives the turn once it is
    over, and None when no such turn goes on.

    Raises AgentNotFound, AgentNotRunning, QueueFull, SchemaUnsupported, StorageError, Suspended.
    """
    turn = _found(run, record) if prompt is None else await _asked(run, step, record, prompt)
    if turn is None:
        return None
    run.asked_turns.add(turn)
    try:
        while not turn.over.is_set():
            try:
                async with asyncio.timeout(step.timeout_s):
                    await turn.over.wait()
            except TimeoutError:
                if not turn.is_waiting:
                    turn.cancel(TimedOut(f"It did not end within {step.timeout_s:g} seconds."))
                    await turn.over.wait()
    finally:
        run.asked_turns.discard(turn)
    if turn.stays and not run.flows.closing:  # its agent failed, and takes it up when it is started again
        agent = run.registry.get(record.agent)
        while not run.flows.closing:
            if agent.state != "failed":
                return await asked_in_child(run, step, run.steps[record.name], None)
            await asyncio.sleep(_STARTING_S)
    if turn.stays or (run.flows.closing and isinstance(turn.failure, Cancelled | ShuttingDown)):
        raise Suspended
    return turn


async def _asked(run: Run, step: Step, record: StepRecord, prompt: Prompt) -> Turn:
    above, agent = run.session.record, run.registry.get(record.agent)
    child = replace(
        new_record(agent.name, above.owner, title_from(f"{run.record.flow}: {record.name}")),
        id=record.session,
        parent=above.id,
        tainted=above.tainted,
        tainted_by=above.id if above.tainted else "",
    )
    session = Session(child, run.shared.history)
    with within(caller=above.owner), session.context():
        created = SessionCreated(title=child.title, parent=above.id).event()
        await run.store(record, events=[created], changes=[child.change()])
    agent.adopt(session)
    asked = Asked(
        prompt=prompt,
        correlation_id=run.correlation(record),
        unattended=run.record.unattended,
        trigger=run.record.trigger,
        outside=above.tainted,
        choice=Choice(schema=step.schema_),
        aside=True,
        sent_by=run.record.sent_by,
    )
    try:
        with within(caller=above.owner):
            return await uninterrupted(agent.ask(session, asked))
    except LightagentError:
        agent.sessions.pop(session.id, None)
        raise


async def cancel_asked(run: Run, record: StepRecord, why: LightagentError) -> None:
    """Cancel what a step has asked in its child session, and wait for the end of that."""
    turn = _found(run, record)
    if turn is not None and not turn.over.is_set():
        turn.cancel(why)
        run.registry.session(record.session)[0].supervision.run(turn.session)
        await turn.over.wait()


def _found(run: Run, record: StepRecord) -> Turn | None:
    with contextlib.suppress(NotFound):
        _, session = run.registry.session(record.session)
        turns = [*([session.running] if session.running else []), *session.queue]
        return next(iter(turns), None)
    return None


def ending_of(history: History, record: StepRecord) -> Ending:
    """Read the attempt of a step back. Reads a lot; for a thread."""
    wanted = Filter(session=record.session) if record.session else Filter(trace=record.trace_id)
    own = history.queries.newest(wanted, _LOOKED_AT)
    below = _below(history, record.session) if record.session else []
    others = [event for one in below for event in history.queries.newest(Filter(session=one), _LOOKED_AT)]
    calls: dict[str, str] = {}
    changed = False
    answer = None
    for event in [*others, *own]:
        data = event.data or {}
        if (event.topic, event.type) == (CallIntended.topic, CallIntended.type):
            name, effect = f"{data.get('tool')}.{data.get('action')}", data.get("effect")
            calls[str(data.get("call_id"))] = name
            changed = changed or effect != Effect.OBSERVE.value or name == _RUNS
        elif event.type == INVOCATION and event.topic.startswith("tool."):
            result = str(data.get("result"))
            words = "its end is not known" if result == OutcomeUnknown.code else f"it ended with {result}"
            calls[str(data.get("call_id"))] = f"{data.get('tool')}.{data.get('action')} ({words})"
        elif (
            event.topic == "agent.message"
            and event.session == record.session
            and data.get("role") == "assistant"
            and not data.get("tool_calls")
        ):
            answer = str(data.get("content", ""))
    is_done = any((one.topic, one.type) == (TurnDone.topic, TurnDone.type) for one in own)
    told = [*calls.values()][-_TOLD:]
    known = f"What is known: {', '.join(told)}." if told else ""
    return Ending(
        answer=answer if is_done else None, known=(known, changed), tainted=_tainted(history, record)
    )


def _below(history: History, session: str) -> list[str]:
    """The sessions below one: those of agents that its agent asked, and so on."""
    children: dict[str, list[str]] = {}
    for one in history.queries.state("sessions").values():
        children.setdefault(str(one.get("parent", "")), []).append(str(one["id"]))
    found = [*children.get(session, ())]
    for one in found:
        found += children.get(one, ())
    return found


def _tainted(history: History, record: StepRecord) -> bool:
    try:
        return SessionRecord.from_dict(history.queries.state_of("sessions", record.session)).tainted
    except NotFound:  # what was in it is not known any more
        return True
