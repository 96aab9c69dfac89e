"""Turns of agents for clients that know nothing of turns: a message goes in, and the events come out.

A turn whose client hangs up is cancelled, or goes on, as configured. A turn that waits for a person is left
to wait: its last event here is the question, and the daemon goes on with it when it is answered. The next
message of that session is the answer to a question of the agent; after an approval it first gets the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.terms import words as confirm_words
from lightagentd.errors import LightagentError, PermissionDenied
from lightagentd.gateway.asked import Asked
from lightagentd.gateway.callers import Caller

_log = logging.getLogger("lightagentd.gateway")

Event = dict[str, Any]
WAITS = ("approval_requested", "input_requested")
LAST = ("done", "error", *WAITS)
FIRST_S = 5.0
"""How long a turn may have nothing to say before its response begins. An error until then has a status."""
_INPUT = "inp_"
"""How the ids of questions begin."""
_CANCEL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A client's answer to the question whether a call may run."""

    approved: bool
    reason: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a client sends to a session, or to a new one of `agent` where `session` is empty."""

    session: str
    agent: str | None
    text: str
    """What is prompted; empty where the client only answers, or wants the rest of a turn."""
    answer: str = ""
    """What answers a question of the agent, where that is not `text`."""
    prompt: Mapping[str, Any] = field(default_factory=dict)
    """More parameters of `Sessions.Prompt`."""
    approvals: Mapping[str, Approval] = field(default_factory=dict)
    """By the id of the approval."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Answers to questions by the ids of their calls."""
    goes_on: bool = False
    """Whether its turn goes on without its client, whatever is configured."""


async def exchange(asked: Asked, caller: Caller, message: Message) -> AsyncGenerator[Event]:
    """The events that a message leads to: first the rest of a turn that its client has not seen to its end,
    as `followed` has it, or an event `missed` with the `text` that such a turn ended with; then the events of
    the prompt, unless the message was an answer or the turn still waits. Raises what the daemon refuses.
    """
    session, text = message.session, message.text
    info = await state(caller, session) if session else _IDLE
    left = asked.shared.conversations.left(session) or not text
    sources: list[AsyncGenerator[Event]] = []
    if info["state"] == "idle":
        if session and left:
            sources.append(_missed(asked, caller, session))
    elif left or info["state"] == "waiting":
        sources.append(followed(asked, caller, session, message, question=info["waits_for"]))
    if text and info["state"] != "waiting":
        where = {"session": session} if session else {"agent": message.agent, "new": True}
        sources.append(turn(asked, caller, goes_on=message.goes_on, text=text, **where, **message.prompt))
    for events in sources:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event
                if event["type"] in WAITS:
                    return


_IDLE = {"state": "idle", "waits_for": ""}


async def state(caller: Caller, session: str) -> dict[str, Any]:
    """The session, an `api.Session`; as idle for a token that may only prompt. Raises SessionNotFound."""
    try:
        return dict((await caller.client.call("Sessions.Get", session=session))["session"])
    except PermissionDenied:
        return _IDLE


async def newest(caller: Caller, session: str) -> dict[str, Any]:
    """Its newest message, an `api.Message`; empty without one, and for a token that may only prompt."""
    with contextlib.suppress(PermissionDenied):
        found = (await caller.client.call("Sessions.Messages", session=session, limit=1))["messages"]
        return dict(found[0]) if found else {}
    return {}


async def _missed(asked: Asked, caller: Caller, session: str) -> AsyncGenerator[Event]:
    message = await newest(caller, session)
    if message.get("role") == "assistant":
        event = {"type": "missed", "session": session, "trace_id": "", "text": message["content"]}
        _seen(asked, event)
        yield event


async def turn(asked: Asked, caller: Caller, *, goes_on: bool, **prompt: Any) -> AsyncGenerator[Event]:
    """The events of a turn, begun with the parameters of `Sessions.Prompt`. The last one is done, error, or
    what the turn waits for. The first comes once the prompt is stored. Leaving early cancels the turn, unless
    it `goes_on` or that is configured. Raises TooMany and what the daemon refuses.
    """
    session, ended = "", False
    cancels = not goes_on and asked.shared.gateway.on_disconnect == "cancel"
    async with contextlib.AsyncExitStack() as held:
        held.enter_context(asked.turn(caller))
        # Who is known by their connection alone cannot prove it once they have hung up.
        spare = await held.enter_async_context(asked.caller()) if cancels and caller.is_local else None
        try:
            async with contextlib.aclosing(caller.client.stream("Sessions.Prompt", **prompt)) as found:
                # Only the first event of a prompt that is under way says which session is to be cancelled.
                first = asyncio.ensure_future(anext(found))
                try:
                    event = (await uninterrupted(first))["event"]
                except asyncio.CancelledError:
                    if not first.cancelled() and first.exception() is None:
                        session = first.result()["event"]["session"]
                    raise
                while True:
                    session, ended = event["session"], event["type"] in LAST
                    _seen(asked, event)
                    yield event
                    if ended:
                        return
                    event = (await anext(found))["event"]
        finally:
            if session and not ended and cancels:
                await _cancelled(asked, session, spare)


async def followed(
    asked: Asked,
    caller: Caller,
    session: str,
    message: Message | None = None,
    *,
    question: str = "",
    through: bool = False,
) -> AsyncGenerator[Event]:
    """The events of the turn that runs in a session now: first an event `session`, then as `turn` has, or
    `through` all that it waits for; none more where nothing runs. The message may answer the `question` that
    it waits for, which is left out then. Leaving early cancels nothing.
    """
    answer = await _answer(caller, message, question) if message is not None and question else None
    past = question if answer is not None else None
    async with contextlib.AsyncExitStack() as held:
        held.enter_context(asked.turn(caller))
        watcher = await held.enter_async_context(asked.caller())
        watched = watcher.client.stream("Sessions.Watch", session=session)
        async for reply in await held.enter_async_context(contextlib.aclosing(watched)):
            event = reply["event"]
            if event is None:
                return
            if event["type"] == "session" and answer is not None:  # only now: what it leads to is not missed
                await _call(caller, *answer)
                answer = None
            elif past and event["type"] in WAITS and past in (event.get("approval"), event.get("input")):
                continue
            _seen(asked, event)
            yield event
            idle = event["type"] == "session" and (event["session_info"] or _IDLE)["state"] == "idle"
            if idle or event["type"] in (LAST[:2] if through else LAST):
                return


async def _answer(caller: Caller, message: Message, question: str) -> tuple[str, dict[str, Any]] | None:
    """The call that gives the client's answer to a question; None when it has none."""
    if question.startswith(_INPUT):
        text = (message.answer or message.text).strip()
        if not text and message.outputs:
            call = (await caller.client.call("Inputs.Get", input=question))["input"]["call_id"]
            text = message.outputs.get(call, "")
        return ("Inputs.Answer", {"input": question, "text": text}) if text else None
    found = message.approvals.get(question)
    if found is None:
        return None
    given = {"approval": question, "note": found.reason}
    if not found.approved:
        return "Approvals.Deny", given
    return "Approvals.Approve", {**given, "digest": found.digest}


async def _call(caller: Caller, method: str, parameters: Mapping[str, Any]) -> None:
    """Raises what the daemon refuses, and who else may do it."""
    try:
        await caller.client.call(method, **parameters)
    except PermissionDenied as err:
        approval = parameters.get("approval")
        how = f"An administrator allows it with: lactl approve {approval}" if approval else err.suggestion
        raise PermissionDenied(err.message, suggestion=how) from err


def waiting_text(event: Event) -> str:
    """What a client is told of a question that its turn waits for."""
    if event["type"] == "input_requested":
        choices = "".join(f"\n- {choice}" for choice in event["choices"])
        return (
            f"{event['question']}{choices}\n\n"
            f"(The agent waits for your answer, {event['input']}: write it as your next message.)"
        )
    what = event["preview"] or f"{event['tool']}.{event['action']} {event['args']}"
    takes_back = f"{said}\n\n" if (said := confirm_words(event)) else ""
    name = event["approval"]
    return (
        f"The agent waits for approval {name} of {event['tool']}.{event['action']}:\n\n"
        f"{what}\n\n{takes_back}Run: lactl approve {name}\n(or: lactl deny {name}). "
        "Then write your next message, and the conversation goes on."
    )


def _seen(asked: Asked, event: Event) -> None:
    """Remember what a client was told of the turns of a session."""
    if event["type"] in WAITS:
        asked.shared.conversations.leave(event["session"])
    elif event["type"] in ("missed", *LAST):
        asked.shared.conversations.told(event["session"])


async def _cancelled(asked: Asked, session: str, spare: Caller | None) -> None:
    """Cancel what runs in a session whose reader is gone."""
    try:
        async with asyncio.timeout(_CANCEL_S), contextlib.AsyncExitStack() as held:
            able = spare if spare is not None else await held.enter_async_context(asked.caller())
            await able.client.call("Sessions.Cancel", session=session)
    except (LightagentError, TimeoutError) as err:
        _log.warning("the turn of a client that hung up goes on in %s: %s", session, err)
