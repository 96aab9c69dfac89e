"""Reads an export to import as a session, whole or with ImportInvalid, which names the line and the cause.

There are two forms. The first is the JSON lines that `transcript` writes, alone or as the block at the end of
Markdown. Every key must be known, and the first line must give the number of messages, so that a truncated
file is noticed. The second is Markdown of
other programs with one fenced block of JSON. The block is a list of messages in the shape of chat
completions, or an object with such a list as `history` or `messages` and perhaps a `session_id`. In this form
system messages and unknown keys are ignored.

A conversation that no endpoint would accept is not imported: a result must follow its call. A call without a
result, as in an export made during a turn, gets a result that says that it was not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lightagentd.agents.sessions.transcript import BLOCK, FORMAT, RECORD_FACTS, VERSION
from lightagentd.errors import ImportInvalid
from lightagentd.llm.protocol import Message, Reasoning, ToolCall
from lightagentd.text.reason import json_fault
from lightagentd.text.strict_json import MAX_VALUES, BadJson, counting

MAX_MESSAGES = 10_000
"""They are stored in one transaction, which others wait for."""
NO_RESULT = (
    "Error (cancelled): This call had no result when the conversation was copied. It was not run here."
)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*(\w*)")
_LISTS = ("history", "messages")
"""What other programs call the list of messages."""
_FACTS = frozenset({"format", "version", *RECORD_FACTS, "exported_us", "messages"})
_KEYS = frozenset(
    {"seq", "time_us", "role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "cut_off"}
)
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, kw_only=True)
class Said:
    """One imported message. `time_us` is its time, 0 when unknown."""

    message: Message
    time_us: int = 0


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported conversation. `source` is the exported session, if the export names it."""

    title: str
    source: str
    said: tuple[Said, ...]


def read(text: str, *, max_bytes: int) -> Imported:
    """Read an export. Raises ImportInvalid. A large one takes a while, so run it in a thread."""
    before, own = _own_block(text)
    text = own or text
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as err:
        raise _invalid(_line_at(text, err.start), "it is not UTF-8") from err
    if size_bytes > max_bytes:
        raise ImportInvalid(
            f"The import is larger than {max_bytes} bytes.",
            field="text",
            suggestion="Import a part of the conversation, or raise limits.max_prompt_bytes.",
        )
    if "\0" in text:
        raise _invalid(_line_at(text, text.index("\0")), "there is a NUL byte in it")
    text = text.removeprefix("\ufeff")
    return _json_lines(text, before) if own or text.lstrip().startswith("{") else _markdown(text)


# JSON lines


def _own_block(text: str) -> tuple[int, str]:
    """The JSON lines with which our own Markdown ends, empty where it does not, and how many lines stand
    before them.
    """
    begin, end = BLOCK
    body, newline, last = text.rstrip().rpartition("\n")
    head, found, block = f"{body}{newline}".rpartition(f"\n{begin}\n")
    return (head.count("\n") + 2, block) if found and last == end and block.startswith("{") else (0, "")


def _json_lines(text: str, before: int) -> Imported:
    lines = ((before + number, line) for number, line in _lines(text) if line.strip())
    number, first = next(lines)
    facts = _object(number, first)
    _check_facts(number, facts)
    conversation = _Conversation()
    count = 0
    for number, line in lines:
        count += 1
        if count > MAX_MESSAGES:
            raise _invalid(number, f"there are more than {MAX_MESSAGES} messages")
        value = _object(number, line)
        if unknown := value.keys() - _KEYS:
            raise _invalid(number, f"the key {min(unknown)[:60]!r} is not known")
        conversation.add(f"line {number}", value, time_us=_natural(number, value, "time_us"))
    if facts["messages"] != count:
        raise _invalid(
            number, f"it ends here after {count} messages, and its first line promises {facts['messages']}"
        )
    return Imported(title=facts.get("title", ""), source=facts.get("id", ""), said=conversation.whole())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, one at a time, because there may be millions."""
    number = start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        number += 1
        yield number, text[start:end]
        start = end + 1


def _check_facts(number: int, facts: dict[str, Any]) -> None:
    """Raises ImportInvalid."""
    if facts.get("format") != FORMAT:
        raise _invalid(number, f"its format is not {FORMAT!r}")
    if facts.get("version") != VERSION or isinstance(facts["version"], bool):
        raise _invalid(
            number,
            f"its version is {str(facts.get('version'))[:20]}, and this program knows version {VERSION}",
        )
    if unknown := facts.keys() - _FACTS:
        raise _invalid(number, f"the key {min(unknown)[:60]!r} is not known")
    for key in ("id", "title"):
        if not isinstance(facts.get(key, ""), str):
            raise _invalid(number, f"{key} is no text")
    if "messages" not in facts:
        raise _invalid(number, "it does not say how many messages follow")
    _natural(number, facts, "messages")


def _object(number: int, line: str) -> dict[str, Any]:
    _check_values(number, line)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise _invalid(number, f"it is not JSON ({_reason(err)})") from err
    if not isinstance(value, dict):
        raise _invalid(number, "it is not a JSON object")
    return value


def _check_values(number: int, text: str) -> None:
    """Raises ImportInvalid for a text whose decoding would block everything else."""
    try:
        for _ in counting(text.encode()):
            pass
    except BadJson as err:
        raise _invalid(number, f"the JSON that begins here holds more than {MAX_VALUES} values") from err


def _natural(number: int, value: dict[str, Any], key: str) -> int:
    found = value.get(key, 0)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 62:
        raise _invalid(number, f"{key} is no number of this kind")
    return found


# Markdown of others


def _markdown(text: str) -> Imported:
    found: tuple[int, list[Any], str] | None = None
    broken: ImportInvalid | None = None
    for number, info, block in _blocks(text):
        _check_values(number, block)
        try:
            value = json.loads(block)
        except (ValueError, RecursionError) as err:
            at = number + getattr(err, "lineno", 1) - 1
            if info:
                broken = broken or _invalid(at, f"the block is not JSON ({_reason(err)})")
            continue
        messages, source = _listed(value)
        if messages is None:
            continue
        try:
            _check_messages(number, messages)
        except ImportInvalid as err:
            broken = broken or err
            continue
        if found is not None:
            raise _invalid(number, "this is a second block of JSON with messages, and only one is taken")
        found = (number, messages, source)
    if found is None:
        raise broken or _invalid(1, "there is neither a line of JSON nor a block of JSON with messages")
    number, messages, source = found
    if len(messages) > MAX_MESSAGES:
        raise _invalid(number, f"there are more than {MAX_MESSAGES} messages")
    conversation = _Conversation()
    for position, value in enumerate(messages, 1):
        if value.get("role") not in _SYSTEM:
            conversation.add(f"message {position} of the block in line {number}", value)
    title = next((line[2:].strip() for _, line in _lines(text) if line.startswith("# ")), "")
    return Imported(title=title, source=source, said=conversation.whole())


def _listed(value: Any) -> tuple[list[Any] | None, str]:
    """The list of messages in a block, if it has one, and the session id that it names."""
    source = ""
    if isinstance(value, dict):
        if isinstance(value.get("session_id"), str):
            source = value["session_id"]
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    elif isinstance(value, list) and not any(isinstance(one, dict) and "role" in one for one in value):
        value = None  # a list of something else
    return (value if isinstance(value, list) else None), source


def _check_messages(number: int, messages: list[Any]) -> None:
    """Raises ImportInvalid."""
    if not messages:
        raise _invalid(number, "the conversation in the block that begins here has no messages")
    for position, one in enumerate(messages, 1):
        if not isinstance(one, dict) or "role" not in one:
            raise _wrong(
                f"message {position} of the block in line {number}", "it is not an object with a role"
            )


def _blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """The fenced blocks that may be JSON: the number of their first line, `json` or nothing, and the text.

    A block ends with a fence as it began or a longer one; one that does not end goes to the end of the text
    (CommonMark).
    """
    fence, info, begun, block = "", "", 0, list[str]()
    for number, line in _lines(text):
        if not fence:
            if found := _FENCE.match(line):
                fence, info, begun, block = found[1], found[2].lower(), number + 1, []
        elif (end := line.strip()).startswith(fence) and not end.strip(fence[0]):
            if info in ("", "json"):
                yield begun, info, "\n".join(block)
            fence = ""
        else:
            block.append(line)
    if fence and info in ("", "json"):
        yield begun, info, "\n".join(block)


# Messages


class _Conversation:
    """The messages so far, and their calls that still have no result."""

    def __init__(self) -> None:
        self._said: list[Said] = []
        self._open: dict[str, ToolCall] = {}
        self._where = ""
        """Where the newest message stands."""

    def add(self, where: str, value: dict[str, Any], *, time_us: int = 0) -> None:
        """Raises ImportInvalid."""
        role = value.get("role")
        if role not in ("user", "assistant", "tool"):
            raise _wrong(where, f"the role {str(role)[:20]!r} is not known")
        calls = _calls(where, value)
        if role != "assistant" and calls:
            raise _wrong(where, "only the role 'assistant' makes calls")
        if role == "tool":
            message = self._result(where, value)
        else:
            if value.get("tool_call_id"):
                raise _wrong(where, "only the role 'tool' answers a call")
            self._close()
            told = _of_assistant(where, value) if role == "assistant" else {}
            message = Message(role=role, content=_content(where, value), tool_calls=calls, **told)
            self._open = {call.id: call for call in calls}
        self._said.append(Said(message=message, time_us=time_us))
        self._where = where

    def whole(self) -> tuple[Said, ...]:
        self._close()
        return tuple(self._said)

    def _result(self, where: str, value: dict[str, Any]) -> Message:
        call_id = value.get("tool_call_id")
        call = self._open.pop(call_id, None) if isinstance(call_id, str) else None
        if call is None:
            which = "it" if call_id is None else f"the result of {str(call_id)[:60]!r}"
            raise _wrong(where, f"{which} has no call before it")
        return Message(role="tool", content=_content(where, value), tool_call_id=call.id, name=call.name)

    def _close(self) -> None:
        if len(self._said) + len(self._open) > MAX_MESSAGES:
            raise _wrong(
                self._where, f"there are more than {MAX_MESSAGES} messages, with the results of its calls"
            )
        self._said += [Said(message=message) for message in not_run(list(self._open.values()))]
        self._open = {}


def not_run(calls: Sequence[ToolCall]) -> list[Message]:
    """A result for each call of a copied conversation that has none."""
    return [Message(role="tool", content=NO_RESULT, tool_call_id=call.id, name=call.name) for call in calls]


def _content(where: str, value: dict[str, Any]) -> str:
    """The text of a message; of one with parts, the texts and the kinds of the other parts."""
    content = value.get("content")
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict | str) for part in content):
        content = "\n".join(_part(part) for part in content)
    if not isinstance(content, str):
        raise _wrong(where, "its content is no text")
    _check_text(where, content)
    return content


def _part(part: dict[str, Any] | str) -> str:
    """The text of one part of a message's content, or its kind."""
    if isinstance(part, str):
        return part
    return part["text"] if isinstance(part.get("text"), str) else f"[{str(part.get('type'))[:40]} left out]"


def _calls(where: str, value: dict[str, Any]) -> tuple[ToolCall, ...]:
    """The calls of a message, in our shape or in that of chat completions."""
    listed = value.get("tool_calls") or []
    if not isinstance(listed, list):
        raise _wrong(where, "tool_calls is no list")
    found: list[ToolCall] = []
    for call in listed:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _wrong(where, "a call is no object")
        call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments", "{}")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
            raise _wrong(where, "a call needs id, name and arguments, each a text")
        if not call_id or not name:
            raise _wrong(where, "a call has no id or no name")
        for text in (call_id, name, arguments):
            _check_text(where, text)
        found.append(ToolCall(id=call_id, name=name, arguments=arguments))
    if len({call.id for call in found}) < len(found):
        raise _wrong(where, "two of its calls have one id")
    return tuple(found)


def _of_assistant(where: str, value: dict[str, Any]) -> dict[str, Any]:
    """The reasoning, and why the answer broke off. What other programs have under these names is left out."""
    found, cut_off = value.get("reasoning"), value.get("cut_off")
    blocks = [block for block in found if isinstance(block, dict)] if isinstance(found, list) else []
    names = {each.name for each in fields(Reasoning)}
    kept = tuple(
        Reasoning(**block)
        for block in blocks
        if isinstance(block.get("model"), str)
        and block.keys() <= names
        and all(isinstance(text, str) for text in block.values())
    )
    cut_off = cut_off if isinstance(cut_off, str) else ""
    for text in (cut_off, *(text for block in kept for text in block.to_dict().values())):
        _check_text(where, text)
    return {"reasoning": kept, "cut_off": cut_off}


def _check_text(where: str, text: str) -> None:
    r"""Raises ImportInvalid for a NUL or a lone surrogate, which only decoding shows."""
    if "\0" in text:
        raise _wrong(where, "there is a NUL byte in it")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise _wrong(where, "it is not UTF-8") from err


# Errors


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _reason(err: Exception) -> str:
    return (
        json_fault(err)
        if isinstance(err, json.JSONDecodeError)
        else "it is nested too deep, or a number too long"
    )


def _invalid(number: int, why: str) -> ImportInvalid:
    return _wrong(f"line {number}", why)


def _wrong(where: str, why: str) -> ImportInvalid:
    return ImportInvalid(
        f"The import cannot be read: {where}: {why}.",
        field="text",
        suggestion="Nothing was imported. Export it again: lactl sessions export --format jsonl SESSION",
    )
