"""What was told and what was stored of each turn; at the end both have to agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lightagentd import errors
from lightagentd.api import LAST_EVENTS

_CODES = frozenset(row.code for row in errors.table())
_SHOWN = 10


@dataclass
class Books:
    """`told` is what a watcher heard as the last event of a turn, `stored` how the history says it ended."""

    told: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    watched: set[str] = field(default_factory=set)
    """The turns that somebody watched to their end."""
    failed_calls: int = 0
    after_the_end: int = 0
    """Events that a watcher got behind the last one of a turn."""

    def tell(self, event: dict[str, Any]) -> None:
        """A watcher heard this."""
        trace = event["trace_id"]
        if self.told[trace]:
            self.after_the_end += 1
        if event["type"] in LAST_EVENTS:
            self.told[trace].append(event.get("code") or "done")

    def store(self, event: dict[str, Any]) -> None:
        """The history has this."""
        topic, kind = event["topic"], event["type"]
        if topic == "session.turn" and kind == "done":
            self.stored[event["trace_id"]].append("done")
        elif topic == "agent.error" and kind in _CODES and event["session"]:
            self.stored[event["trace_id"]].append(kind)
        elif topic == "agent.llm_response" and kind == "failed":
            self.failed_calls += 1

    @property
    def ended(self) -> int:
        return sum(map(len, self.stored.values()))

    def problems(self, prompts: int) -> list[str]:
        """What does not agree, as sentences."""
        found = [*self._of_traces()]
        if len(self.stored) != prompts:
            found.append(f"{prompts} prompts were made, and {len(self.stored)} turns are stored as ended")
        if self.after_the_end:
            found.append(f"{self.after_the_end} events came behind the last one of their turn")
        more = len(found) - _SHOWN
        return [*found[:_SHOWN], f"and {more} more"] if more > 0 else found

    def _of_traces(self) -> Iterator[str]:
        for trace, ends in self.stored.items():
            if len(ends) != 1:
                yield f"{trace} is stored as ended {len(ends)} times: {', '.join(ends)}"
        for trace in self.watched:
            told = self.told[trace]
            if len(told) != 1:
                yield f"a watcher of {trace} heard {len(told)} last events: {', '.join(told) or 'none'}"
            elif told != self.stored.get(trace):
                stored = ", ".join(self.stored.get(trace, ["nothing"]))
                yield f"a watcher of {trace} heard {told[0]}, and stored is {stored}"

    def outcomes(self) -> Counter[str]:
        return Counter(end for ends in self.stored.values() for end in ends)
