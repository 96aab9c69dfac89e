"""Makes a case from a turn of the history: what was asked, the calls with their results, and the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lightagentd.assessment.transcript import cut
from lightagentd.config.stubs import MOST_CHARS, MOST_STUBS, fits
from lightagentd.errors import EventNotFound

_MOST_SENTENCE = 300
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DEFAULTS: tuple[Any, ...] = (None, "", [], {}, False)


def case_of(trace_id: str, events: Iterable[Mapping[str, Any]], note: str = "") -> str:
    """The text of a case in TOML. The calls that were made are those that must be, with their results as
    stubs; the first sentence of the answer, and the `note` of who rated it, are comments to go by.

    Raises EventNotFound for a turn without a prompt, or whose session was deleted.
    """
    found = [one for one in events if isinstance(one.get("data"), dict)]
    prompt = next((one["data"] for one in found if one["topic"] == "agent.prompt"), None)
    if prompt is None:
        raise EventNotFound(
            f"There is no prompt of the turn {trace_id[:60]!r}; a deleted session leaves none.",
            suggestion="The newest turns: lactl trace list",
        )
    messages = [one["data"] for one in found if one["topic"] == "agent.message"]
    intents = [one["data"] for one in found if one["topic"] == "agent.tool_dispatch"]
    intents = [one for one in intents if "tool" in one and "action" in one]
    answer = next((m["content"] for m in reversed(messages) if m["role"] == "assistant" and m["content"]), "")
    question, facts = _question(prompt)
    lines = [f"# From {trace_id}.", *_comment("Rated: ", note)]
    lines += ["[[case]]", f"name = {toml(trace_id)}", f"prompt = {toml(question)}"]
    if facts:
        lines += ["", "[case.facts]", f"given = {toml(facts)}"]
    lines += ["", "[case.answer]", *_comment("It said: ", _sentence(answer))]
    lines += ["# contains = [" + toml("what the answer has to say") + "]"]
    calls = [*_calls(messages, intents)][:MOST_STUBS]
    for tool, action, args, _ in calls:
        lines += ["", "[[case.calls.must]]", *_call(tool, action, args)]
    for tool, action, args, output in calls:
        lines += [
            "",
            "[[case.stub]]",
            *_call(tool, action, args),
            f"output = {toml(cut(output, MOST_CHARS - 100))}",
        ]
    return "\n".join(lines).encode("utf-8", "replace").decode() + "\n"


def toml(value: Any) -> str:
    """A value of JSON as one of TOML, on one line. What is null is left out of tables and lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        pairs = (f"{_key(str(name))} = {toml(one)}" for name, one in value.items() if one is not None)
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in value if one is not None) + "]"
    text = str(value).encode("utf-8", "replace").decode()
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml(name)


def _question(prompt: Mapping[str, Any]) -> tuple[str, str]:
    """The question of a stored prompt, and what was attached to it."""
    text, chars = str(prompt.get("text", "")), prompt.get("question_chars") or 0
    return (text[:chars].rstrip(), text[chars:].strip()) if chars else (text, "")


def _calls(
    messages: Sequence[Mapping[str, Any]], intents: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Tool, action, the arguments that the model gave, as they were checked, and the result of each call that
    ran, in order.
    """
    asked = {call["id"]: call for m in messages for call in m.get("tool_calls") or ()}
    left = list(intents)
    for message in messages:
        call = asked.get(message.get("tool_call_id"))
        if message["role"] != "tool" or call is None:
            continue
        try:
            args = json.loads(call["arguments"] or "{}")
        except ValueError:
            continue
        alike = [one for one in left if one.get("function") == call["name"]]
        own = next((one for one in alike if fits(args, one.get("args"))), alike[0] if alike else None)
        if own is None or not isinstance(args, dict):
            continue
        left.remove(own)
        checked = own.get("args") or {}
        kept = {name: checked.get(name, value) for name, value in args.items()}
        yield own["tool"], own["action"], kept, message["content"]


def _call(tool: str, action: str, args: dict[str, Any]) -> list[str]:
    said = [f"tool = {toml(tool)}", f"action = {toml(action)}"]
    return [*said, f"args = {toml(args)}"] if args not in _DEFAULTS else said


def _sentence(text: str) -> str:
    first = re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]
    return cut(first, _MOST_SENTENCE)


def _comment(before: str, text: str) -> list[str]:
    said = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split())
    return [f"# {before}{said}"] if said else []
