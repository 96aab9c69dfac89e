"""A stored conversation as updates of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from acp import helpers

from lightagentd.cli.editor import calls

MOST_MESSAGES = 1000
"""As many as the daemon gives at once."""


def updates(messages: list[dict[str, Any]]) -> Iterator[helpers.SessionUpdate]:
    """Those of each `api.Message`, in their order. How a call ended is not in a message, so it is called
    completed when its result is there.
    """
    if len(messages) >= MOST_MESSAGES:
        yield helpers.update_agent_message_text(
            f"> The {MOST_MESSAGES} newest messages of the conversation:\n\n"
        )
    known = dict[str, str]()
    for message in messages:
        text = message["content"] or ""
        if message["role"] == "tool":
            if call_id := known.pop(message["tool_call_id"], ""):
                yield helpers.update_tool_call(call_id, status="completed", content=calls.as_text(text))
        elif message["role"] == "user":
            yield helpers.update_user_message_text(text)
        elif message["role"] == "assistant":
            if message["reasoning"]:
                yield helpers.update_agent_thought_text(message["reasoning"])
            if text.strip():
                yield helpers.update_agent_message_text(text)
            for call in message["tool_calls"]:
                # A model's ids of calls may come again with its next answer.
                call_id = known[call["id"]] = f"{message['seq']}-{call['id']}"
                yield calls.started({**_call(call), "call_id": call_id}, "in_progress")


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A model's call as `calls.started` takes it."""
    tool, _, action = call["name"].partition("_")
    args = call["arguments"]
    try:
        args = json.loads(args) if isinstance(args, str) else args
    except (ValueError, RecursionError):
        args = {"arguments": args}
    return {"tool": tool, "action": action, "args": args}
