"""Offers functions to models without native ones: described in the system prompt, called as JSON in the text.

A function `TOOL_ACTION` is called by an answer that is nothing but `{"tool", "action", "args"}` (what models
write instead is read too, `written_calls`); earlier calls and their results become text of the same form. It
works with every dialect: only the request changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightagentd.llm.dialects.dialect import marked_result
from lightagentd.llm.protocol import Function, Message, Request, ToolCall

_FORM = '{"tool": "TOOL", "action": "ACTION", "args": {"NAME": VALUE}}'
HOW_TO_CALL = (
    "To call a function of the list, answer with exactly one JSON object and nothing else, not even a word"
    f" before or behind it: {_FORM} If you need no call, answer in plain text."
)
"""What a model is told whose call cannot be read."""
_HOW = f"""\
# Functions

You can call the functions below. To call one, answer with exactly one JSON object and nothing else, not
even a word before or behind it:

{_FORM}

Call one function at a time: its result is in the next message. Never make up a result. Once you need no more
calls, answer in plain text. In the list a name with a question mark may be left out.
"""
_DESCRIPTION_CHARS = 400
_DEPTH = 3
"""How many references are followed one after the other; a schema may refer to itself."""
_TYPES = {"string": "text", "boolean": "true or false", "array": "list"}
_NO_TOOLS = re.compile(
    r"(?:does not|doesn't|do not|don't|not|no endpoints? found that) support (?:the )?(?:use of )?"
    r"[`'\"]?(?:tools?|functions?)\b"
    r"|(?:tools?|functions?)(?:[ _-](?:use|calls?|calling|choice))?[`'\"]? (?:is|are) not"
    r" (?:supported|enabled|available)"
    r"|not support(?:ed)?\b[^.]{0,60}[`'\": ]tools[`'\"\]]*(?:[ .,:]|$)"
    r"|\btools: Extra inputs are not permitted"
    r"|tool choice requires --enable-auto-tool-choice|tools param requires --jinja"
    r"|(?:unsupported|unknown|unrecognized|extra|unexpected)[^.]{0,60}[`'\": ]tools[`'\"]?(?:[ .,:]|$)",
    re.IGNORECASE,
)


def has_no_tools(words: str) -> bool:
    """Whether the words of a refusal say that the model takes no functions."""
    return _NO_TOOLS.search(words) is not None


def in_words(request: Request) -> Request:
    """The same request for a model that takes no functions."""
    system = request.system
    if request.functions:
        if not request.must_answer:
            request = replace(request, schema=None)  # an endpoint that sees to it would let pass no call
        listed = "\n".join(map(_line, request.functions))
        system = f"{system}\n\n{_HOW}\n{listed}".lstrip()
    return replace(request, system=system, functions=(), messages=_as_text(request.messages))


def written_call(call: ToolCall) -> str:
    """A call in the form that such a model writes."""
    tool, action = _tool_and_action(call.name)
    try:
        args = json.loads(call.arguments)
    except (ValueError, RecursionError):
        args = None
    if not isinstance(args, dict):
        args = {"not_a_json_object": call.arguments}
    return json.dumps({"tool": tool, "action": action, "args": args}, ensure_ascii=False)


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """The conversation without calls. Consecutive messages of one role are joined: some templates demand
    that.
    """
    made: list[Message] = []
    for message in messages:
        if message.role == "tool":
            now = Message(role="user", content=marked_result(message))
        else:
            written = [*map(written_call, message.tool_calls)]
            if not (written and _is_object(message.content)):  # else the content has the call already
                written.insert(0, message.content)
            now = Message(role=message.role, content="\n".join(filter(None, written)))
        if made and made[-1].role == now.role:
            now = replace(now, content="\n\n".join(filter(None, (made.pop().content, now.content))))
        made.append(now)
    return made


def _tool_and_action(name: str) -> tuple[str, str]:
    """The two parts of a function's name; the place of the cut does not matter, because joined they are the
    name again.
    """
    tool, _, action = name.partition("_")
    return (tool, action) if action else (name, "")


def _is_object(content: str) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return content.lstrip().startswith("```")


def _line(function: Function) -> str:
    tool, action = _tool_and_action(function.name)
    shape = f'{{"tool": "{tool}", "action": "{action}", "args": {_arguments(function.parameters)}}}'
    words = " ".join(function.description.split())[:_DESCRIPTION_CHARS]
    return f"- {shape}: {words}" if words else f"- {shape}"


def _arguments(schema: dict[str, Any]) -> str:
    """The arguments of a function in readable form."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "{}"
    required = schema.get("required") or ()
    found = []
    for name, what in properties.items():
        what = what if isinstance(what, dict) else {}
        words = " ".join(str(what.get("description", "")).split())[:_DESCRIPTION_CHARS]
        kind = _kind(what, schema)
        found.append(f'"{name}"{"" if name in required else "?"}: {kind}{f" ({words})" if words else ""}')
    return "{" + ", ".join(found) + "}"


def _kind(what: dict[str, Any], root: dict[str, Any], depth: int = 0) -> str:
    """Describe the type of a value. Deeply nested types are written as their schema."""
    reference = what.get("$ref")
    if isinstance(reference, str):
        defined = root.get("$defs", {}).get(reference.rpartition("/")[2])
        return _kind(defined, root, depth + 1) if isinstance(defined, dict) and depth < _DEPTH else "any"
    if values := what.get("enum"):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in values)
    if "const" in what:
        return json.dumps(what["const"], ensure_ascii=False)
    if isinstance(several := what.get("anyOf") or what.get("oneOf"), list):
        return " or ".join(_kind(one, root, depth) for one in several if isinstance(one, dict))
    kind = what.get("type", "any")
    if kind == "object":
        return json.dumps(what, ensure_ascii=False) if what.get("properties") else "object"
    if kind == "array" and isinstance(items := what.get("items"), dict) and items:
        return f"list of {_kind(items, root, depth)}"
    return _TYPES.get(kind, str(kind)) if isinstance(kind, str) else " or ".join(map(str, kind))
