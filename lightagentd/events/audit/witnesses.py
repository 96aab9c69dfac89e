"""Compares the history with the records of the approver and of the workers for change, call for call.

Each of them writes to the journal by itself and signs what it writes (`journal.signed_record`), and journald
says which unit a record is from. So whoever has taken over the daemon can neither hide a change that ran, nor
say that somebody allowed one. Found are changes that ran and that the history does not have, changes and
approvals that the history alone has, and records that are not from whom they say.

What is older than the first record of a unit in the journal is not compared with that unit: the journal was
rotated, or the unit did not exist. Nor is what the history does not have any more, after retention and
deletions of sessions, nor what a history had that was replaced by a backup. Some tools change things
elsewhere than in a worker for change; so what the history alone has is only told of actions that some record
is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightagentd.events.journal.signed_record import RECORD, SIGNATURE, verified
from lightagentd.events.model import FROM_TOOL, Event, decode
from lightagentd.events.store.layout import EVENTS, Environment, ascending, field_prefix, index_prefix
from lightagentd.signed.public_keys import PublicKey

APPROVER = "lightagent-approver.service"
RECORD_FIELDS = tuple(name.removeprefix("LIGHTAGENT_") for name in (RECORD, SIGNATURE))
_WORKER = re.compile(r"lightagent-change@([^/]+)\.service")
_KINDS = {True: ("asked", "granted", "denied"), False: ("begun", "ended", "refused")}
"""Of the approver, and of a worker."""
_NEAR_US = 60_000_000
"""So far apart the records and events of one step are, at the most."""
_MOST = 1000
_MOST_RECORDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A call about which history, approver and worker do not agree. Only a foreign record is no proof that
    something was forged: anyone may write to the journal.
    """

    kind: str
    """`unrecorded` (it ran, and the history has no event), `unapproved` (it ran with an approval, or the
    history has one, that the approver did not give), `unrun` (the history alone has it), `different` (another
    call ran than the one that was approved), `unsigned` (the signature is wrong), or `foreign` (the record is
    from another unit)."""
    call_id: str
    agent: str
    time_us: int
    message: str
    """Without a full stop."""


@dataclass(frozen=True, kw_only=True)
class _Record:
    time_us: int
    agent: str
    call_id: str
    digest: str
    said: dict[str, Any]

    @property
    def takes_back(self) -> bool:
        """Whether the worker began it as what takes a change back, as it was promised there, or refused what
        the daemon called so.
        """
        by = self.said.get("by")
        return isinstance(by, dict) and bool(by.get("takes_back"))

    @property
    def grant(self) -> tuple[object, object] | None:
        """Series and number of the grant that was given, or used."""
        by = self.said.get("by")
        try:
            found = by if isinstance(by, dict) else json.loads(self.said["grant"])
            return found["series"], found["number"]
        except (KeyError, TypeError, ValueError):
            return None


class Witnesses:
    """Receives the entries with a record, and compares them at the end."""

    def __init__(self, keys: Mapping[str, Sequence[PublicKey]]) -> None:
        """`keys` are public keys by unit. The records of a unit without one are taken at journald's word, and
        so are those that are older than all of a unit's keys.
        """
        self._keys = keys
        self.records = 0
        self.older = 0
        """Records that are older than the keys of their unit."""
        self.found: list[Disagreement] = []
        self.unused: list[str] = []
        """The ids of calls that were approved and that no worker began."""
        self._granted: list[_Record] = []
        self._begun: list[_Record] = []
        self._refused: set[str] = set()
        self._refused_back: set[str] = set()
        """Those of them that were to take a change back."""
        self._actions: set[tuple[object, object]] = set()
        """Tool and action of all records."""
        self._first: dict[str, int] = {}
        """When the first record of the approver, and of each agent's worker, was written."""

    def take(self, entry: dict[str, Any], time_us: int) -> None:
        """An entry that has a record."""
        unit = str(entry.get("_SYSTEMD_UNIT", ""))
        worker = _WORKER.fullmatch(unit)
        said = _said(entry)
        call_id, agent, kind = (str(said.get(name, ""))[:100] for name in ("call_id", "agent", "kind"))
        if kind not in _KINDS[unit == APPROVER] or not (worker or unit == APPROVER):
            why = f"a record says {kind or 'nothing'} and is from {unit[:100] or 'no unit'}"
            self._tell("foreign", call_id, agent, time_us, why)
            return
        keys = self._keys.get(unit, ())
        if keys and time_us < keys[0].since_us:
            self.older += 1
        elif keys and not any(verified(entry, one.key) for one in keys if one.is_of(time_us)):
            self._tell("unsigned", call_id, agent, time_us, f"a record of {unit} is not signed with its key")
            return
        if worker is not None and worker[1] != agent:
            self._tell("foreign", call_id, agent, time_us, f"a record about {agent} is from {unit}")
            return
        self.records += 1
        source = agent if worker is not None else APPROVER
        self._first[source] = min(self._first.get(source, time_us), time_us)
        record = _Record(
            time_us=time_us, agent=agent, call_id=call_id, digest=str(said.get("digest", "")), said=said
        )
        self._actions.add((str(said.get("tool")), str(said.get("action"))))
        if kind == "refused":
            self._refused.add(call_id)
            if record.takes_back:
                self._refused_back.add(call_id)
        if self.records < _MOST_RECORDS and kind in ("granted", "begun"):
            (self._granted if kind == "granted" else self._begun).append(record)

    def finish(self, environment: Environment) -> None:
        """Compare. Raises StorageError, HistoryDamaged."""
        if not self.records:
            return
        with environment.reading() as txn:
            history = _History(environment, txn)
            self._compare_grants()
            begun: set[str] = set()
            for record in self._begun:
                begun.add(record.call_id)
                if record.call_id not in history.calls and not history.lacks(record):
                    why = f"the worker of {record.agent} ran it, and the history has no event of it"
                    self._tell("unrecorded", record.call_id, record.agent, record.time_us, why)
            self._compare_approvals(history)
            for call_id, event in history.ended.items():
                first = self._first.get(event.agent)
                intended_us = history.intended.get(call_id, 0)
                late = first is not None and intended_us > first and self._knows(event)
                if late and call_id not in begun and call_id not in self._refused:
                    why = (
                        f"event {event.seq} says that it ran, and the worker of {event.agent} did not run it"
                    )
                    self._tell("unrun", call_id, event.agent, event.time_us, why)
        self.found.sort(key=lambda one: one.time_us)

    def _compare_grants(self) -> None:
        given = {record.grant: record for record in self._granted if record.grant is not None}
        used = set()
        for record in self._begun:
            if (grant := record.grant) is None:
                continue
            used.add(grant)
            first = self._first.get(APPROVER, record.time_us)
            found = given.get(grant)
            if found is None and record.time_us > first + _NEAR_US:
                why = f"it ran with the grant {grant[1]}, and the approver did not give that"
                self._tell("unapproved", record.call_id, record.agent, record.time_us, why)
            elif found is not None and (found.call_id, found.digest) != (record.call_id, record.digest):
                why = f"the grant {grant[1]} was given for the call {found.call_id}, and another ran with it"
                self._tell("different", record.call_id, record.agent, record.time_us, why)
        self.unused = [record.call_id for grant, record in given.items() if grant not in used][:_MOST]

    def _compare_approvals(self, history: _History) -> None:
        granted = {record.call_id for record in self._granted}
        granted |= {record.call_id for record in self._begun if record.takes_back}  # approved with its change
        granted |= self._refused_back - history.ended.keys()  # nor did it run, as the history says too
        first = self._first.get(APPROVER)
        for event in history.granted:
            call_id = _text(event, "call_id")
            late = first is not None and event.time_us > first + _NEAR_US and self._knows(event)
            if late and call_id not in granted:
                why = f"event {event.seq} says that it was approved, and the approver did not approve it"
                self._tell("unapproved", call_id, event.agent, event.time_us, why)

    def _knows(self, event: Event) -> bool:
        return (_text(event, "tool"), _text(event, "action")) in self._actions

    def _tell(self, kind: str, call_id: str, agent: str, time_us: int, message: str) -> None:
        if len(self.found) < _MOST:
            self.found.append(
                Disagreement(kind=kind, call_id=call_id, agent=agent, time_us=time_us, message=message)
            )


class _History:
    """The changes and approvals of a history, as one transaction sees them."""

    def __init__(self, environment: Environment, txn: Any) -> None:
        self._environment, self._txn = environment, txn
        self.calls: set[str] = set()
        self.granted: list[Event] = []
        self.intended: dict[str, int] = {}
        """When each call was about to begin."""
        self.ended: dict[str, Event] = {}
        """The calls that went well."""
        for event in self._events("by_field", field_prefix("effect", "change")):
            if event.source == FROM_TOOL:
                continue
            self.calls.add(_text(event, "call_id"))
            if event.topic == "approval.granted":
                self.granted.append(event)
            elif event.type == "intent":
                self.intended[_text(event, "call_id")] = event.time_us
            elif event.type == "invocation" and _text(event, "result") == "ok":
                self.ended[_text(event, "call_id")] = event
        first = next(self._first_of_chain(), None)
        self._since_us = first.time_us if first is not None else 0
        self._former = [*self._replaced()]
        self._erased: list[tuple[str, int]] | None = None

    def lacks(self, record: _Record) -> bool:
        """Whether a call may be missing for a known reason."""
        if record.time_us < self._since_us:  # retention removed it
            return True
        if any(low <= record.time_us <= high for low, high in self._former):
            return True
        if self._erased is None:
            intents = self._events("by_topic", index_prefix("agent.tool_dispatch"))
            self._erased = [(event.agent, event.time_us) for event in intents if event.data is None]
        for one in self._erased:
            if one[0] == record.agent and 0 <= record.time_us - one[1] + 1_000_000 <= _NEAR_US:
                self._erased.remove(one)  # its session was deleted; it explains one call
                return True
        return False

    def _events(self, index: str, prefix: bytes) -> Iterator[Event]:
        db = self._environment.db
        for key, _ in ascending(self._txn, db[index], prefix):
            record = self._txn.get(key[-8:], db=db[EVENTS])
            if record is not None:
                yield decode(record)

    def _first_of_chain(self) -> Iterator[Event]:
        key = (self._environment.anchor_in(self._txn)[0] + 1).to_bytes(8, "big")
        with self._txn.cursor(self._environment.db[EVENTS]) as cursor:
            if cursor.set_range(key):
                yield decode(cursor.value())

    def _replaced(self) -> Iterator[tuple[int, int]]:
        """The times of which a history that was replaced had the events."""
        for event in self._events("by_topic", index_prefix("daemon.history")):
            if event.type in ("installed", "set_aside"):
                before = self._txn.get((event.seq - 1).to_bytes(8, "big"), db=self._environment.db[EVENTS])
                yield (decode(before).time_us if before is not None else 0), event.time_us


def _said(entry: dict[str, Any]) -> dict[str, Any]:
    """What a record says, whoever wrote it."""
    try:
        found = json.loads(entry[RECORD])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(event: Event, name: str) -> str:
    value = (event.data or {}).get(name)
    return value if isinstance(value, str) else ""
