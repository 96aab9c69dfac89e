"""Changes a conversation so that an endpoint accepts it.

A conversation may have begun with another model, may be imported, or may have lost a part. Endpoints refuse
the whole conversation for one call without a result, one result without its call, or an unusual id. The
output here depends only on the messages, so the beginning of a growing conversation stays the same and is
found in the endpoint's cache.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightagentd.llm.dialects.dialect import NAME_CHARS, marked_result
from lightagentd.llm.protocol import Message, Reasoning, ToolCall
from lightagentd.text.strict_json import is_deeper

PLAIN_IDS = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""Ids that nearly all endpoints take: Anthropic demands these characters, OpenAI not more than 40."""
SHORT_ID_CHARS = 9
SHORT_IDS = re.compile(rf"[A-Za-z0-9]{{{SHORT_ID_CHARS}}}")
"""The only ids that Mistral takes."""
NO_RESULT = "The result of this call is not known."
NO_ANSWER = "(There was no answer.)"
GO_ON = "Go on."
_EARLIER = "(What was said before is left out.)"
_MOST_BRACKETS = 200
"""So many in the arguments of a call cannot be nested too deep for any encoder."""


def fitted(messages: Sequence[Message], ids: re.Pattern[str] = PLAIN_IDS) -> list[Message]:
    """The messages, with each call followed at once by its one result, in the order of the results.

    Each call has an id that matches `ids` and is unique in the conversation. A result without its call
    becomes text of the user, and a call without a result gets one that says so. Apart from calls and results,
    user and assistant take turns, the user first, as the templates of Gemma and Mistral demand.
    """
    return _in_turns(_with_results(messages, ids))


def _in_turns(messages: Sequence[Message]) -> list[Message]:
    """The messages with what is missing between two of one role. Messages that say nothing are left out."""
    made: list[Message] = []
    for message in messages:
        before = made[-1].role if made else ""
        if message.role == "assistant":
            if not (message.content.strip() or message.tool_calls):
                continue
            if before in ("", "assistant"):
                made.append(Message(role="user", content=GO_ON if before else _EARLIER))
        elif message.role == "user" and before == "user" and made[-1].name:  # a summary
            message = replace(message, content=f"{made.pop().content}\n\n{message.content}")
        elif message.role == "user" and before in ("user", "tool"):
            made.append(Message(role="assistant", content=NO_ANSWER))
        made.append(message)
    return made


def _with_results(messages: Sequence[Message], ids: re.Pattern[str]) -> list[Message]:
    """The messages with each call followed by its result."""
    made: list[Message] = []
    used: dict[str, int] = {}
    at, end = 0, len(messages)
    while at < end:
        message = messages[at]
        at += 1
        if message.role != "assistant" or not message.tool_calls:
            made.append(_told(message) if message.role == "tool" else message)
            continue
        begin = at
        while at < end and messages[at].role != "assistant":
            at += 1
        following = messages[begin:at]
        if _fits(message, following, used, ids):
            made.append(message)
            made += following
        else:
            made += _step(message, following, used, ids)
    return made


def _fits(message: Message, following: Sequence[Message], used: dict[str, int], ids: re.Pattern[str]) -> bool:
    """Whether a message with one call and the next message are fine already, as nearly all are."""
    if len(message.tool_calls) != 1 or len(following) != 1:
        return False
    call_id, result = message.tool_calls[0].id, following[0]
    if (
        result.tool_call_id != call_id
        or result.role != "tool"
        or call_id in used
        or not ids.fullmatch(call_id)
    ):
        return False
    used[call_id] = 0
    return True


def _step(
    message: Message, following: Sequence[Message], used: dict[str, int], ids: re.Pattern[str]
) -> list[Message]:
    """A message with calls, their results, and then the other messages before the model's next one."""
    new_ids: dict[str, list[str]] = {}
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        new_id = call.id if call.id not in used and ids.fullmatch(call.id) else _fresh(call.id, used, ids)
        used.setdefault(new_id, 0)
        new_ids.setdefault(call.id, []).append(new_id)
        calls.append(call if new_id == call.id else replace(call, id=new_id))
    results: list[Message] = []
    rest: list[Message] = []
    for other in following:
        if other.role != "tool":
            rest.append(other)
        elif waiting := new_ids.get(other.tool_call_id):
            new_id = waiting.pop(0)
            results.append(other if new_id == other.tool_call_id else replace(other, tool_call_id=new_id))
        else:
            rest.append(_told(other))
    if len(results) < len(calls):
        answered = {result.tool_call_id for result in results}
        results += [
            Message(role="tool", content=NO_RESULT, tool_call_id=call.id, name=call.name)
            for call in calls
            if call.id not in answered
        ]
    return [replace(message, tool_calls=tuple(calls)), *results, *rest]


def _told(result: Message) -> Message:
    """A result without its call, as text."""
    return Message(role="user", content=marked_result(result))


def _fresh(old: str, used: dict[str, int], ids: re.Pattern[str]) -> str:
    """A replacement for an invalid id, the same for the same conversation. `used` has for each id the number
    of replacements: some servers give every call the same id.
    """
    seed = old.encode("utf-8", "replace")
    number = used.get(old, 0)
    while True:
        digest = hashlib.sha256(b"%d " % number + seed).hexdigest()
        made = f"call_{digest[:24]}"
        if not ids.fullmatch(made):
            made = digest[:SHORT_ID_CHARS]
        number += 1
        if made not in used:
            used[old] = number
            return made


def loop_start(messages: Sequence[Message]) -> int:
    """The start of the present tool loop: the newest message that comes from a person. Endpoints want the
    reasoning from there on, and ignore older reasoning. `messages` are fitted.
    """
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), 0)


def own_reasoning(message: Message, model: str) -> list[Reasoning]:
    """The blocks of this model's own reasoning: signatures and ciphers of others mean nothing to its
    endpoint.
    """
    return [block for block in message.reasoning if block.model == model]


def function_name(name: str) -> str:
    """A name that may be sent back: endpoints refuse a conversation with an invalid one."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_CHARS] or "unnamed"


def arguments_object(arguments: str) -> dict[str, Any] | None:
    """Parse the arguments of a call; None when they are not a JSON object."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if is_deeper(found, _MOST_BRACKETS):
        return None
    return found


def wrapped_arguments(arguments: str) -> dict[str, Any]:
    """The object that replaces arguments that are not a JSON object."""
    return {"not_a_json_object": arguments}
