"""What a client sends as a conversation: the messages of chat completions, and the input of responses.

Both become a `Said`: what was said before, and the prompt. The system messages are the client's text, so they
go into the prompt, in a block with a label; an agent's own system prompt is its administrator's alone.
Whatever is no text is refused by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.quoted import INSTRUCTIONS, quoted

MAX_MESSAGES = 10_000
_SYSTEM = ("system", "developer")
_TEXTS = ("text", "input_text", "output_text")


@dataclass(frozen=True, kw_only=True)
class Said:
    """`before` are `{role, content}` of the roles user and assistant, the last of them an assistant's;
    `prompt` is what was said since. `outside` says that results of the client's tools are in it.
    """

    system: str
    before: Sequence[dict[str, str]]
    prompt: str
    outside: bool

    def text(self, *, begins: bool) -> str:
        """The prompt as the agent gets it; the instructions come with the one that begins a session."""
        if not begins or not self.system:
            return self.prompt
        return f"{self.prompt}\n\n{quoted(INSTRUCTIONS, self.system)}"

    def mark(self, agent: str, answer: str | None = None) -> str:
        """Stands for the conversation before the prompt, or with it and its answer: the same for the same
        messages.
        """
        listed = [*self.before]
        if answer is not None:
            listed += [_message("user", self.prompt), _message("assistant", answer)]
        said = [[one["role"], one["content"].strip()] for one in listed]
        return hashlib.sha256(json.dumps([agent, self.system, said]).encode()).hexdigest()


def of_messages(messages: Any, name: str = "messages", instructions: str | None = None) -> Said:
    """The conversation in `messages`, which a client calls `name`. Raises InvalidArgument."""
    if not isinstance(messages, list) or not messages or len(messages) > MAX_MESSAGES:
        raise InvalidArgument(f"{name} must be a list of 1 to {MAX_MESSAGES} messages.", field=name)
    system = [instructions] if instructions else []
    listed: list[tuple[str, str]] = []
    for position, one in enumerate(messages):
        where = f"{name}.[{position}]"
        if not isinstance(one, dict):
            raise InvalidArgument(f"{where} must be an object with role and content.", field=where)
        role, text = one.get("role"), _text(one.get("content"), where)
        if role in _SYSTEM:
            system.append(text)
        elif role in ("tool", "function"):
            name = str(one.get("tool_call_id") or one.get("name") or "")[:200]
            listed.append(("tool", quoted(f"result of {name}", text)))
        elif role == "assistant":
            listed.append((role, assistant_text(text, one.get("tool_calls"))))
        elif role == "user":
            listed.append((role, text))
        else:
            raise InvalidArgument(
                f"{where}.role must be system, developer, user, assistant or tool.", field=f"{where}.role"
            )
    return _said(system, listed, name)


def of_input(given: Any, instructions: Any) -> Said:
    """The conversation in the `input` and the `instructions` of a response. Raises InvalidArgument."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise InvalidArgument("input must be a text or a list of items.", field="input")
    if not isinstance(instructions, str | None):
        raise InvalidArgument("instructions must be a text.", field="instructions")
    messages: list[Any] = []
    for position, one in enumerate(given):
        kind = (one.get("type") or "message") if isinstance(one, dict) else "message"
        if kind == "message":
            messages.append(one)
        elif kind == "function_call":
            call = {"function": {"name": one.get("name"), "arguments": one.get("arguments")}}
            messages.append({"role": "assistant", "tool_calls": [call]})
        elif kind == "function_call_output":
            output = {"content": one.get("output"), "tool_call_id": one.get("call_id")}
            messages.append({"role": "tool", **output})
        elif kind == "reasoning":
            messages.append({"role": "system"})  # nothing, in its place
        else:
            raise InvalidArgument(
                f"input.[{position}] is of the type {str(kind)[:40]!r}, which agents do not take.",
                suggestion="Send messages, function_call and function_call_output; earlier responses go by "
                "previous_response_id.",
                field=f"input.[{position}].type",
            )
    return of_messages(messages, "input", instructions)


def _said(system: Sequence[str], listed: Sequence[tuple[str, str]], name: str) -> Said:
    """Raises InvalidArgument."""
    end = len(listed)
    while end and listed[end - 1][0] != "assistant":
        end -= 1
    since = listed[end:]
    prompt = "\n\n".join(text for _, text in since if text)
    if not prompt.strip():
        raise InvalidArgument("The last message must be the user's, with a text.", field=name)
    before: list[dict[str, str]] = []
    for role, text in listed[:end]:
        role = "user" if role == "tool" else role
        if before and before[-1]["role"] == role:
            before[-1]["content"] += f"\n\n{text}"
        else:
            before.append(_message(role, text))
    outside = any(role == "tool" for role, _ in since)
    return Said(system="\n\n".join(filter(None, system)), before=before, prompt=prompt, outside=outside)


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _text(content: Any, where: str) -> str:
    """The text of a message. Raises InvalidArgument."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidArgument(f"{where}.content must be a text or a list of parts.", field=f"{where}.content")
    found: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in (*_TEXTS, "refusal") or not isinstance(text, str):
            raise InvalidArgument(
                f"{where}.content has a part of the type {str(kind)[:40]!r}; agents take text alone.",
                suggestion="Put files on the agent's machine, and name their paths.",
                field=f"{where}.content",
            )
        found.append(text)
    return "\n".join(found)


def assistant_text(text: str, calls: Any) -> str:
    """What an assistant said, with its calls of the client's tools as text."""
    listed = calls if isinstance(calls, list) else []
    functions = [one.get("function") for one in listed if isinstance(one, dict)]
    told = (
        f"[call of {one.get('name')}: {one.get('arguments')}]" for one in functions if isinstance(one, dict)
    )
    return "\n\n".join(filter(None, (text, *told)))
