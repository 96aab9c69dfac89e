"""Builds the tree of a turn from its events: steps, with the model call, tool calls and questions in them.

The events of one call (its questions, the decision, the end) are one node, found by the call's id; so is a
question with its answer. The events of a step share a request_id. Times are UTC microseconds; a node without
an end has no duration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

_MODEL = "agent.llm_response"
_DISPATCH = "agent.tool_dispatch"
_TURN = "session.turn"
_ERROR = "agent.error"
_PASSING = ("fallback",)
"""Types of agent.error that do not end a turn."""
_QUESTIONS = {"approval": "approval", "input": "question"}


@dataclass
class Node:
    """One line of the tree. `detail` holds further facts of the kind of node, by name."""

    kind: str
    name: str
    begin_us: int
    end_us: int | None = None
    result: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    @property
    def duration_ms(self) -> int | None:
        """Rounded; None while it has no end, and for what takes no time."""
        if self.end_us is None or self.kind in ("event", "message", "prompt", "task"):
            return None
        return round(max(0, self.end_us - self.begin_us) / 1000)

    def calls(self) -> Iterator[Node]:
        """The calls of a turn."""
        for step in self.children:
            yield from (node for node in (step, *step.children) if node.kind == "call")

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "kind": self.kind,
            "name": self.name,
            "time": self.begin_us,
            "duration_ms": self.duration_ms,
            "result": self.result,
            **self.detail,
            "events": self.events,
            "children": [child.to_dict() for child in self.children],
        }


def is_end(event: Event) -> bool:
    """Whether an event ends its turn."""
    if event["topic"] == _TURN:
        return bool(event["type"] == "done")
    return event["topic"] == _ERROR and event["type"] not in _PASSING


def turn_of(events: Sequence[Event]) -> Node:
    """The tree of a turn, from all its events in order; at least one is needed."""
    return _Builder(events).turn


class _Builder:
    """Puts each event into its place."""

    def __init__(self, events: Sequence[Event]) -> None:
        first = events[0]
        self.turn = Node(kind="turn", name=first["trace_id"], begin_us=first["time"])
        self.turn.detail = {name: first[name] for name in ("agent", "session", "owner", "caller")}
        self.turn.detail["correlation_id"] = first["correlation_id"]
        self._steps: dict[str, Node] = {}
        self._calls: dict[str, Node] = {}
        self._questions: dict[str, Node] = {}
        self._is_turn = any(event["topic"] in ("agent.prompt", _TURN) for event in events)
        """Else it is a call that a person made, which ends without an event of its own."""
        for event in events:
            self._take(event)
        self._finish(events[-1]["time"])

    def _take(self, event: Event) -> None:
        topic, kind, data = event["topic"], event["type"], event["data"] or {}
        asked = _QUESTIONS.get(topic.partition(".")[0])
        if topic == _MODEL and kind != "summary":
            self._model(event, data)
        elif asked:
            self._question(asked, event, data)
        elif topic == _DISPATCH or (kind == "invocation" and topic.startswith("tool.")):
            self._call(event, data)
        elif topic == _TURN and kind == "started":
            self._queued(event)
        elif is_end(event):
            self._end(event, data)
        elif topic == "agent.message" and (data.get("role") != "assistant" or not data.get("content")):
            self._note(event)  # the prompt, calls and what they gave: they have nodes of their own
        else:
            self._leaf(event, data)

    def _place(self, event: Event) -> Node:
        """The step that an event belongs to, or the turn."""
        request = event["request_id"]
        if not request:
            return self.turn
        step = self._steps.get(request)
        if step is None:
            step = Node(kind="step", name=f"step {len(self._steps) + 1}", begin_us=event["time"])
            step.detail = {"request_id": request}
            self._steps[request] = step
            self.turn.children.append(step)
        step.end_us = event["time"]
        return step

    def _note(self, event: Event) -> None:
        self._place(event).events.append(event["seq"])

    def _leaf(self, event: Event, data: dict[str, Any]) -> None:
        kind = {"agent.prompt": "prompt", "agent.message": "message", "plan.task": "task"}.get(
            event["topic"], "event"
        )
        node = Node(kind=kind, name=f"{event['topic']}:{event['type']}", begin_us=event["time"])
        node.detail = {"data": data if event["data"] is not None else None}
        if kind == "task":
            node.name, node.result = f"task {data.get('task', '')}", str(data.get("state", ""))
        node.events.append(event["seq"])
        self._place(event).children.append(node)

    def _model(self, event: Event, data: dict[str, Any]) -> None:
        step = self._place(event)
        begin_us = event["time"] - int(data.get("duration_ms") or 0) * 1000
        if not step.children:
            step.begin_us = min(step.begin_us, begin_us)
        node = Node(kind="model", name=str(data.get("model", "")), begin_us=begin_us, end_us=event["time"])
        node.result = "ok" if event["type"] in ("response", "deliberation") else event["type"]
        node.detail = {name: data.get(name) for name in ("prompt_tokens", "completion_tokens", "cost")}
        node.detail["finish_reason"] = data.get("finish_reason", "")
        node.events.append(event["seq"])
        step.children.append(node)

    def _call(self, event: Event, data: dict[str, Any]) -> None:
        node = self._call_node(event, data)
        node.events.append(event["seq"])
        for name in ("effect", "decision", "rule", "args", "function"):
            if name in data:
                node.detail[name] = data[name]
        if event["topic"] == _DISPATCH and event["type"] == "intent":
            node.begin_us = event["time"] if not node.children else node.begin_us
            return
        node.end_us, node.result = event["time"], str(data.get("result", ""))
        if isinstance(data.get("metadata"), dict) and "session" in data["metadata"]:
            node.detail["session"] = data["metadata"]["session"]
        if "message" in data:
            node.detail["message"] = data["message"]
        if event["topic"] != _DISPATCH:
            node.detail["ran_ms"] = data.get("duration_ms")

    def _call_node(self, event: Event, data: dict[str, Any]) -> Node:
        call_id = str(data.get("call_id") or f"?{event['seq']}")
        node = self._calls.get(call_id)
        if node is None:
            node = self._calls[call_id] = Node(kind="call", name="", begin_us=event["time"])
            node.detail = {"call_id": call_id}
            self._place(event).children.append(node)
        else:
            self._place(event)
        if data.get("tool"):
            node.name = f"{data['tool']}.{data.get('action', '')}"
        node.name = node.name or str(data.get("function") or event["topic"])
        return node

    def _question(self, kind: str, event: Event, data: dict[str, Any]) -> None:
        identity = str(data.get("approval") or data.get("input") or event["seq"])
        node = self._questions.get(identity)
        if node is None:
            node = self._questions[identity] = Node(kind=kind, name=identity, begin_us=event["time"])
            node.result = "waiting"
            above = self._call_node(event, data) if data.get("call_id") else self._place(event)
            above.children.append(node)
        node.events.append(event["seq"])
        if event["type"] == "requested":
            node.detail |= {name: data[name] for name in ("question", "reason", "rule") if name in data}
        elif node.end_us is None:
            node.end_us, node.result = event["time"], event["type"]
            node.detail |= {name: data[name] for name in ("answered_by", "note", "answer") if name in data}

    def _queued(self, event: Event) -> None:
        self.turn.events.append(event["seq"])
        waited_ms = round((event["time"] - self.turn.begin_us) / 1000)
        self.turn.detail["queued_ms"] = waited_ms

    def _end(self, event: Event, data: dict[str, Any]) -> None:
        self.turn.events.append(event["seq"])
        self.turn.end_us = event["time"]
        self.turn.result = "done" if event["topic"] == _TURN else event["type"]
        for name in ("steps", "calls", "total_tokens", "cost", "message"):
            if name in data:
                self.turn.detail[name] = data[name]

    def _finish(self, last_us: int) -> None:
        for call in self._calls.values():
            if call.end_us is None:
                over = self.turn.end_us is not None
                call.result = "outcome_unknown" if over and "decision" in call.detail else "running"
        results = [call.result for call in self._calls.values()]
        if self.turn.end_us is None and not self._is_turn and "running" not in results:
            self.turn.end_us, self.turn.result = last_us, "".join(results[-1:])
        elif self.turn.end_us is None:
            self.turn.result = "running"
            self.turn.detail["last_us"] = last_us


def walk(node: Node, depth: int = 0) -> Iterator[tuple[Node, int]]:
    """A node and all below it, with their depths."""
    yield node, depth
    for child in node.children:
        yield from walk(child, depth + 1)
