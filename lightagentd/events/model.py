"""The event: what the daemon records about everything that it and its agents do.

An event is stored as two lines of JSON, header and data:

    {"seq":7,"time":1763768400000000,"topic":"agent.message","type":"message",…,"data_sha256":"…","prev":"…"}
    {"role":"user","content":"check disk"}

`hash` is SHA-256 over the bytes of the first line, `data_sha256` that over the bytes of the second, and
`prev` is the hash of the event before. So the second line can be taken away (a deleted session) and
the chain still verifies. A header begins with `seq` and ends with `data_sha256` and `prev`; the layout is
fixed, and `caller` came with schema version 2.

What comes from outside is made storable: lone surrogates become U+FFFD and numbers that JSON does not have
become null; data that is nested deeper than MAX_DEPTH is refused, since not every reader could read it.

Who causes an event is carried by `context`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from lightagentd.events.context import EventContext, context, current_context, new_id, within
from lightagentd.redaction import Redactor

FROM_TOOL = "tool"
"""The source of an event that a tool emitted."""

GENESIS = "0" * 64
"""`prev` of the first event."""

_MESSAGE_IDS = uuid.UUID("6c1f6f3e-7f0a-4f43-9d5e-2a1b3a7d6a10")
_TOPIC = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
_TOPIC_MAX = 128

MAX_DEPTH = 200
"""How deep lists and objects in an event's data may be nested; readers recurse in their own stacks."""

_REPLACED = "\ufffd".encode()
_text = json.encoder.encode_basestring  # one string as JSON


def _encoder() -> Callable[[Any], str]:
    """A compact JSON encoder. `JSONEncoder.encode` rebuilds its machinery for each value, which takes as long
    as encoding a small event.
    """
    whole = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return whole.encode
    parts = make(None, whole.default, _text, None, ":", ",", False, False, False)
    return lambda value: "".join(parts(value, 0))


_to_json = _encoder()


def is_topic(text: str) -> bool:
    """Whether a text is a valid topic."""
    return len(text) <= _TOPIC_MAX and _TOPIC.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event to be stored, before it has a number."""

    topic: str
    type: str
    data: Mapping[str, Any]
    source: str = "daemon"
    """The part of the program that made it: daemon, agent, worker, tool."""
    context: EventContext = field(default_factory=current_context)
    time_us: int = field(default_factory=lambda: time.time_ns() // 1000)

    def __post_init__(self) -> None:
        if not is_topic(self.topic):
            raise ValueError(f"not a topic: {self.topic[:200]!r}")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A stored event. `data` is None when it was deleted; the header stays forever."""

    seq: int
    time_us: int
    topic: str
    type: str
    source: str
    agent: str
    session: str
    owner: int | None
    caller: int | None
    request_id: str
    trace_id: str
    correlation_id: str
    data_sha256: str
    prev: str
    data: dict[str, Any] | None
    hash: str
    size_bytes: ClassVar[int] = 0
    """Of an event that was just encoded: how long its record is. No part of the event."""

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON for people and programs: the header, then `data`, then `hash`."""
        return {_TIME.get(name, name): getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in fields(Event))
_TIME = {"time_us": "time"}
HEADER = tuple(_TIME.get(name, name) for name in _FIELDS if name not in ("data", "hash"))
"""The names in a stored header, in their order."""


def message_id(topic: str, event_type: str) -> str:
    """The MESSAGE_ID of an event type in the journal: 32 hexadecimal digits, the same on every machine."""
    group = "tool" if topic.startswith("tool.") and event_type == "invocation" else topic
    return uuid.uuid5(_MESSAGE_IDS, f"{group}/{event_type}").hex


def dump_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, one line. Lone surrogates (bytes that were not UTF-8) become U+FFFD, and NaN and
    the infinities null. Raises TypeError, ValueError or RecursionError for a value that JSON does not have.
    """
    try:
        text = _to_json(value)
    except ValueError:
        text = _to_json(_finite(value))
    return _in_utf8(text)


def _in_utf8(text: str) -> bytes:
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
    """The stored bytes of an event without its secrets, and the event in the form that readers see.

    Raises TypeError, ValueError or RecursionError for data that cannot be stored.
    """
    body: dict[str, Any] = dict(event.data)
    data = dump_json(body)
    if redactor.suspects(data):
        body = redactor.value(body)
        data = dump_json(body)
    if len(data) > MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(body)
    who, data_sha256 = event.context, hashlib.sha256(data).hexdigest()
    owner, caller = who.owner, who.caller
    correlation_id = redactor.text(who.correlation_id) if who.correlation_id else ""
    line = _in_utf8(  # as `dump_json` writes a header, in half the time
        f'{{"seq":{seq},"time":{event.time_us},"topic":"{event.topic}","type":{_text(event.type)}'
        f',"source":{_text(event.source)},"agent":{_text(who.agent)},"session":{_text(who.session)}'
        f',"owner":{"null" if owner is None else owner},"caller":{"null" if caller is None else caller}'
        f',"request_id":{_text(who.request_id)},"trace_id":{_text(who.trace_id)}'
        f',"correlation_id":{_text(correlation_id)},"data_sha256":"{data_sha256}","prev":"{prev}"}}'
    )
    stored = _event(
        {
            **who.__dict__,
            "seq": seq,
            "time_us": event.time_us,
            "topic": event.topic,
            "type": event.type,
            "source": event.source,
            "correlation_id": correlation_id,
            "data_sha256": data_sha256,
            "prev": prev,
            "data": body if data.isascii() or _REPLACED not in data else json.loads(data),
            "hash": hashlib.sha256(line).hexdigest(),
            "size_bytes": len(line) + len(data),
        }
    )
    if not line.isascii() and _REPLACED in line:
        header = json.loads(line)
        del header["time"]
        stored.__dict__.update(header)
    return line + b"\n" + data, stored


def _event(values: dict[str, Any]) -> Event:
    """Does the work of a frozen dataclass's constructor, in a quarter of the time."""
    event = Event.__new__(Event)
    event.__dict__.update(values)
    return event


def decode(record: bytes) -> Event:
    """The event in stored bytes. Raises ValueError when they are not an event."""
    line, _, data = bytes(record).partition(b"\n")
    try:
        header = _parse(line)
        header.setdefault("caller", None)  # events of schema version 1 have none
        if header.keys() != _HEADER:
            wrong = ", ".join(sorted(header.keys() ^ _HEADER))[:200]
            raise ValueError(f"not a stored event: its header lacks, or has beside: {wrong}")
        time_us = header.pop("time")
        body = _parse(data) if data else None
    except (TypeError, AttributeError, RecursionError) as err:
        raise ValueError(f"not a stored event: {err}") from err
    if type(time_us) is not int or not (body is None or type(body) is dict):
        raise ValueError("not a stored event: its time is no number, or its data no object")
    for name, value in header.items():
        if type(value) not in _TYPES.get(name, _TEXT):
            raise ValueError(f"not a stored event: {name} is {type(value).__name__}")
    header |= {"time_us": time_us, "data": body, "hash": hashlib.sha256(line).hexdigest()}
    return _event(header)


def _parse(text: bytes) -> Any:
    """`json.loads` without its handling of other encodings and spaces."""
    decoded = text.decode()
    try:
        value, end = _scan_json(decoded, 0)
    except StopIteration as err:
        raise ValueError(f"not JSON at character {err.value}") from err
    if end != len(decoded):
        raise ValueError(f"more than one value of JSON, from character {end} on")
    return value


_scan_json: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
_TEXT = (str,)
_TYPES: dict[str, tuple[type, ...]] = {"seq": (int,), "owner": (int, type(None)), "caller": (int, type(None))}
_HEADER = frozenset(HEADER)


__all__ = [
    "FROM_TOOL",
    "GENESIS",
    "HEADER",
    "MAX_DEPTH",
    "Event",
    "EventContext",
    "NewEvent",
    "context",
    "current_context",
    "decode",
    "dump_json",
    "encode",
    "is_topic",
    "message_id",
    "new_id",
    "within",
]
