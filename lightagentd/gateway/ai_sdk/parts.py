"""The events of a turn as chunks of the AI SDK's UI message stream, and the bytes of both of its protocols.

A chunk is an object with a `type`, as `uiMessageChunkSchema` of the npm package `ai` (5 to 7) has it. The
older data stream (`ai` 3 and 4) has a line `CODE:JSON` for most of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Set
from typing import Any, Literal

from lightagentd.config.terms import TERMS
from lightagentd.gateway.live import Chunk
from lightagentd.gateway.streaming import event as sse
from lightagentd.gateway.turns import Event, waiting_text

Protocol = Literal["ui", "ui-v5", "data"]
"""`ui-v5` is `ui` without the chunks about approvals, which `ai` 5 takes for an error."""
DONE = b"data: [DONE]\n\n"
_REASONS = {"length": "length", "content_filter": "content-filter"}
_SHOWN = ("approval", "tool", "action", "effect", "args", "preview", "reason", "rule", "digest", *TERMS)
_ABOUT = {
    "plan": ("plan", "task"),
    "notice": ("code", "message"),
    "queued": ("position",),
    "tool_output": ("stream", "text"),
}
"""Events that become data parts, with their fields."""


class Parts:
    """Makes the chunks of one message. `known` are the calls that the client has in it already."""

    def __init__(self, *, known: Set[str] = frozenset(), approvals: bool = True) -> None:
        self._known, self._approvals = {*known}, approvals
        self._late = False
        """Whether the turn may have said the beginning of a text before: that is told when it is whole."""
        self._step, self._open, self._count = False, "", 0
        self._denied: set[str] = set()
        self._text = ""

    def of(self, event: Event) -> Iterator[Chunk]:
        """The chunks for an event; none for what no client is told of."""
        match event["type"]:
            case "session":
                self._late = (event["session_info"] or {}).get("state") == "running"
            case "missed":
                yield from self.text(event["text"])
            case "text_delta" if not self._late:
                yield from self._said("text", event["text"])
                self._text += event["text"]
            case "reasoning_delta":
                yield from self._said("reasoning", event["text"])
            case "tool_call":
                self._late = False
                yield from self._call(event, event["args"])
            case "tool_result":
                self._late = False
                yield from self._result(event)
            case "approval_requested":
                yield from self._approval(event)
            case "approval_answered":
                if event["state"] == "denied":
                    self._denied.add(event["call_id"])
            case "input_requested":
                data = {"question": event["question"], "choices": event["choices"]}
                data |= {"input": event["input"], "toolCallId": event["call_id"]}
                yield {"type": "data-question", "id": event["input"], "data": data}
                yield from self.text(waiting_text(event))
            case "done" if not self._text.endswith(event["text"]):
                yield from self.text(event["text"])  # nothing of it came as deltas
            case kind if kind in _ABOUT:
                yield _data(event, kind)

    def text(self, text: str) -> Iterator[Chunk]:
        """A part with a whole text."""
        yield from self._closed()
        yield from self._said("text", text)
        yield from self._closed()

    def end(self, reason: str, metadata: Chunk) -> Iterator[Chunk]:
        """The last chunks of a response; `reason` is a finish reason of the daemon, or one of the SDK."""
        yield from self._closed()
        if self._step:
            yield {"type": "finish-step"}
        reason = _REASONS.get(reason, reason or "stop")
        yield {"type": "finish", "finishReason": reason, "messageMetadata": metadata}

    def _opened(self) -> Iterator[Chunk]:
        if not self._step:
            self._step = True
            yield {"type": "start-step"}

    def _closed(self) -> Iterator[Chunk]:
        if self._open:
            yield {"type": f"{self._open}-end", "id": f"{self._open}-{self._count}"}
        self._open = ""

    def _said(self, kind: str, text: str) -> Iterator[Chunk]:
        if self._open != kind:
            yield from self._closed()
            yield from self._opened()
            self._open, self._count = kind, self._count + 1
            yield {"type": f"{kind}-start", "id": f"{kind}-{self._count}"}
        yield {"type": f"{kind}-delta", "id": f"{kind}-{self._count}", "delta": text}

    def _call(self, event: Event, args: Any) -> Iterator[Chunk]:
        if event["call_id"] in self._known:
            return
        self._known.add(event["call_id"])
        yield from self._closed()
        yield from self._opened()
        call = {"toolCallId": event["call_id"], "toolName": f"{event['tool']}_{event['action']}"}
        call |= {"dynamic": True, "providerExecuted": True}
        text = json.dumps(args, ensure_ascii=False)
        yield {"type": "tool-input-start", **call}
        yield {"type": "tool-input-delta", "toolCallId": event["call_id"], "inputTextDelta": text}
        yield {"type": "tool-input-available", **call, "input": args}

    def _approval(self, event: Event) -> Iterator[Chunk]:
        yield from self._call(event, event["args"])
        about = {name: event[name] for name in _SHOWN}
        about |= {"toolCallId": event["call_id"], "expiresUs": event["expires_us"]}
        may = event["may_answer"] and not event.get(
            "approver"
        )  # a change is answered by a person at the approver
        about |= {"mayAnswer": may, "how": f"lactl approve {event['approval']}"}
        if self._approvals:
            asked = {"approvalId": event["approval"], "toolCallId": event["call_id"]}
            yield {"type": "tool-approval-request", **asked, "approvalDescriptor": about}
        yield {"type": "data-approval", "id": event["approval"], "data": about}
        if not (self._approvals and may):
            yield from self.text(waiting_text(event))

    def _result(self, event: Event) -> Iterator[Chunk]:
        yield from self._call(event, {})
        call, ok = event["call_id"], event["result"] == "ok"
        if ok:
            yield {"type": "tool-output-available", "toolCallId": call, "output": event["text"], **_DYNAMIC}
        elif self._approvals and call in self._denied:
            yield {"type": "tool-output-denied", "toolCallId": call}
        else:
            yield {"type": "tool-output-error", "toolCallId": call, "errorText": event["text"], **_DYNAMIC}
        if self._step:
            self._step = False
            yield {"type": "finish-step"}


_DYNAMIC = {"dynamic": True, "providerExecuted": True}


def _data(event: Event, kind: str) -> Chunk:
    data = {name: event[name] for name in _ABOUT[kind]}
    if kind == "tool_output":
        data["toolCallId"] = event["call_id"]
    found = {"type": f"data-{kind.replace('_', '-')}", "data": data}
    if kind == "plan":
        return {**found, "id": "plan"}
    return {**found, "transient": True}


# Bytes


def ui(chunk: Chunk) -> bytes:
    """A chunk as a server-sent event."""
    return sse(chunk)


def data_stream() -> Callable[[Chunk], bytes]:
    """What gives the lines of the data stream for each chunk of a response."""
    message, metadata = "", Chunk()

    def lines(chunk: Chunk) -> bytes:
        nonlocal message, metadata
        metadata = chunk.get("messageMetadata", metadata)
        if chunk["type"] == "start":
            message = chunk["messageId"]
        usage = _usage(metadata.get("usage") or {})
        found = _line(chunk, message, usage)
        if chunk["type"] == "finish":
            found = [("8", [metadata]), *found]
        return b"".join(
            f"{code}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n".encode()
            for code, value in found
        )

    return lines


def _line(chunk: Chunk, message: str, usage: Chunk) -> list[tuple[str, Any]]:
    call = {"toolCallId": chunk.get("toolCallId")}
    match chunk["type"]:
        case "text-delta":
            return [("0", chunk["delta"])]
        case "reasoning-delta":
            return [("g", chunk["delta"])]
        case "start-step":
            return [("f", {"messageId": message})]
        case "tool-input-start":
            return [("b", {**call, "toolName": chunk["toolName"]})]
        case "tool-input-delta":
            return [("c", {**call, "argsTextDelta": chunk["inputTextDelta"]})]
        case "tool-input-available":
            return [("9", {**call, "toolName": chunk["toolName"], "args": chunk["input"]})]
        case "tool-output-available":
            return [("a", {**call, "result": chunk["output"]})]
        case "tool-output-error":
            return [("a", {**call, "result": {"error": chunk["errorText"]}})]
        case "error":
            return [("3", chunk["errorText"])]
        case "abort":
            return [("3", chunk["reason"])]
        case "finish-step":
            return [("e", {"finishReason": "unknown", "usage": usage, "isContinued": False})]
        case "finish":
            return [("d", {"finishReason": chunk["finishReason"], "usage": usage})]
        case kind if kind.startswith("data-"):
            return [("2", [{"type": kind.removeprefix("data-"), **chunk["data"]}])]
    return []


def _usage(usage: Chunk) -> Chunk:
    prompt, completion = (usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens"))
    return {"promptTokens": prompt, "completionTokens": completion}
