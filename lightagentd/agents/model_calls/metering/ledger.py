"""Counts usage in every scope: tokens, money, steps, calls and time.

The daemon has one `Ledger`, which owns the stored state `usage`. While the daemon runs, the sums in memory
count. Each change commits with the event of the model call that it counts, and writes the sum as of its
append. So concurrent turns add up, and after a crash the figures match the stored events.

A turn counts through its `meter.Meter`.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lightagentd.agents.model_calls.metering.budgets import Limit, limits_of
from lightagentd.config.configuration import Budgets
from lightagentd.errors import NotFound
from lightagentd.events.context import current_context
from lightagentd.events.history import Change, History
from lightagentd.events.store.states import checked, decoding
from lightagentd.llm.protocol import Usage

if TYPE_CHECKING:
    from lightagentd.agents.model_calls.metering.meter import Meter
    from lightagentd.llm.metadata.price import Price

SCOPES = ("turn", "session", "agent", "owner", "owner_day", "day", "all")
"""Those that can be looked at. Of `client_day`, for the limits of tokens, only today's rows are kept."""
KEPT_TURNS = 10_000
"""Turns whose own figures are kept, the newest of them."""
KEPT_DAYS = 400
_KEPT_IN_MEMORY = 1024
"""Rows in memory. One beyond that is read again when it is needed; it was stored long before. Most rows are
those of turns that are over: more of them would only be memory that grows for days."""
_STATE = "usage"


@dataclass(kw_only=True, slots=True)
class Counters:
    """What was used. `wall_ms` is the time of turns, without the time spent waiting for a person."""

    turns: int = 0
    steps: int = 0
    steps_without_usage: int = 0
    steps_without_price: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    wall_ms: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, more: Mapping[str, Any]) -> None:
        """Add other counters, as `to_dict` gave them."""
        for name, value in more.items():
            setattr(self, name, getattr(self, name) + value)

    def used(self, what: str) -> float:
        """The usage of one field of `config.Budget`."""
        if what == "tokens":
            return self.total_tokens
        return self.wall_ms / 1000 if what == "wall_s" else float(getattr(self, what))

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not zero."""
        return {name: value for name in _NAMES if (value := getattr(self, name))}


_NAMES = tuple(each.name for each in fields(Counters))


@dataclass(frozen=True, kw_only=True)
class Whose:
    """To whom usage is counted. All fields but the owner may be empty."""

    agent: str
    owner: int
    session: str = ""
    trace_id: str = ""
    client: str = field(default_factory=lambda: current_context().client)
    above: Whose | None = None
    """The turn that had this one made: what a child uses counts for it, too."""

    def keys(self, day: str) -> dict[str, str]:
        """The scopes to count in, and the key of the own row in each."""
        found = {"turn": f"turn/{self.trace_id}"} if self.trace_id else {}
        if self.session:
            found["session"] = f"session/{self.session}"
        if self.agent:
            found["agent"] = f"agent/{self.agent}"
        if self.client:
            found["client_day"] = _of_client(day, self.client)
        return found | {
            "owner": f"owner/{self.owner}",
            "owner_day": f"owner_day/{day}/{self.owner}",
            "day": f"day/{day}",
            "all": "all/all",
        }

    def rows(self, day: str) -> dict[str, str]:
        """The key of each row to count in, those of the turns above among them, and its scope."""
        above = self.above.rows(day) if self.above is not None else {}
        return {key: scope for scope, key in self.keys(day).items()} | above

    def keys_in(self, scope: str, day: str) -> list[str]:
        """The keys of the rows in one scope, the own one first; empty where there is none."""
        return [key for key, of_scope in self.rows(day).items() if of_scope == scope]

    def key_of(self, scope: str, day: str) -> str:
        """The key of the own row in one scope; empty where there is none."""
        return self.keys(day).get(scope, "")


@dataclass(kw_only=True, slots=True)
class Row:
    """The usage in one scope. In a turn's row, `whose` tells whose turn it was."""

    key: str
    counters: Counters = field(default_factory=Counters)
    """What was used, with what is not appended yet."""
    appended: Counters = field(default_factory=Counters)
    """The sums that were given to the history last."""
    unsettled: int = 0
    """How many changes are not appended yet."""
    updated_us: int = 0
    whose: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]

    @classmethod
    def from_dict(cls, key: str, value: Mapping[str, Any]) -> Row:
        """The sum that was stored. Raises HistoryDamaged."""
        with decoding(_STATE, key):
            checked(dict(value), whose=dict, updated_us=int, **dict.fromkeys(_NAMES, (int, float)))
            counted = {name: value[name] for name in _NAMES if name in value}
            return cls(
                key=key,
                counters=Counters(**counted),
                appended=Counters(**counted),
                updated_us=value["updated_us"],
                whose=dict(value.get("whose", {})),
            )

    def add(self, more: Mapping[str, Any]) -> Change:
        """Count usage; the change must be appended, once."""
        self.counters.add(more)
        self.unsettled += 1
        return _Sum(state=_STATE, key=self.key, value=None, row=self, more=more)

    def stored(self) -> dict[str, Any]:
        """The row as it is stored."""
        whose = {"whose": self.whose} if self.whose else {}
        return {**self.appended.to_dict(), "updated_us": self.updated_us, **whose}


@dataclass(frozen=True, kw_only=True)
class _Sum(Change):
    """The change of a row. Its sum is computed at the append, after the changes of other turns."""

    row: Row
    more: Mapping[str, Any]

    def settled(self) -> Change:
        self.row.appended.add(self.more)
        self.row.unsettled -= 1
        return Change(state=self.state, key=self.key, value=self.row.stored())


class Ledger:
    """Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(
        self, history: History, budgets: Budgets, price_of: Callable[[str], Price | None] | None = None
    ) -> None:
        """`price_of` gives a model's price, if known."""
        self._price_of = price_of
        self.meters: set[Meter] = set()
        """Those of the turns that run now."""
        self.history = history
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._turns: dict[str, None] = {}
        """The keys of the stored turns, the oldest first."""
        self._day = ""
        self.limits: tuple[Limit, ...] = ()
        self.take_budgets(budgets)

    def take_budgets(self, budgets: Budgets) -> None:
        """Use new limits from now on, also for running turns."""
        self.limits = limits_of(budgets)

    def load(self) -> None:
        """Read which turns are stored. Raises StorageError."""
        stored = self.history.queries.state(_STATE, "turn/")
        rows = [Row.from_dict(key, value) for key, value in stored.items()]
        self._turns = dict.fromkeys(row.key for row in sorted(rows, key=lambda row: row.updated_us))

    def row(self, key: str) -> Row:
        """The usage for the key of a scope; all zero when there is none. Raises StorageError."""
        row = self._rows.get(key)
        if row is None:
            try:
                row = Row.from_dict(key, self.history.queries.state_of(_STATE, key))
            except NotFound:
                row = Row(key=key)
            self._rows[key] = row
            if len(self._rows) > _KEPT_IN_MEMORY:
                self._forget_oldest()
        else:
            self._rows.move_to_end(key)
        return row

    def _forget_oldest(self) -> None:
        """Drop one row from memory: the least recently used one whose sum is appended."""
        for key, row in self._rows.items():
            if not row.unsettled:
                del self._rows[key]
                return

    def tokens_today(self, client: str) -> int:
        """What models used today for a client, as `EventContext.client` names it. Raises StorageError."""
        return self.row(_of_client(today(), client)).counters.total_tokens

    async def rows(self, scope: str) -> list[Row]:
        """All usage in one kind of scope, ordered by key. Raises StorageError."""
        stored = await asyncio.to_thread(self.history.queries.state, _STATE, f"{scope}/")
        return self._with_newer(scope, stored)

    def _with_newer(self, scope: str, stored: Mapping[str, Mapping[str, Any]]) -> list[Row]:
        found = {key: Row.from_dict(key, value) for key, value in stored.items()}
        prefix = f"{scope}/"
        found |= {key: row for key, row in self._rows.items() if key.startswith(prefix) and row.updated_us}
        return [found[key] for key in sorted(found)]

    def forget_session(self, session: str) -> Change:
        """The change for a session's deletion; its usage stays in the other scopes."""
        key = f"session/{session}"
        self._rows.pop(key, None)
        return Change(state=_STATE, key=key, value=None)

    def cost(self, model: str, usage: Usage) -> float | None:
        """What a model call cost; None when no price is known."""
        if not usage.prompt_tokens and not usage.completion_tokens:
            return 0.0
        price = self._price_of(model) if self._price_of is not None else None
        return None if price is None else price.cost(usage)

    def add(self, whose: Whose, more: Counters) -> list[Change]:
        """Count usage in every scope; the changes must be appended, once."""
        now = time.time_ns() // 1000
        day = day_of(now)
        changes: list[Change] = []
        if whose.trace_id and not self.row(whose.key_of("turn", day)).counters.turns:
            more.turns = 1
            changes += self._begin_turn(whose.key_of("turn", day))
        if day != self._day:
            self._day = day
            changes += self._forget_days(now)
        added, own = more.to_dict(), {*whose.keys(day).values()}
        for key in whose.rows(day):
            row = self.row(key)
            row.updated_us = now
            if key == whose.key_of("turn", day):
                row.whose = {"agent": whose.agent, "owner": whose.owner, "session": whose.session}
            # A child's turn is none of the turns of those above.
            counted = (
                added if key in own else {name: value for name, value in added.items() if name != "turns"}
            )
            changes.append(row.add(counted))
        return changes

    def _begin_turn(self, key: str) -> list[Change]:
        self._turns[key] = None
        changes: list[Change] = []
        while len(self._turns) > KEPT_TURNS:
            oldest = next(iter(self._turns))
            del self._turns[oldest]
            self._rows.pop(oldest, None)
            changes.append(Change(state=_STATE, key=oldest, value=None))
        return changes

    def _forget_days(self, now_us: int) -> list[Change]:
        first = day_of(now_us - KEPT_DAYS * 86_400_000_000)
        old = [
            row.key
            for scope, before in (("day", first), ("owner_day", first), ("client_day", day_of(now_us)))
            for row in self._with_newer(scope, self.history.queries.state(_STATE, f"{scope}/"))
            if row.name.partition("/")[0] < before
        ]
        for key in old:
            self._rows.pop(key, None)
        return [Change(state=_STATE, key=key, value=None) for key in old]


def _of_client(day: str, client: str) -> str:
    return f"client_day/{day}/{client}"


def day_of(time_us: int) -> str:
    """The day in UTC, as YYYY-MM-DD."""
    return datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC).date().isoformat()


def today() -> str:
    return day_of(time.time_ns() // 1000)
