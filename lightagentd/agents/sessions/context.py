"""What fills the window of a session's model, and its compaction when a person asks for it.

A turn compacts by itself (`model_calls.compaction`). Here the same happens between two turns: none begins
meanwhile (`Session.compacting`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lightagentd.agents.agent import Agent
from lightagentd.agents.hook_phases import before_request
from lightagentd.agents.model_calls.compaction.compactor import Compactor
from lightagentd.agents.model_calls.compaction.window import BYTES_PER_TOKEN, Gauge, tokens_of
from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.retries import ModelCalls
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.sessions.session import Session
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.results import Results
from lightagentd.api import SessionContext
from lightagentd.api.turn_events import Compacted
from lightagentd.errors import Conflict
from lightagentd.events.model import new_id, within
from lightagentd.llm.protocol import Function, ModelClient


@dataclass(frozen=True, kw_only=True)
class _Next:
    """What the next request would have, beside the messages."""

    client: ModelClient
    system: str
    functions: list[Function]


async def _next_of(session: Session, parts: AgentParts) -> _Next:
    """Made for a copy of the session, of which nothing changes. Raises StorageError."""
    await session.load()
    copy = Session(session.record, session.history)
    copy.take_messages([*session.messages])
    copy.plan = session.plan
    client = parts.clients_for(session.record.model)[0]
    offer = await parts.shared.offers.begin(
        copy,
        parts.definition,
        parts.toolbox,
        client,
        change=parts.shared.pool.has_change(parts.definition.name),
        max_tools=parts.limits.max_tools,
    )
    system = await parts.system_prompt(copy)
    return _Next(client=client, system=system, functions=[*offer.functions(copy.messages)])


async def context_of(session: Session, parts: AgentParts) -> SessionContext:
    """What a turn that begins now would send. Raises StorageError."""
    there, messages = await _next_of(session, parts), session.messages
    gauge = Gauge(session.counted)
    tokens = gauge.measure(there.system, there.functions, messages)
    system = round(len(there.system.encode()) / BYTES_PER_TOKEN)
    window = there.client.context_tokens
    return SessionContext(
        model=there.client.name,
        window_tokens=window,
        window_known=there.client.window_known,
        compact_at_tokens=round(window * parts.limits.compact_at),
        tokens=tokens,
        system_tokens=system,
        functions=len(there.functions),
        function_tokens=max(0, round(gauge.fixed_bytes / BYTES_PER_TOKEN) - system),
        messages=len(messages),
        message_tokens=tokens_of(messages),
    )


async def compact(session: Session, agent: Agent, caller: int) -> Compacted:
    """Have a summary stand for all turns but the newest. Nothing is `removed` where there is no older one.

    Raises Conflict while a turn runs or waits, AgentNotRunning, BudgetExceeded, StorageError.
    """
    parts = agent.running_parts()
    if session.running or session.storing or session.queue or session.compacting:
        raise Conflict(
            f"A turn runs or waits in the session {session.id}, or it is compacted just now.",
            suggestion="Wait for its end; a turn compacts by itself when it has to.",
        )
    session.compacting = True
    shared, stream = parts.shared, TurnStream("", session.stream)
    results = Results(stream, session.history.hurry)
    meter = Meter(shared.ledger, Whose(agent=parts.definition.name, owner=caller, session=session.id))
    request_id = new_id("req")
    calls = ModelCalls(
        meter,
        results,
        shared.circuits,
        session.history,
        turn=request_id,
        tell=lambda _: None,
        left_s=lambda: None,
        tell_usage=lambda *_: None,
        before=partial(before_request, shared.hooks, parts.definition.name),
    )
    compactor = Compactor(
        session, calls, meter, results, compact_at=parts.limits.compact_at, tell=stream.emit
    )
    try:
        with session.context(), within(request_id=request_id):
            there = await _next_of(session, parts)
            meter.run()
            return await compactor.now(there.client, there.system, there.functions)
    finally:
        meter.stop()
        session.counted = compactor.gauge.counted
        session.compacting = False
        agent.go_on(session)
