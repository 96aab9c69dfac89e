"""Takes invalid and altered rows out of the stored state at a start: no invalid one keeps the daemon from
serving, and no forged one, such as another owner of a session, is used.

A failing disk, or whoever can write the file, may leave a row that its readers refuse, or one that the daemon
did not write. `take_out` reads each row as its readers do, once, before any of them, and compares all with
what the newest checkpoint covers (`events.audit.row_check`). A row that is taken out stays in an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightagentd.agents import evals
from lightagentd.agents.confirming.records import Confirmation
from lightagentd.agents.flows import records as flows
from lightagentd.agents.model_calls.metering.ledger import Row
from lightagentd.agents.planning.plan import Plan
from lightagentd.agents.sessions.recovery import waited
from lightagentd.agents.sessions.session import SessionRecord
from lightagentd.agents.team.mail import Letter
from lightagentd.agents.triggers import records as triggers
from lightagentd.agents.watches import WatchRecord
from lightagentd.control.tokens import Token
from lightagentd.errors import HistoryDamaged
from lightagentd.events.audit.row_check import BadRow, compare
from lightagentd.events.history import History, NewEvent
from lightagentd.events.store import rows
from lightagentd.events.store.layout import CHANGED, STATES, Environment, ascending
from lightagentd.events.store.states import decoding, entry
from lightagentd.events.types.history import StateTakenOut
from lightagentd.memory.entries import entry_of
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.inputs import Input

_log = logging.getLogger(__name__)

Value = dict[str, Any]


def _own_key(key: str, own: str) -> None:
    """Raises ValueError."""
    if own != key:
        raise ValueError(f"it is about {own[:100]!r}")


_READERS: dict[str, Callable[[str, Value], object]] = {
    "sessions": lambda key, value: _own_key(key, SessionRecord.from_dict(value).id),
    "plans": lambda key, value: _own_key(key, Plan.from_dict(value).session),
    "watches": lambda key, value: _own_key(key, WatchRecord.from_dict(value).watch),
    "approvals": lambda key, value: _own_key(key, Approval.from_dict(value).id),
    "inputs": lambda key, value: _own_key(key, Input.from_dict(value).id),
    "mail": lambda key, value: _own_key(key, Letter.from_dict(value).id),
    "triggers": triggers.stored,
    "flow_runs": lambda key, value: _own_key(key, flows.RunRecord.from_dict(value).session),
    "flow_steps": lambda key, value: _own_key(key, flows.StepRecord.from_dict(value).key),
    "flow_definitions": lambda _, value: flows.flow_in(value),
    "evals": evals.stored,
    "ratings": evals.stored_rating,
    "turns": waited,
    "usage": Row.from_dict,
    "memories": lambda key, value: entry_of(value, int(key.partition("/")[0])),
    "tokens": lambda key, value: _own_key(key, Token.from_dict(value).id),
    "prunings": lambda key, _: int(key),
    "confirmations": lambda key, value: _own_key(key, Confirmation.from_dict(value).id),
    CHANGED: rows.changed_in,
}
"""How the parts of the daemon read a row. Where this says nothing, `states.entry` says what it must have."""
_SHOWN_BYTES, _KEPT_BYTES = 2000, 64 << 10
"""So much of an invalid row, and of an altered one, is stored in the event about it."""
_UNNAMED = (
    "A row of the stored state is missing, and no stored checkpoint lists it any more: restore a backup with"
    " 'lactl history restore', or go on without it."
)
_MOST_EVENTS, _MOST_SENTENCES = 1000, 3
"""So many rows have an event of their own, or a sentence in the log and in `status`."""


@dataclass(frozen=True, kw_only=True)
class _Bad:
    state: str
    key: bytes
    value: bytes | None
    sentence: str
    most_bytes: int

    def event(self) -> NewEvent:
        shown = (self.value or b"")[: self.most_bytes].decode("utf-8", "backslashreplace")
        key = rows.text_of(self.key)
        return StateTakenOut(message=self.sentence, state=self.state, key=key, value=shown).event()


async def take_out(history: History) -> list[str]:
    """Remove the invalid and the altered rows and store events about them, in one transaction; checkpoints
    then cover the rows that are left. Gives sentences about them. Raises StorageError, HistoryDamaged.
    """
    environment = history.environment
    bad = await asyncio.to_thread(_invalid_rows, environment)
    known = {(one.state, one.key) for one in bad}
    compared = await asyncio.to_thread(compare, environment)
    bad += [_altered(one) for one in compared.bad if (one.state, one.raw_key) not in known]
    unnamed = compared.unnamed and not bad
    if not bad and not unnamed:
        return []

    def prepare(txn: Any, number: int) -> list[NewEvent]:
        for row in bad:
            txn.delete(row.key, db=environment.db[row.state])
        events = [row.event() for row in bad[:_MOST_EVENTS]]
        if unnamed:
            events.append(StateTakenOut(message=_UNNAMED, state="", key="", value="").event())
        if compared.covered_seq >= 0:
            events += rows.listing(environment, history.redactor.text, txn, number, whole=True)
        return events

    await history.appending(prepare)
    said = [row.sentence for row in bad[:_MOST_SENTENCES]] or [_UNNAMED]
    if (more := len(bad) - _MOST_SENTENCES) > 0:
        where = "lactl events --topic daemon.history --type state_taken_out"
        said.append(f"{more} more rows of the stored state were invalid or altered and were removed: {where}")
    for sentence in said:
        _log.error("%s", sentence)
    return said


def _altered(row: BadRow) -> _Bad:
    end = " It was removed." if row.value is not None else ""
    sentence = f"{row.sentence[0].upper()}{row.sentence[1:]}.{end}"
    return _Bad(state=row.state, key=row.raw_key, value=row.value, sentence=sentence, most_bytes=_KEPT_BYTES)


def _invalid_rows(environment: Environment) -> list[_Bad]:
    """Raises StorageError."""
    found = []
    for state in (state for state in STATES if state in environment.db):
        with environment.reading() as txn:
            stored = list(ascending(txn, environment.db[state], b""))
        for key, value in stored:
            try:
                name, fields = entry(state, key, value)
                if read := _READERS.get(state):
                    with decoding(state, name):
                        read(name, fields)
            except HistoryDamaged as err:
                sentence = f"{err.message} It was removed."
                found.append(
                    _Bad(state=state, key=key, value=value, sentence=sentence, most_bytes=_SHOWN_BYTES)
                )
    return found
