"""Reads the calls that models without native ones write into their text, each family in its own form.

Read are objects with a function's name and arguments, one or several, in a code fence or a list, or behind
one of `MARKS`: `{"tool", "action", "args"}`, as the system prompt asks for (`text_calls`), `{"name",
"arguments"}` and `{"name", "parameters"}` of the templates of Qwen, Hermes and Llama, `{"function": {...}}`
of the chat completions, with arguments as an object or as the text of one. Only the name of a function that
was offered makes a call of a text: an answer may show JSON to a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from lightagentd.events.model import new_id
from lightagentd.llm.protocol import ToolCall

MARKS = (
    "<tool_call>",
    "<tool_calls>",
    "<|tool_call|>",
    "<function_call>",
    "<functioncall>",
    "<function=",
    "<|python_tag|>",
    "[TOOL_CALLS]",
)
"""What models write before a call. Servers with a parser for it take it away."""
_NAMES = ("name", "function", "tool", "tool_name", "function_name", "action")
_ARGUMENTS = ("args", "arguments", "parameters", "input", "action_input")
_BESIDE = ("id", "type", "tool_call_id", "call_id")
_WRAPS = ("tool_calls", "tool_call", "function_call")
KEYS = (*_NAMES, *_ARGUMENTS, *_BESIDE, *_WRAPS)
"""The keys of an object that can be a call."""
_BETWEEN = re.compile(
    r"(?:[\s,;]|```(?:json|tool_call)?|</?\|?(?:tool_calls?|function_?call)\|?>|</function>"
    r"|<\|(?:python_tag|eom_id|eot_id|im_end)\|>|</s>)*"
)
_NAMED = re.compile(
    r"(?:<function=([\w.-]+)>|\[TOOL_CALLS\]\s*(?:([\w.-]+)(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?)?)\s*"
)
"""A mark that has the name of the function itself, with its arguments behind it."""
_HEAD_CHARS = 300
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a text is: calls, or an attempt at one and why it cannot be read, or neither."""

    calls: tuple[ToolCall, ...] = ()
    attempt: str = ""


@dataclass(frozen=True)
class _Named:
    """A call as it was written, before anybody looked whether there is such a function."""

    names: tuple[str, ...]
    """What it may be called; the last one as it would be said to the model."""
    arguments: str


def read_calls(text: str, offered: Set[str], *, alone: bool) -> Written:
    """What is written in a text that begins with a mark or with JSON. `alone`: nothing stands before it.

    Text behind a marked call is dropped: models go on with a result that they make up.
    """
    marked = is_marked(text)
    found: list[_Named] = []
    broken = odd = False
    for value in _values(text):
        more = _named(value)
        broken, odd = not more, value is not None and not _looks_like_one(value)
        if broken:
            break
        found += more
    calls = tuple(_call(one, offered) for one in found)
    known = any(call.name in offered for call in calls)
    if known and (marked or not broken):
        return Written(calls=calls)
    if calls and not known and (marked or (alone and not broken)):
        return Written(attempt=f"there is no function {calls[0].name[:80]!r}")
    if marked or known or (broken and not odd and _names_one(text, offered)):
        return Written(attempt="it is not valid JSON with the name of a function and its arguments")
    return Written()


def is_marked(text: str) -> bool:
    """Whether a text begins with a mark of a call."""
    return text.lstrip().startswith(MARKS)


def _values(text: str) -> Iterator[Any]:
    """The JSON values of a text one after the other; None for what is none, which is the last."""
    at = 0
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between is not None else at
        if at >= len(text):
            return
        name = ""
        if (named := _NAMED.match(text, at)) is not None:
            name, at = named[1] or named[2] or "", named.end()
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield {"name": name, "arguments": value} if name else value


def _named(value: Any) -> list[_Named]:
    """The calls in one JSON value; empty if it is something else."""
    if isinstance(value, list):
        found = [_one(one) for one in value]
        return [one for one in found if one is not None] if all(found) else []
    if isinstance(value, dict) and len(value) == 1 and (wrap := next(iter(value))) in _WRAPS:
        return _named(value[wrap])
    one = _one(value)
    return [] if one is None else [one]


def _one(value: Any) -> _Named | None:
    if not isinstance(value, dict) or not value or set(value) - {*_NAMES, *_ARGUMENTS, *_BESIDE}:
        return None
    inner = value.get("function")
    if isinstance(inner, dict):
        return _one(inner) if not set(value) - {"function", *_BESIDE} else None
    given = [value[key] for key in _ARGUMENTS if key in value]
    names = [value[key] for key in _NAMES if key in value]
    if len(given) > 1 or not 1 <= len(names) <= 2 or not all(isinstance(name, str) for name in names):
        return None
    if not given and not {"tool", "action"} <= set(value):
        return None
    arguments = _arguments(given[0] if given else {})
    if arguments is None:
        return None
    tool, action = (value.get("tool"), value.get("action")) if len(names) == 2 else (names[0], "")
    if tool is None or action is None:
        return None
    names = [f"{tool}_{action}", action, tool] if action else [tool]
    return _Named(tuple(names), arguments)


def _arguments(given: Any) -> str | None:
    """Arguments as JSON; a text is that of an object."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return None
    if given is None:
        given = {}
    try:
        return json.dumps(given) if isinstance(given, dict) else None
    except RecursionError:
        return None


def _call(one: _Named, offered: Set[str]) -> ToolCall:
    for name in one.names:
        bare = name.removeprefix("functions.")
        for tried in (name, bare, bare.replace(".", "_")):
            if tried in offered:
                return ToolCall(id=new_id("call"), name=tried, arguments=one.arguments)
    return ToolCall(id=new_id("call"), name=one.names[0], arguments=one.arguments)


def _looks_like_one(value: Any) -> bool:
    return isinstance(value, dict) and not set(value) - set(KEYS)


def _names_one(text: str, offered: Set[str]) -> bool:
    """Whether the beginning of a text that is no call names a function that was offered, with arguments."""
    head = text[:_HEAD_CHARS]
    said = dict(re.findall(r'"(\w+)"\s*:\s*"([\w.-]*)"', head))
    names = [said[key] for key in _NAMES if key in said]
    names.append(f"{said.get('tool', '')}_{said.get('action', '')}")
    return any(name in offered for name in names) and any(f'"{key}"' in head for key in _ARGUMENTS)
