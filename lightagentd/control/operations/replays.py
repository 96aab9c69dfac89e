"""The operation that shows the requests of a session again, and sends them to a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.agents.sessions.past_calls import PastCall, PastCalls, past_calls
from lightagentd.agents.sessions.replay import Rebuilt, Replay, check_known, is_same, notes_on
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, stream
from lightagentd.errors import ContextFull, InvalidArgument, ModelError, NotFound
from lightagentd.llm.protocol import Message
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

_FIGURES = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost", "duration_ms")


class Replays(Operations, interface="org.lightagent1.Sessions"):
    """What models were asked in sessions."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._panic = access, runtime.panic
        self._registry, self._history = runtime.registry, runtime.history
        self._reading = asyncio.Lock()
        """Held while the whole of a session is read, which takes memory."""

    @stream("Replay", returns="request")
    async def replay(
        self, caller: Caller, session: str, *, to: int | None = None, model: str = ""
    ) -> AsyncGenerator[api.SessionRequest, None]:
        """The requests that were made to models in a session, oldest first, each with the stored answer; with
        to this one alone, as it is made again. With model each is sent to that one, which the agent has, in
        the caller's name, and the new answer is compared. No tool is run, and nothing of the session changes.
        """
        operation = Operation.PROMPT if model else Operation.INSPECT
        caller, _, found = await self._access.admit_to(caller, operation, session)
        async with self._reading:
            past = await asyncio.to_thread(past_calls, self._history.queries, found.record)
        calls = _wanted(past, session, to)
        replay = Replay(found, past, lambda agent: self._registry.get(agent).running_parts())
        if (
            to is not None or model
        ):  # what only those agents have, their prompts for example, is shown or used
            for agent in {call.agent for call in calls} - {found.record.agent}:
                await self._access.admit(caller, operation, agent=agent)
        if model:
            await self._access.check_open(caller)
            replay.check_model(calls, model)
        for call in calls:
            answer = await asyncio.to_thread(past.answer, call)
            found.check_there()
            shown = _shown(past, call, answer, replay.pruned(call))
            try:
                if model:
                    self._panic.check()
                    check_known(call)
                if to is not None or model:
                    rebuilt = await replay.rebuild(call, answer)
                    notes = [*rebuilt.notes, *notes_on(model)]
                    shown = replace(shown, notes=notes, request=_request(rebuilt) if to is not None else None)
                    if model:
                        figures, said = await replay.ask(rebuilt, model, caller.uid)
                        same = answer is not None and is_same(answer, said)
                        shown = replace(shown, again=_answer(figures, said), same=same)
            except (ModelError, ContextFull, NotFound) as err:
                found.check_there()
                if to is not None:
                    raise
                shown = replace(shown, error=err.message)
            yield shown


def _shown(past: PastCalls, call: PastCall, answer: Message | None, notes: list[str]) -> api.SessionRequest:
    return api.SessionRequest(
        number=call.number,
        requests=len(past.calls),
        turn=call.turn,
        time_us=call.event.time_us,
        trace_id=call.event.trace_id,
        request_id=call.event.request_id,
        agent=call.agent,
        message_count=None if call.unknown else call.message_count,
        stored=_answer(call.response, answer),
        request=None,
        again=None,
        same=None,
        error="",
        notes=notes,
    )


def _answer(figures: Mapping[str, Any], said: Message | None) -> api.RequestAnswer:
    """An answer, and what the event of its call says; empty where that is not known."""
    return api.RequestAnswer(
        model=figures.get("model", ""),
        text=said.content if said is not None else "",
        tool_calls=[call.to_dict() for call in said.tool_calls] if said is not None else [],
        finish_reason=figures.get("finish_reason", "") if said is not None else "failed",
        counted=figures.get("counted", False),
        **{name: figures.get(name) for name in _FIGURES},
    )


def _wanted(past: PastCalls, session: str, to: int | None) -> Sequence[PastCall]:
    """Raises InvalidArgument."""
    if to is None:
        return past.calls
    found = [call for call in past.calls if call.number == to]
    if not found:
        count = len(past.calls)
        has = (
            f"has the requests 1 to {count}" if count > 1 else "has 1 request" if count else "has no requests"
        )
        raise InvalidArgument(
            f"The session {session} {has}, and none with the number {to}.",
            field="to",
            suggestion=f"Run: lactl sessions replay {session}",
        )
    return found


def _request(rebuilt: Rebuilt) -> api.RebuiltRequest:
    request = rebuilt.request
    return api.RebuiltRequest(
        system=request.system,
        messages=[message.to_dict() for message in request.messages],
        functions=[function.name for function in request.functions],
    )
