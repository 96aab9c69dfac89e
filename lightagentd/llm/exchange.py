"""The file format of one exchange with a model: request, answer and times, without secrets.

A file is one JSON object: `began` (UTC) and `duration_ms`; on whose behalf (`agent`, `session`, `request_id`
and `trace_id`); `model`; `request` with `system`, `messages` and `functions`; `parts`, each with `at_ms`
since the beginning; `usage`, the last one reported; `outcome`, which is `finished`, `failed` (then with
`error`) or `left` (the listener left: a cancelled turn). Headers and keys are not part of it: it is written
at the level of `llm.protocol`.

Deltas are joined before the search for secrets, so that a split secret is found too. Those of 50 ms become
one part, and all of them come before the whole calls. `Recorder` writes these files, `ReplayClient` reads
them.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from lightagentd.errors import LightagentError, ModelError, table
from lightagentd.events.context import EventContext
from lightagentd.llm.protocol import (
    Finish,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)
from lightagentd.redaction import Redactor, Stream

VERSION = 1
_TOGETHER_MS = 50
"""Deltas that came within so much time are one part of the file."""
Outcome = Literal["finished", "failed", "left"]
_Delta = TextDelta | ReasoningDelta


@dataclass(kw_only=True)
class Exchange:
    """A call in progress. `parts` have the time in ms since it began."""

    model: str
    whose: EventContext
    request: Request
    began_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    parts: list[tuple[int, Part]] = field(default_factory=list)
    usage: Usage | None = None
    outcome: Outcome = "left"
    error: LightagentError | None = None
    duration_ms: int = 0
    _began: float = field(default_factory=time.monotonic)

    def take(self, part: Part) -> None:
        self.parts.append((self._ms(), part))

    def end(self) -> None:
        self.duration_ms = self._ms()

    def _ms(self) -> int:
        return round((time.monotonic() - self._began) * 1000)

    @property
    def began(self) -> str:
        """When it began, in a sortable form that a file name can have."""
        at = datetime.datetime.fromtimestamp(self.began_us / 1_000_000, datetime.UTC)
        return at.strftime("%Y%m%dT%H%M%S.%fZ")

    def to_dict(self, redactor: Redactor) -> dict[str, Any]:
        """The content of the file, without secrets. Slow for long texts: not for the event loop."""
        at = datetime.datetime.fromtimestamp(self.began_us / 1_000_000, datetime.UTC)
        whole = {
            "version": VERSION,
            "began": at.isoformat().replace("+00:00", "Z"),
            "duration_ms": self.duration_ms,
            "agent": self.whose.agent,
            "session": self.whose.session,
            "request_id": self.whose.request_id,
            "trace_id": self.whose.trace_id,
            "model": self.model,
            "request": {
                "system": self.request.system,
                "messages": [message.to_dict() for message in self.request.messages],
                "functions": [vars(function) for function in self.request.functions],
            },
            "usage": _usage_to_dict(self.usage),
            "outcome": self.outcome,
            "error": None if self.error is None else _error_to_dict(self.error),
        }
        parts = [redactor.value(part) for part in _joined(_without_cut_secrets(self.parts, redactor))]
        return {**redactor.value(whole), "parts": parts}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """An exchange from a file."""

    model: str
    began: str
    messages: tuple[Message, ...]
    parts: tuple[Part, ...]
    usage: Usage | None
    outcome: Outcome
    error: ModelError | None

    @staticmethod
    def read(text: str | bytes) -> Recorded:
        """Raises ValueError for another kind of file, or a later version."""
        try:
            found = json.loads(text)
            if found["version"] != VERSION:
                raise ValueError(f"it has version {found['version']!r}, and only {VERSION} can be read")
            if found["outcome"] not in ("finished", "failed", "left"):
                raise ValueError(f"its outcome is {found['outcome']!r}")
            return Recorded(
                model=str(found["model"]),
                began=str(found["began"]),
                messages=tuple(Message.from_dict(message) for message in found["request"]["messages"]),
                parts=tuple(_part_from_dict(part) for part in found["parts"]),
                usage=_usage_from_dict(found["usage"]),
                outcome=found["outcome"],
                error=None if found["error"] is None else _error_from_dict(found["error"]),
            )
        except (LookupError, TypeError, AttributeError, RecursionError) as err:
            raise ValueError(f"it is no recorded exchange ({type(err).__name__}: {err})") from err


def _without_cut_secrets(parts: list[tuple[int, Part]], redactor: Redactor) -> Iterator[tuple[int, Part]]:
    """The parts, with deltas that are safe to write: the possible beginning of a secret waits for the next
    delta, or for the end. Whole parts come after them, since a call may be within a secret too.
    """
    streams: dict[type[_Delta], Stream] = {
        ReasoningDelta: Stream(redactor),
        TextDelta: Stream(redactor),
    }
    at = 0
    for at, part in parts:
        if isinstance(part, TextDelta | ReasoningDelta) and (safe := streams[type(part)].feed(part.text)):
            yield at, type(part)(safe)
    for kind, stream in streams.items():
        if held := stream.finish():
            yield at, kind(held)
    for at, part in parts:
        if not isinstance(part, TextDelta | ReasoningDelta):
            yield at, part


def _joined(parts: Iterator[tuple[int, Part]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for at, part in parts:
        last = found[-1] if found else None
        if isinstance(part, TextDelta | ReasoningDelta):
            kind = "text" if isinstance(part, TextDelta) else "thought"
            if last is not None and last["type"] == kind and at - last["at_ms"] < _TOGETHER_MS:
                texts.append(part.text)
                continue
            _settle(found, texts)
            found.append({"at_ms": at, "type": kind})
            texts.append(part.text)
            continue
        _settle(found, texts)
        found.append({"at_ms": at, **_part_to_dict(part)})
    _settle(found, texts)
    return found


def _settle(found: list[dict[str, Any]], texts: list[str]) -> None:
    """Give the last part its collected text."""
    if texts:
        found[-1]["text"] = "".join(texts)
        texts.clear()


def _part_to_dict(part: ToolCall | Reasoning | Finish) -> dict[str, Any]:
    if isinstance(part, ToolCall):
        return {"type": "call", **part.to_dict()}
    if isinstance(part, Reasoning):
        return {"type": "reasoning", **part.to_dict()}
    return {"type": "finish", "reason": part.reason, "usage": _usage_to_dict(part.usage)}


def _part_from_dict(value: dict[str, Any]) -> Part:
    """Raises KeyError, TypeError, ValueError."""
    fields = {name: item for name, item in value.items() if name not in ("type", "at_ms")}
    if not all(isinstance(item, str) for name, item in fields.items() if name != "usage"):
        raise ValueError("it has a part with something that is not text")
    match value["type"]:
        case "text":
            return TextDelta(**fields)
        case "thought":
            return ReasoningDelta(**fields)
        case "call":
            return ToolCall(**fields)
        case "reasoning":
            return Reasoning(**fields)
        case "finish":
            return Finish(reason=fields["reason"], usage=_usage_from_dict(fields["usage"]))
    raise ValueError(f"it has a part of the type {value['type']!r}")


def _usage_to_dict(usage: Usage | None) -> dict[str, int] | None:
    return None if usage is None else dict(vars(usage))


def _usage_from_dict(value: dict[str, int] | None) -> Usage | None:
    if value is None:
        return None
    if not all(type(count) is int for count in value.values()):
        raise ValueError("it has a usage that is not made of numbers")
    return Usage(**value)


def _error_to_dict(error: LightagentError) -> dict[str, Any]:
    found: dict[str, Any] = dict(error.to_dict())
    if isinstance(error, ModelError):
        found |= {
            "retry_after_s": error.retry_after_s,
            "reached": error.reached,
            "transient": error.transient,
        }
    return found


def _error_from_dict(value: dict[str, Any]) -> ModelError:
    """The error with its original class; a plain ModelError for an unknown class."""
    kinds = {row.code: row.cls for row in table() if issubclass(row.cls, ModelError)}
    kind = kinds.get(value["code"], ModelError)
    if bool(value.get("transient", kind.transient)) is not kind.transient:
        kind = type(
            kind.__name__, (kind,), {"transient": not kind.transient}
        )  # such as a class of an administrator's own client
    return kind(
        str(value["message"]),
        suggestion=str(value.get("suggestion", "")),
        field=str(value.get("field", "")),
        retry_after_s=value.get("retry_after_s"),
        reached=bool(value.get("reached")),
    )
