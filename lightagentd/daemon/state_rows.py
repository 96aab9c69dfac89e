"""Takes invalid rows out of the stored state at a start, so that none of them keeps the daemon from serving.

State is not part of the chain (see `events.store.states`): a failing disk, or whoever can write the file, may
leave a row that its readers refuse. `take_out_invalid` reads each row as they do, once, before any of them.
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
from lightagentd.events.history import History, NewEvent
from lightagentd.events.store.layout import STATES, Environment, ascending
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
}
"""How the parts of the daemon read a row. Where this says nothing, `states.entry` says what it must have."""
_SHOWN_BYTES = 2000
"""So much of an invalid row is stored in the event about it."""
_MOST_EVENTS, _MOST_SENTENCES = 1000, 3
"""So many rows have an event of their own, or a sentence in the log and in `status`."""


@dataclass(frozen=True, kw_only=True)
class _Invalid:
    state: str
    key: bytes
    value: bytes
    why: str

    @property
    def sentence(self) -> str:
        return f"{self.why} It was removed."

    def event(self) -> NewEvent:
        shown = self.value[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
        key = self.key.decode("utf-8", "backslashreplace")
        return StateTakenOut(message=self.sentence, state=self.state, key=key, value=shown).event()


async def take_out_invalid(history: History) -> list[str]:
    """Remove the invalid rows and store events about them, in one transaction. Gives sentences about them.
    Raises StorageError.
    """
    invalid = await asyncio.to_thread(_invalid_rows, history.environment)
    if not invalid:
        return []

    def prepare(txn: Any, _: int) -> list[NewEvent]:
        for row in invalid:
            txn.delete(row.key, db=history.environment.db[row.state])
        return [row.event() for row in invalid[:_MOST_EVENTS]]

    await history.appending(prepare)
    said = [row.sentence for row in invalid[:_MOST_SENTENCES]]
    if more := len(invalid) - len(said):
        where = "lactl events --topic daemon.history --type state_taken_out"
        said.append(f"{more} more rows of the stored state could not be read and were removed: {where}")
    for sentence in said:
        _log.error("%s", sentence)
    return said


def _invalid_rows(environment: Environment) -> list[_Invalid]:
    """Raises StorageError."""
    found = []
    for state in (state for state in STATES if state in environment.db):
        with environment.reading() as txn:
            rows = list(ascending(txn, environment.db[state], b""))
        for key, value in rows:
            try:
                name, fields = entry(state, key, value)
                if read := _READERS.get(state):
                    with decoding(state, name):
                        read(name, fields)
            except HistoryDamaged as err:
                found.append(_Invalid(state=state, key=key, value=value, why=err.message))
    return found
