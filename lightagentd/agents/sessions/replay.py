"""Makes the request of a past model call again, and sends it to a model of the agent. No tool is run.

The messages are those of the history, to the byte. It has neither the system prompt nor the functions of that
time: both are made as for a turn that begins now, by the parts that turns use, and `Rebuilt.notes` says what
is known to be different. A request that is sent is checked against the budgets, counted for who asks, and
stored like every model call, but not in the session, of which nothing changes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from lightagentd.agents.choosing import Choice, admit
from lightagentd.agents.guarding import answer_guard
from lightagentd.agents.hook_phases import before_request
from lightagentd.agents.model_calls.asking import understood
from lightagentd.agents.model_calls.compaction.window import Gauge
from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.retries import ModelCalls
from lightagentd.agents.model_calls.storable import storable
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.sessions.past_calls import PastCall, PastCalls
from lightagentd.agents.sessions.session import Session
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.results import Results
from lightagentd.errors import ContextFull, NotFound
from lightagentd.events.history import History
from lightagentd.events.model import new_id, within
from lightagentd.events.queries import Filter
from lightagentd.events.types.agent import Prompted
from lightagentd.llm.protocol import Message, ModelClient, Part, Request, ToolCall
from lightagentd.llm.providers import RUNBOOK

_RELOADED = Filter(topic="daemon.state", type="reloaded")
_NAMED = 5
"""So many changed files are named."""
_RUNBOOK_SEES = (
    "The model runbook looks at the newest question and at the result of its own last call, and at nothing"
    " else of the request."
)


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """The request of a past call, as it can be made now; `notes` are sentences on what differs."""

    request: Request
    notes: list[str]
    parts: AgentParts
    session: Session
    """A copy with the conversation of then, which nobody watches and nothing stores."""


class Replay:
    """The calls of one session. `parts_of` gives the parts of a running agent, or raises."""

    def __init__(self, session: Session, past: PastCalls, parts_of: Callable[[str], AgentParts]) -> None:
        self._session, self._past, self._parts_of = session, past, parts_of

    def check_model(self, calls: Sequence[PastCall], model: str) -> None:
        """Raises InvalidArgument where an agent of the calls does not have the model, AgentNotFound and
        AgentNotRunning.
        """
        for agent in {call.agent for call in calls} or {self._session.record.agent}:
            admit(Choice(model=model), self._parts_of(agent))

    def pruned(self, call: PastCall) -> list[str]:
        """What the history does not have of a call any more."""
        notes, before = [], f"The history before the event {self._past.pruned_to} is pruned:"
        if not call.response:
            notes.append(f"{before} the model, its time and its tokens are not known.")
        if call.unknown:
            notes.append(
                f"{before} whether a summary stood for older messages then is not known. The messages are"
                " all that were said until then, so they may be more than the model got."
            )
        return notes

    async def rebuild(self, call: PastCall, answer: Message | None) -> Rebuilt:
        """The request of a call with its stored answer.

        Raises AgentNotFound, AgentNotRunning, SessionNotFound, MessageTooLarge, StorageError.
        """
        history = self._session.history
        agent = self._parts_of(call.agent)
        told = await asyncio.to_thread(_chosen, history, call.event.trace_id)
        chosen = {name: one for name, one in told.items() if name in ("tools", "skills", "effects")}
        parts = agent.for_turn(Choice.from_dict(chosen))
        then = Session(self._session.record, history)
        messages = await asyncio.to_thread(self._past.sent, call)
        self._session.check_there()  # else it may have been read while it was deleted
        then.take_messages(messages)
        then.plan = self._session.plan
        client = parts.clients_for(call.model)[0]
        offer = await parts.shared.offers.begin(
            then,
            parts.definition,
            parts.toolbox,
            client,
            change=parts.shared.pool.has_change(parts.definition.name),
            max_tools=parts.limits.max_tools,
        )
        request = Request(
            system=await parts.system_prompt(then), messages=messages, functions=offer.functions(messages)
        )
        called = {one.name for one in answer.tool_calls} if answer is not None else set[str]()
        notes = [*self.pruned(call), *_left_out(parts, told)]
        notes += _otherwise(call.model, called, request, client, parts)
        notes += await asyncio.to_thread(_changed, history, parts, call.event.time_us)
        return Rebuilt(request=request, notes=notes, parts=parts, session=then)

    async def ask(self, rebuilt: Rebuilt, model: str, caller: int) -> tuple[Mapping[str, Any], Message]:
        """Send a request to a model of its agent, for a uid; gives what the event of the call says of it, and
        the answer as it would be stored. No call of it is run.

        Raises ContextFull, ModelError, BudgetExceeded, StorageError.
        """
        parts, shared, request = rebuilt.parts, rebuilt.parts.shared, rebuilt.request
        client, history = parts.clients_for(model)[0], parts.history
        _check_window(client, request)
        agent, request_id = self._session.record.agent, new_id("req")
        meter = Meter(shared.ledger, Whose(agent=agent, owner=caller))
        calls = ModelCalls(
            meter,
            Results(TurnStream("", rebuilt.session.stream), history.hurry),
            shared.circuits,
            history,
            turn=request_id,
            tell=lambda _: None,
            left_s=lambda: None,
            tell_usage=lambda *_: None,
            before=partial(before_request, shared.hooks, agent),
        )
        with within(agent=agent, owner=caller, request_id=request_id):
            meter.run()
            try:
                reply = await calls.make(client, request, _hear)
                events, changes = reply.stored(meter)
                await history.append(*events, changes=changes)
            finally:
                meter.stop()
        reply = await understood(reply, request.functions, None, history.redactor)
        guard = answer_guard(parts, rebuilt.session)
        text = reply.text if guard is None else guard.whole(reply.text)
        said = Message(role="assistant", content=text, tool_calls=reply.calls)
        return events[0].data, storable(said, parts.toolbox, history.redactor)


def check_known(call: PastCall) -> None:
    """Raises NotFound for a call whose messages are not known: to send others would be a guess."""
    if call.unknown:
        raise NotFound(
            f"What was sent in the request {call.number} is not known: the history of that time is pruned.",
            suggestion="Replay a later request; without a model this one is shown as far as it is known.",
        )


def is_same(one: Message, other: Message) -> bool:
    """Whether two answers make the same calls with the same arguments, or say the same without calls."""
    if one.tool_calls or other.tool_calls:
        return [*map(_call, one.tool_calls)] == [*map(_call, other.tool_calls)]
    return one.content.strip() == other.content.strip()


def _call(call: ToolCall) -> tuple[str, Any]:
    try:
        return call.name, json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.name, call.arguments


async def _hear(part: Part) -> None:
    """Nobody watches."""


def _check_window(client: ModelClient, request: Request) -> None:
    """Raises ContextFull for what the model is known not to take: the request is sent whole or not at all."""
    tokens = _tokens(request)
    if client.window_known and client.context_tokens and tokens > client.context_tokens:
        raise ContextFull(
            f"The request has about {tokens:,} tokens, and the window of {client.name} has"
            f" {client.context_tokens:,}.",
            suggestion="Choose a model with a larger window.",
        )


def _tokens(request: Request) -> int:
    return Gauge().measure(request.system, request.functions, request.messages)


def _chosen(history: History, trace_id: str) -> dict[str, Any]:
    """What the prompt of a turn chose, as far as the history says it."""
    wanted = Filter(trace=trace_id, topic=Prompted.topic)
    found = history.queries.select(wanted, limit=1) if trace_id else []
    return dict((found[0].data or {}).get("choice", {})) if found else {}


def _left_out(parts: AgentParts, told: dict[str, Any]) -> Iterator[str]:
    """What only the turn had."""
    if "schema" in told:
        yield "The prompt had a JSON Schema for the answer. The history does not have it, so it is left out."
    if "system" in told:
        yield "The turn had more text in its system prompt. The history does not have it, so it is left out."
    if skill := parts.definition.front.context_skill:
        yield f"The report of the skill {skill} is left out of the system prompt: nothing is run."
    if parts.shared.more_prompt is not None:
        yield "What the program that embeds the agent adds to the system prompt is left out."


def _otherwise(
    model: str, called: set[str], request: Request, client: ModelClient, parts: AgentParts
) -> Iterator[str]:
    """What is known to have been different, or may have been, when a model called these functions."""
    if model == RUNBOOK:
        yield f"{_RUNBOOK_SEES} It made the stored answer."
    if gone := sorted(called - {one.name for one in request.functions}):
        yield f"The stored answer calls what is not offered now: {', '.join(gone)}."
    window = client.context_tokens if client.name == model else 0
    if window and _tokens(request) >= round(window * parts.limits.compact_at):
        yield (
            "The messages nearly fill the model's window, so long results in them may have been shortened for"
            " it; the history has them whole."
        )


def _changed(history: History, parts: AgentParts, since_us: int) -> list[str]:
    """What changed of the agent's files, as far as their times and the history tell. Reads files."""
    skills = parts.shared.content.catalog_of(parts.definition)().skills.values()
    toolbox, offers = parts.toolbox, parts.definition.offers
    named = {one.tool for one in toolbox.functions.values() if offers(one.tool, one.name)}
    offered = [one for one in toolbox.tools.values() if one.name in named]
    files = {f"the definition of {parts.definition.name}": parts.definition.path}
    files |= {f"the skill {one.name}": one.folder / "SKILL.md" for one in skills}
    files |= {f"the tool {one.name}": Path(one.path) for one in offered if one.path}
    notes, newer = list[str](), [name for name, path in files.items() if _mtime_us(path) > since_us]
    if newer:
        more = f" and {len(newer) - _NAMED} more" if len(newer) > _NAMED else ""
        notes.append(f"Changed since: {', '.join(newer[:_NAMED])}{more}.")
    read = history.queries.of_topic(_RELOADED.topic, _RELOADED, 1)
    if read and read[0].time_us > since_us:
        when = datetime.fromtimestamp(read[0].time_us / 1e6, UTC)
        notes.append(f"The daemon read its agents, skills and tools again at {when:%Y-%m-%d %H:%M} UTC.")
    return notes


def _mtime_us(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1000
    except OSError:
        return 0


def notes_on(model: str) -> list[str]:
    """What is to be known of a comparison with a model."""
    return [f"{_RUNBOOK_SEES} Its call or its report is compared."] if model == RUNBOOK else []
