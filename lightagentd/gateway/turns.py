"""Turns of agents for clients that know nothing of sessions: the prompt goes in, and the events come out.

A turn whose client hangs up is cancelled, or goes on, as configured. A turn that waits for a person is left
to wait: its last event here is the question, and the daemon goes on with it when it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from lightagentd.errors import LightagentError
from lightagentd.gateway.asked import Asked
from lightagentd.gateway.callers import Caller

_log = logging.getLogger("lightagentd.gateway")

Event = dict[str, Any]
WAITS = ("approval_requested", "input_requested")
LAST = ("done", "error", *WAITS)
_CANCEL_S = 5.0


async def turn(asked: Asked, caller: Caller, **prompt: Any) -> AsyncGenerator[Event]:
    """The events of a turn, begun with the parameters of `Sessions.Prompt`. The last one is done, error, or
    what the turn waits for. The first comes once the prompt is stored. Raises TooMany and what the daemon
    refuses.
    """
    session, ended = "", False
    cancels = asked.shared.gateway.on_disconnect == "cancel"
    async with contextlib.AsyncExitStack() as held:
        held.enter_context(asked.turn(caller))
        # Who is known by their connection alone cannot prove it once they have hung up.
        spare = await held.enter_async_context(asked.caller()) if cancels and caller.is_local else None
        try:
            async with contextlib.aclosing(caller.client.stream("Sessions.Prompt", **prompt)) as found:
                async for reply in found:
                    event = reply["event"]
                    session = event["session"]
                    ended = event["type"] in LAST
                    _count(asked, caller, event)
                    yield event
                    if ended:
                        return
        finally:
            if session and not ended and cancels:
                await _cancelled(asked, session, spare)


async def followed(asked: Asked, caller: Caller, session: str, *, past: str = "") -> AsyncGenerator[Event]:
    """The events of the turn that runs in a session now: first an event `session`, then as `turn` has them;
    none more where nothing runs. The question `past` is left out. Leaving early cancels nothing.
    """
    with asked.turn(caller):
        async with contextlib.aclosing(caller.client.stream("Sessions.Watch", session=session)) as found:
            async for reply in found:
                event = reply["event"]
                if event is None:
                    return
                if past and event["type"] == "input_requested" and event["input"] == past:
                    continue
                yield event
                if event["type"] in LAST or (
                    event["type"] == "session" and (event["session_info"] or {}).get("state") == "idle"
                ):
                    return


def waiting_text(event: Event) -> str:
    """What a client is told of a question that its turn waits for."""
    if event["type"] == "input_requested":
        choices = "".join(f"\n- {choice}" for choice in event["choices"])
        return (
            f"{event['question']}{choices}\n\n"
            f"(The agent waits for your answer, {event['input']}: write it as your next message.)"
        )
    what = event["preview"] or f"{event['tool']}.{event['action']} {event['args']}"
    return (
        f"The agent waits for approval {event['approval']} of {event['tool']}.{event['action']}:\n\n"
        f"{what}\n\nRun: lactl approve {event['approval']}\n(or: lactl deny {event['approval']}). "
        "Then write your next message, and the conversation goes on."
    )


def _count(asked: Asked, caller: Caller, event: Event) -> None:
    if event["type"] == "usage":
        asked.shared.limits.tokens(caller.key, int(event["total_tokens"]))


async def _cancelled(asked: Asked, session: str, spare: Caller | None) -> None:
    """Cancel what runs in a session whose reader is gone."""
    try:
        async with asyncio.timeout(_CANCEL_S), contextlib.AsyncExitStack() as held:
            able = spare if spare is not None else await held.enter_async_context(asked.caller())
            await able.client.call("Sessions.Cancel", session=session)
    except (LightagentError, TimeoutError) as err:
        _log.warning("the turn of a client that hung up goes on in %s: %s", session, err)
