"""Makes a model's message fit to be stored: without secrets and without arguments only for the tool."""

from __future__ import annotations

import json
from dataclasses import replace

from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.llm.json_calls import call_in_text
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.policy.questions.approval import hide
from lightagentd.redaction import Redactor


def storable(message: Message, toolbox: Toolbox, redactor: Redactor) -> Message:
    """A model's message without secrets and without write-only arguments. This form is stored, and sent to
    the model later. The call itself runs with the original arguments.
    """
    hidden = _without_hidden(message, toolbox)
    # An endpoint that signs its reasoning would refuse what is left of a block when a secret is taken out.
    reasoning = tuple(
        block for block in hidden.reasoning if redactor.value(block.to_dict()) == block.to_dict()
    )
    calls = tuple(
        replace(call, name=redactor.text(call.name), arguments=_without_secrets(call.arguments, redactor))
        for call in hidden.tool_calls
    )
    return replace(hidden, content=redactor.text(hidden.content), tool_calls=calls, reasoning=reasoning)


def _without_secrets(arguments: str, redactor: Redactor) -> str:
    """Arguments as JSON. They are decoded, because the name of a field can mark a secret."""
    if not redactor.suspects(arguments.encode("utf-8", "replace")):
        return arguments
    try:
        found = json.loads(arguments)
        cleaned = redactor.value(found)
        return arguments if cleaned == found else json.dumps(cleaned)
    except (ValueError, RecursionError):
        return redactor.text(arguments)


def _without_hidden(message: Message, toolbox: Toolbox) -> Message:
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        action = toolbox.functions.get(call.name)
        if action is None or not action.hidden:
            calls.append(call)
            continue
        try:
            args = json.loads(call.arguments or "{}")
            kept = json.dumps(hide(args, action.hidden) if isinstance(args, dict) else {})
        except (ValueError, RecursionError):
            kept = "{}"  # it is refused, and what it holds cannot be told apart
        calls.append(replace(call, arguments=kept))
    content = message.content
    if tuple(calls) != message.tool_calls and (written := call_in_text(content)) is not None:
        # The call was written as text, and is what the message says.
        content = json.dumps({"function": written.name, "args": json.loads(calls[0].arguments)})
    return replace(message, content=content, tool_calls=tuple(calls))
