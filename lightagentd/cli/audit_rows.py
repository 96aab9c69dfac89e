"""Who did what, made from events: a call with its decision and outcome is one row, as each other act is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Event = dict[str, Any]

DISPATCH = "agent.tool_dispatch"
INVOCATION = "invocation"
TOPICS = (
    DISPATCH,
    "approval",
    "input.answered",
    "plan.applying",
    "session.deleted",
    "policy.rules",
    "daemon.agent",
    "daemon.state",
    "daemon.history",
    "daemon.doctor",
)
"""What acts are told of by; the outcomes of calls come beside (`tool`, of the type INVOCATION)."""
_SILENT = {("approval.used", "used"), ("daemon.state", "commands_missing")}
"""Events of these topics that are no acts: what an approval is used for is the call itself."""


@dataclass
class Row:
    """One act. `caller` is the uid on whose word it happened, None for the daemon itself or when unknown;
    `result` is empty for what has none, and `running` for a call of which no outcome is known (yet).
    """

    seq: int
    time: int
    caller: int | None
    agent: str
    session: str
    act: str
    effect: str = ""
    decision: str = ""
    rule: str = ""
    result: str = ""
    duration_ms: int | None = None
    detail: Any = ""
    """The arguments of a call; else what the event says."""
    call_id: str = ""
    request_id: str = ""
    trace_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rows(events: Iterable[Event]) -> list[Row]:
    """A row for each act in some events."""
    return [row for event in events if (row := row_of(event)) is not None]


def row_of(event: Event) -> Row | None:
    """What an event says about who did what; None where it tells of no act."""
    topic, kind, data = event["topic"], event["type"], event["data"] or {}
    if (topic, kind) in _SILENT:
        return None
    row = Row(
        **{name: event[name] for name in ("seq", "time", "caller", "agent", "session")},
        act=topic if topic.endswith(f".{kind}") else f"{topic}.{kind}",
        request_id=event["request_id"],
        trace_id=event["trace_id"],
        call_id=str(data.get("call_id", "")),
    )
    if topic == DISPATCH or kind == INVOCATION:
        row.act = _call_name(data) or row.act
        row.effect, row.decision, row.rule = (str(data.get(n, "")) for n in ("effect", "decision", "rule"))
        row.detail = data.get("args", "")
        settle(row, event) if kind != "intent" else None
        row.result = row.result or "running"
        return row
    row.effect = str(data.get("effect", ""))
    by = data.get("answered_by", data.get("by"))
    if row.caller is None and isinstance(by, int):
        row.caller = by  # events of schema version 1 say it in their data alone
    said = [
        _call_name(data),
        *(str(data[name]) for name in ("message", "note", "answer", "reason") if data.get(name)),
    ]
    row.detail = ": ".join(filter(None, said))
    return row


def settle(row: Row, event: Event) -> None:
    """Put the outcome of a call into its row."""
    data = event["data"] or {}
    row.result = str(data.get("result", ""))
    row.duration_ms = data.get("duration_ms")
    if not row.detail and data.get("message"):
        row.detail = data["message"]


def is_outcome(event: Event) -> bool:
    return bool(event["type"] == INVOCATION and event["source"] != "tool")


def open_calls(found: Sequence[Row]) -> dict[str, Row]:
    """The rows of calls whose outcome is not known, by call id."""
    return {row.call_id: row for row in found if row.result == "running" and row.call_id}


def _call_name(data: dict[str, Any]) -> str:
    if data.get("tool"):
        return f"{data['tool']}.{data.get('action', '')}".rstrip(".")
    return str(data.get("function", ""))
