"""Resolves the trace id of a turn, which may be cut as lists on a narrow terminal show it."""

from __future__ import annotations

from lightagentd.cli import event_source
from lightagentd.cli.beginning import only_one
from lightagentd.cli.options import Settings, names_of

_LOOKED_AT = 1000
"""So many of the newest turns and calls are looked at for an id that is cut."""

trace_ids = names_of("History.Query", "trace_id", topic="agent.prompt", limit=100)


def whole_trace(settings: Settings, written: str) -> str:
    """The trace id that a text begins, or the text itself when no turn has it. Raises InvalidArgument."""

    def known() -> list[str]:
        which = {"topic": "agent.prompt,agent.tool_dispatch"}
        return [event["trace_id"] for event in event_source.newest(settings, which, _LOOKED_AT)]

    return only_one(written, known, "turns")
