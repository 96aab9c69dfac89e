"""Looks at a store that nobody writes: whether chain, indexes, events and states agree, and with the ledger.

Every state is compared with what the events since the chain's first one make of it: a half transaction would
leave one without the other. Older events may be pruned; states that stem from those are not compared.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.events.audit.verification import verify
from lightagentd.events.model import Event
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store.layout import INDEXES, index_keys
from tests.kill.ledger import Ledger

_BEGIN_SESSIONS = ("session.created", "session.forked", "session.imported")
_APPROVAL_STATES = {"requested": "waiting"}
_INPUT_STATES = {"requested": "waiting", "answered": "answered", "expired": "expired", "lapsed": "lapsed"}


def look(folder: Path, ledger: Ledger) -> list[str]:
    """What is wrong with the store in a folder, as sentences."""
    history = StoredHistory(folder)
    try:
        verification = verify(history.environment)
        if not verification.ok:
            return [f"the chain does not verify at {verification.first_bad_seq}: {verification.reason}"]
        anchor, _ = history.environment.anchor()
        events = [event for event in _all(history) if event.seq > anchor]
        states = {name: history.queries.state(name) for name in _COMPARED}
        problems = [*_lost(events, anchor, ledger), *_indexed(history)]
        told = Told.of(events, whole=anchor == 0)
        ledger.expired |= told.expired
        for name, compare in _COMPARED.items():
            problems += compare(told, states[name])
        return problems
    finally:
        history.close()


def look_at_backup(file: Path) -> list[str]:
    """What is wrong with a backup, as sentences."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        shutil.copyfile(file, Path(folder) / "data.mdb")
        problems = look(Path(folder), Ledger())
    return [f"the backup {file.name}: {problem}" for problem in problems]


def head(folder: Path) -> int:
    """The number of the newest event."""
    history = StoredHistory(folder)
    try:
        last = history.queries.last()
        return last.seq if last is not None else history.environment.anchor()[0]
    finally:
        history.close()


def _all(history: StoredHistory) -> Iterator[Event]:
    seq = 1
    while found := history.queries.range(from_seq=seq, limit=1000):
        yield from found
        seq = found[-1].seq + 1


def _lost(events: list[Event], anchor: int, ledger: Ledger) -> Iterator[str]:
    """Events that a subscriber was sent, and that are not there as they were."""
    stored = {event.seq: event.hash for event in events}
    for seq, hash_ in ledger.events.items():
        if seq > anchor and stored.get(seq) != hash_:
            now = "another now" if seq in stored else "lost"
            yield f"event {seq} was sent to a subscriber and is {now}"
    ledger.events.clear()


def _indexed(history: StoredHistory) -> Iterator[str]:
    """Index entries that are missing, or whose event is."""
    environment = history.environment
    wanted: dict[str, Counter[bytes]] = {name: Counter() for name in INDEXES}
    for event in _all(history):
        for name, key in index_keys(event):
            wanted[name][key] += 1
    for name in INDEXES:
        with environment.reading() as txn, txn.cursor(environment.db[name]) as cursor:
            found = Counter(bytes(key) for key in cursor.iternext(values=False))
        for what, keys in (("lacks", wanted[name] - found), ("has too much:", found - wanted[name])):
            if keys:
                first = min(keys)
                seq = int.from_bytes(first[-8:], "big")
                yield f"the index {name} {what} {len(keys)} entries, such as {first[:-8]!r} of event {seq}"


@dataclass(kw_only=True)
class Told:
    """What the events say of sessions, turns, approvals, questions, plans and memories."""

    whole: bool
    """No event was pruned."""
    begun: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    """Those that retention deleted."""
    content: dict[str, int] = field(default_factory=dict)
    """By session, the number of an event that still has its data."""
    titles: dict[str, str] = field(default_factory=dict)
    paused: dict[str, bool] = field(default_factory=dict)
    turns: dict[str, str] = field(default_factory=dict)
    """By trace, `queued`, `running` or `over`."""
    asked: dict[str, str] = field(default_factory=dict)
    """By approval, the type of its last event."""
    inputs: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    """By session, the type of the last event of its plan."""
    memories: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, events: list[Event], *, whole: bool) -> Told:
        told = cls(whole=whole)
        for event in events:
            told._take(event)
        return told

    def _take(self, event: Event) -> None:
        data = event.data or {}
        if event.topic == "session.deleted":
            self.deleted.add(event.session)
            if data.get("reason"):
                self.expired.add(event.session)
        elif data and event.session:
            self.content[event.session] = event.seq
        if event.topic in _BEGIN_SESSIONS:
            self.begun.add(event.session)
        if event.topic in (*_BEGIN_SESSIONS, "session.renamed") and data:
            self.titles[event.session] = data["title"]
        elif event.topic in ("session.paused", "session.resumed"):
            self.paused[event.session] = event.type == "paused"
        elif event.topic == "agent.prompt":
            self.turns[event.trace_id] = "queued"
        elif event.topic == "session.turn" or (event.topic == "agent.error" and event.type != "fallback"):
            if event.trace_id in self.turns:
                self.turns[event.trace_id] = "running" if event.type == "started" else "over"
        elif event.topic.startswith("approval.") and data:
            self.asked[data["approval"]] = event.type
        elif event.topic.startswith("input.") and data:
            self.inputs[data["input"]] = event.type
        elif event.topic.startswith("plan."):
            self.plans[event.session] = event.type
        elif event.topic.startswith("memory.") and "memory" in data:
            self.memories[data["memory"]] = event.type not in ("forgotten", "expired")


def _compare_sessions(told: Told, stored: dict[str, Any]) -> Iterator[str]:
    for session in told.begun - told.deleted - stored.keys():
        yield f"the session {session} was made and is not stored"
    for session in told.deleted & stored.keys():
        yield f"the session {session} was deleted and is still stored"
    for session in told.deleted & told.content.keys():
        yield f"the session {session} was deleted and event {told.content[session]} has its data"
    for session, record in stored.items():
        if told.whole and session not in told.begun:
            yield f"the session {session} is stored and was never made"
        if told.titles.get(session, "") not in ("", record["title"]):
            yield f"the session {session} is called {record['title']!r}, and was {told.titles[session]!r}"
        if told.paused.get(session, record["paused"]) != record["paused"]:
            yield f"the session {session} has paused {record['paused']}, and its last event says otherwise"


def _compare_turns(told: Told, stored: dict[str, Any]) -> Iterator[str]:
    for trace, state in told.turns.items():
        found = stored.get(trace, {}).get("state", "over")
        if {"waiting": "running"}.get(found, found) != state:
            yield f"the turn {trace} is stored as {found}, and its events say {state}"
    for trace in stored.keys() - told.turns.keys() if told.whole else ():
        yield f"the turn {trace} is stored and was never prompted"


def _compare_approvals(told: Told, stored: dict[str, Any]) -> Iterator[str]:
    for approval, record in stored.items():
        last = told.asked.get(approval)
        if last is not None and _APPROVAL_STATES.get(last, last) != record["state"]:
            yield f"the approval {approval} is stored as {record['state']}, and its last event is {last}"
        if last is None and told.whole:
            yield f"the approval {approval} is stored and was never asked for"
    for approval, last in told.asked.items():
        if last in ("requested", "granted") and approval not in stored:
            yield f"the approval {approval} is {last} and is not stored"


def _compare_inputs(told: Told, stored: dict[str, Any]) -> Iterator[str]:
    for name, record in stored.items():
        last = told.inputs.get(name)
        if last is not None and _INPUT_STATES[last] != record["state"]:
            yield f"the question {name} is stored as {record['state']}, and its last event is {last}"
    for name, last in told.inputs.items():
        if last == "requested" and name not in stored:
            yield f"the question {name} waits and is not stored"


def _compare_plans(told: Told, stored: dict[str, Any]) -> Iterator[str]:
    for session, last in told.plans.items():
        gone = last == "ended" or session in told.deleted
        if gone == (session in stored):
            yield f"the plan of {session} is {'still' if gone else 'not'} stored, its last event is {last}"


def _compare_memories(told: Told, stored: dict[str, Any]) -> Iterator[str]:
    there = {key.rpartition("/")[2] for key in stored}
    for memory, kept in told.memories.items():
        if kept != (memory in there):
            yield f"the memory {memory} is {'not' if kept else 'still'} stored, and its events say otherwise"


_COMPARED: dict[str, Callable[[Told, dict[str, Any]], Iterator[str]]] = {
    "sessions": _compare_sessions,
    "turns": _compare_turns,
    "approvals": _compare_approvals,
    "inputs": _compare_inputs,
    "plans": _compare_plans,
    "memories": _compare_memories,
}
