"""Exports a session as text: Markdown to read, with the same as JSON lines at its end, or these alone.

The first of the JSON lines names the format and has the facts of the session, and each line after it is one
message of the conversation, in the words of `llm.protocol`:

    {"format":"lightagent-session","version":1,"id":"ses_…","agent":"ops","title":"…","messages":2,…}
    {"seq":4,"time_us":1763768400000000,"role":"user","content":"check disk"}
    {"seq":9,"time_us":1763768401000000,"role":"assistant","content":"/ is half full."}

`imports` reads both forms; of Markdown it takes the block with which the text ends. What was said cannot
stand in for that block: inside it, no line of what was said begins a line. Nothing here touches the history
or the event loop, so it may run in a thread.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lightagentd.events.model import Event
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.quoted import quoted

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import SessionRecord

FORMAT, VERSION = "lightagent-session", 1
RECORD_FACTS = (
    *("id", "agent", "title", "created_us", "updated_us", "turns"),
    *("tainted", "tainted_by", "forked_from"),
)
"""The fields of the session's record that the first of the JSON lines has."""
BLOCK = ("```lightagent-session", "```")
"""The lines before and after the JSON lines in Markdown; each of these begins with a brace."""
MARKDOWN, JSON_LINES = "markdown", "jsonl"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ROLES = {"user": "User", "assistant": "Agent", "tool": "Result"}


def said_us(event: Event) -> int:
    """When a message was said; a copy keeps the time of the original."""
    said = (event.data or {}).get("said_us")
    return said if isinstance(said, int) else event.time_us


def to_json_lines(record: SessionRecord, messages: Sequence[Event]) -> str:
    """The whole session, one JSON object a line."""
    lines: list[dict[str, Any]] = [
        {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(record, name) for name in RECORD_FACTS},
            "exported_us": time.time_ns() // 1000,
            "messages": len(messages),
        }
    ]
    for event in messages:
        message = Message.from_dict(event.data or {})
        lines.append({"seq": event.seq, "time_us": said_us(event), **message.to_dict()})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def to_markdown(record: SessionRecord, messages: Sequence[Event]) -> str:
    """The session for people: facts in a front block, then each message under a heading of its own."""
    facts: dict[str, Any] = {
        "session": record.id,
        "agent": record.agent,
        "title": record.title,
        "created": _when(record.created_us),
        "updated": _when(record.updated_us),
        "messages": len(messages),
        "tainted": record.tainted,
    }
    if record.tainted:
        facts["tainted_by"] = record.tainted_by
    if record.forked_from:
        facts["forked_from"] = record.forked_from
    front = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items()]
    parts = ["\n".join(["---", *front, "---"]), f"# {record.title or record.id}"]
    for event in messages:
        parts += _message(Message.from_dict(event.data or {}), said_us(event))
    begin, end = BLOCK
    parts += ["For lactl sessions import:", f"{begin}\n{to_json_lines(record, messages)}{end}"]
    return "\n\n".join(parts) + "\n"


def _message(message: Message, time_us: int) -> list[str]:
    """The text of results is fenced, since it is data and could look like the next message."""
    who = f"{_ROLES[message.role]} of {message.name}" if message.name else _ROLES[message.role]
    parts = [f"## {who} ({_when(time_us)})"]
    if message.role == "tool":
        return [*parts, quoted("", message.content)]
    if message.thoughts:
        parts.append(f"Reasoning:\n\n{quoted('', message.thoughts)}")
    if message.content:
        parts.append(_contained(message.content))
    if message.cut_off:
        parts.append(f"[The answer ended here. {message.cut_off}]")
    return [*parts, *(_call(call) for call in message.tool_calls)]


def _call(call: ToolCall) -> str:
    return f"Call of {call.name}:\n\n{quoted('json', call.arguments)}"


def _contained(text: str) -> str:
    """The text without lines that look like a message heading, and without an open fence."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip(" \t`~"):
                fence = ""
        elif found:
            fence = found[1]
        elif line.startswith("## "):
            line = f"\\{line}"
        lines.append(line)
    return "\n".join([*lines, fence] if fence else lines)


def _when(time_us: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_us / 1e6))


WRITERS: dict[str, Callable[[SessionRecord, Sequence[Event]], str]] = {
    MARKDOWN: to_markdown,
    JSON_LINES: to_json_lines,
}
"""The formats of an export."""
