"""The operation that shows the requests of a session again, and sends them to a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.agents.model_calls.call import Reply
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


class Replays(Operations, interface="org.lightagent1.Sessions"):
    """What models were asked in sessions."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._panic = access, runtime.panic
        self._registry, self._history = runtime.registry, runtime.history

    @stream("Replay", returns="request")
    async def replay(
        self, caller: Caller, session: str, *, to: int | None = None, model: str = ""
    ) -> AsyncGenerator[api.SessionRequest, None]:
        """The requests that were made to models in a session, oldest first, each with the stored answer; with
        to this one alone, as it is made again. With model each is sent to that one, which the agent has, in
        the caller's name, and the new answer is compared. No tool is run, and nothing of the session changes.
        """
        caller, _, found = await self._access.admit_to(
            caller, Operation.PROMPT if model else Operation.INSPECT, session
        )
        if model:
            await self._access.check_open(caller)
        past = await asyncio.to_thread(past_calls, self._history.queries, found.record)
        calls = _wanted(past, session, to)
        replay = Replay(found, past, lambda agent: self._registry.get(agent).running_parts())
        if model:
            replay.check_model(calls, model)
        for call in calls:
            found.check_there()
            shown = self._shown(past, call, replay.pruned(call))
            if to is not None or model:
                try:
                    if model:
                        self._panic.check()
                        check_known(call)
                    rebuilt = await replay.rebuild(call)
                    notes = [*rebuilt.notes, *notes_on(model)]
                    shown = replace(shown, notes=notes, request=_request(rebuilt) if to is not None else None)
                    if model:
                        reply, said = await replay.ask(rebuilt, model, caller.uid)
                        same = call.answer is not None and is_same(call.answer, said)
                        shown = replace(shown, again=self._again(reply, said), same=same)
                except (ModelError, ContextFull, NotFound) as err:
                    if to is not None:
                        raise
                    shown = replace(shown, error=err.message)
            yield shown

    def _shown(self, past: PastCalls, call: PastCall, notes: list[str]) -> api.SessionRequest:
        known, answer = call.response, call.answer
        return api.SessionRequest(
            number=call.number,
            requests=len(past.calls),
            turn=call.turn,
            time_us=call.event.time_us,
            trace_id=call.event.trace_id,
            request_id=call.event.request_id,
            agent=call.agent,
            message_count=None if call.unknown else call.message_count,
            stored=api.RequestAnswer(
                model=call.model,
                text=answer.content if answer is not None else "",
                tool_calls=_calls(answer),
                finish_reason="failed" if answer is None else known.get("finish_reason", ""),
                prompt_tokens=known.get("prompt_tokens"),
                completion_tokens=known.get("completion_tokens"),
                cached_tokens=known.get("cached_tokens"),
                counted=bool(known.get("counted")),
                cost=known.get("cost"),
                duration_ms=known.get("duration_ms"),
            ),
            request=None,
            again=None,
            same=None,
            error="",
            notes=notes,
        )

    def _again(self, reply: Reply, said: Message) -> api.RequestAnswer:
        usage = reply.usage or reply.estimate
        ledger = self._registry.shared.ledger
        return api.RequestAnswer(
            model=reply.model,
            text=said.content,
            tool_calls=_calls(said),
            finish_reason=reply.finish.reason,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            counted=reply.usage is not None,
            cost=ledger.cost(reply.model, usage) if usage is not None else None,
            duration_ms=reply.duration_ms,
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


def _calls(message: Message | None) -> list[object]:
    return [call.to_dict() for call in (message.tool_calls if message is not None else ())]
