"""What was said and done in a turn, for spans that are to have it.

It is read from the history when a turn or call has ended, so that nothing is kept in memory until then.
"""

from __future__ import annotations

import json
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.telemetry.spans import TURN, Done, Event

MESSAGES, TEXT_CHARS = 200, 16_384
"""How many messages of a turn are sent at the most, its newest, and how much of each text."""


async def content_of(client: AsyncClient, event: Event, done: Done) -> dict[str, str]:
    """The attributes with content for the span of a turn; the messages hold the calls and their results.

    Raises the errors of a client.
    """
    if done.operation != TURN or not event["trace_id"]:
        return {}
    page = await client.call(
        "History.Page", trace=event["trace_id"], topic="agent.message", to_seq=event["seq"], limit=MESSAGES
    )
    messages = [_message(one["data"]) for one in page["page"]["events"] if one["data"] is not None]
    first = next((at for at, one in enumerate(messages) if one["role"] != "user"), len(messages))
    return {
        "gen_ai.input.messages": json.dumps(messages[:first], ensure_ascii=False),
        "gen_ai.output.messages": json.dumps(messages[first:], ensure_ascii=False),
    }


def _message(said: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of the conventions: a role, and parts."""
    text = said["content"][:TEXT_CHARS]
    if said["role"] == "tool":
        parts = [{"type": "tool_call_response", "id": said.get("tool_call_id", ""), "response": text}]
    else:
        parts = [{"type": "text", "content": text}] if text else []
        parts += [_call(one) for one in said.get("tool_calls", ())]
    return {"role": said["role"], "parts": parts}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_call",
        "id": call["id"],
        "name": call["name"],
        "arguments": str(call["arguments"])[:TEXT_CHARS],
    }
