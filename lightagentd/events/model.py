"""The event: what the daemon records about everything that it and its agents do.

An event is stored as two lines of JSON, header and data:

    {"seq":7,"time":1763768400000000,"topic":"agent.message","type":"message",…,"data_sha256":"…","prev":"…"}
    {"role":"user","content":"check disk"}

`hash` is SHA-256 over the bytes of the first line, `data_sha256` that over the bytes of the second, and
`prev` is the hash of the event before. So the second line can be taken away (a deleted session) and
the chain still verifies. The layout is fixed from schema version 1 on (DESIGN section 7).

What comes from outside is made storable: lone surrogates become U+FFFD and numbers that JSON does not have
become null; data that is nested deeper than MAX_DEPTH is refused, since not every reader could read it.

Who causes an event is carried by the context variable `context`, which every task inherits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from lightagentd.events.redaction import Redactor

GENESIS = "0" * 64
"""`prev` of the first event."""

_TOPIC = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
_TOPIC_MAX = 128

MAX_DEPTH = 200
"""How deep lists and objects in an event's data may be nested; readers recurse in their own stacks."""

_REPLACED = "\ufffd".encode()
_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, kw_only=True)
class EventContext:
    """On whose behalf something happens. Empty strings and None mean that there is no such thing."""

    agent: str = ""
    session: str = ""
    owner: int | None = None
    """The uid that owns the session."""
    request_id: str = ""
    trace_id: str = ""
    correlation_id: str = ""


context: ContextVar[EventContext] = ContextVar("lightagent_event_context")
context.set(EventContext())


def current_context() -> EventContext:
    """The context of the running task; an empty one in a thread or task that nobody gave one."""
    return context.get(EventContext())


@contextlib.contextmanager
def within(**changes: Any) -> Iterator[EventContext]:
    """Run the block with some fields of the context changed."""
    changed = replace(current_context(), **changes)
    token = context.set(changed)
    try:
        yield changed
    finally:
        context.reset(token)


_TOKENS_AT_ONCE = 64
_tokens: deque[str] = deque()
"""Random digits that wait to be used: asking the kernel for each id costs a fifth of a small event."""


def new_id(prefix: str) -> str:
    """A fresh id: the prefix, an underscore and 16 random hexadecimal digits."""
    try:
        token = _tokens.pop()
    except IndexError:
        fresh = secrets.token_hex(8 * _TOKENS_AT_ONCE)
        _tokens.extend(fresh[start : start + 16] for start in range(0, len(fresh), 16))
        token = _tokens.pop()
    return f"{prefix}_{token}"


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event on its way into the history, before it has a number."""

    topic: str
    type: str
    data: Mapping[str, Any]
    source: str = "daemon"
    """The part of the program that made it: daemon, agent, worker, tool."""
    context: EventContext = field(default_factory=current_context)
    time_us: int = field(default_factory=lambda: time.time_ns() // 1000)

    def __post_init__(self) -> None:
        if len(self.topic) > _TOPIC_MAX or not _TOPIC.fullmatch(self.topic):
            raise ValueError(f"not a topic: {self.topic[:200]!r}")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A stored event. `data` is None when it was deleted; the header stays for ever."""

    seq: int
    time_us: int
    topic: str
    type: str
    source: str
    agent: str
    session: str
    owner: int | None
    request_id: str
    trace_id: str
    correlation_id: str
    data_sha256: str
    prev: str
    data: dict[str, Any] | None
    hash: str

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON for people and programs: the header, then `data`, then `hash`."""
        return {
            "seq": self.seq,
            "time": self.time_us,
            "topic": self.topic,
            "type": self.type,
            "source": self.source,
            "agent": self.agent,
            "session": self.session,
            "owner": self.owner,
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "correlation_id": self.correlation_id,
            "data_sha256": self.data_sha256,
            "prev": self.prev,
            "data": self.data,
            "hash": self.hash,
        }


def dump_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, one line. Lone surrogates (bytes that were not UTF-8) become U+FFFD, and NaN and
    the infinities null. Raises TypeError, ValueError or RecursionError for what is not JSON.
    """
    try:
        text = _to_json(value)
    except ValueError:
        text = _to_json(_finite(value))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _check_depth(value: Any, room: int = MAX_DEPTH) -> None:
    if isinstance(value, dict | list | tuple):
        if not room:
            raise ValueError(f"data is nested deeper than {MAX_DEPTH} levels")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, room - 1)


def encode(event: NewEvent, seq: int, prev: str, redactor: Redactor) -> tuple[bytes, Event]:
    """The stored bytes of an event without its secrets, and the event as a reader will see it.

    Raises TypeError, ValueError or RecursionError for data that cannot be stored.
    """
    body: dict[str, Any] = dict(event.data)
    data = dump_json(body)
    if redactor.suspects(data):
        body = redactor.value(body)
        data = dump_json(body)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(body)
    who = event.context
    header: dict[str, Any] = {
        "seq": seq,
        "time": event.time_us,
        "topic": event.topic,
        "type": event.type,
        "source": event.source,
        "agent": who.agent,
        "session": who.session,
        "owner": who.owner,
        "request_id": who.request_id,
        "trace_id": who.trace_id,
        "correlation_id": redactor.text(who.correlation_id) if who.correlation_id else "",
        "data_sha256": hashlib.sha256(data).hexdigest(),
        "prev": prev,
    }
    line = dump_json(header)
    if _REPLACED in line:
        header = json.loads(line)
    if _REPLACED in data:
        body = json.loads(data)
    del header["time"]
    stored = Event(time_us=event.time_us, data=body, hash=hashlib.sha256(line).hexdigest(), **header)
    return line + b"\n" + data, stored


def decode(record: bytes) -> Event:
    """The event in stored bytes. Raises ValueError when they are not an event."""
    line, _, data = bytes(record).partition(b"\n")
    try:
        header = json.loads(line)
        time_us = header.pop("time")
        body = json.loads(data) if data else None
        return Event(time_us=time_us, data=body, hash=hashlib.sha256(line).hexdigest(), **header)
    except (TypeError, KeyError, AttributeError, RecursionError) as err:
        raise ValueError(f"not a stored event: {err}") from err
