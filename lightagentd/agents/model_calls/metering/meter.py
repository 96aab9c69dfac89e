"""Measures what one turn uses, and checks it against the budgets.

Each turn makes and owns a `Meter`. Every model call passes `Meter.check` and is then counted with
`Meter.count`; `call.model_call` does both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from lightagentd.agents.model_calls.metering.budgets import Limit, budget_exceeded
from lightagentd.agents.model_calls.metering.ledger import Counters, Ledger, Whose, today
from lightagentd.events.history import Change
from lightagentd.events.types.policy import BudgetUsedUp
from lightagentd.llm.protocol import Usage


class Meter:
    """The usage of one turn. Its clock runs between `run` and `stop`."""

    def __init__(self, ledger: Ledger, whose: Whose, *, wall_ms: int = 0) -> None:
        """`wall_ms` is time that an earlier run of the daemon measured but did not count."""
        self.ledger = ledger
        self.whose = whose
        self._passed_ms = float(wall_ms)
        self._since: float | None = None
        self.asks = False
        """Whether a model call is on its way that is not counted yet."""

    @property
    def wall_ms(self) -> int:
        """The running time that is not counted yet."""
        running = 0.0 if self._since is None else (time.monotonic() - self._since) * 1000
        return int(self._passed_ms + running)

    @property
    def on(self) -> bool:
        """Whether the turn runs; its clock may be stopped meanwhile."""
        return self in self.ledger.meters

    def run(self) -> None:
        """Start the clock."""
        self.ledger.meters.add(self)
        if self._since is None:
            self._since = time.monotonic()

    def pause(self) -> None:
        """Stop the clock, for example while a person is asked."""
        if self._since is not None:
            self._passed_ms += (time.monotonic() - self._since) * 1000
            self._since = None

    def stop(self) -> None:
        """Stop the clock: the turn is over for this run of the daemon."""
        self.pause()
        self.ledger.meters.discard(self)

    def count(self, model: str, usage: Usage | None, *, calls: int = 0, known: bool = True) -> list[Change]:
        """Count a model call and its tool calls; the changes must commit with its event.

        `known`: the usage is no estimate.
        """
        self.asks = False
        more = Counters(steps=1, calls=calls, steps_without_usage=int(usage is None or not known))
        if usage is not None:
            more.prompt_tokens = usage.prompt_tokens
            more.completion_tokens = usage.completion_tokens
            more.cached_tokens = usage.cached_tokens
            cost = self.ledger.cost(model, usage)
            more.cost, more.steps_without_price = (0.0, int(known)) if cost is None else (cost, 0)
        return self._add(more)

    def ending(self) -> list[Change]:
        """The changes for the turn's end: the rest of its time, and the turn itself."""
        return self._add(Counters())

    def _add(self, more: Counters) -> list[Change]:
        more.wall_ms = self.wall_ms
        self._passed_ms -= more.wall_ms
        return self.ledger.add(self.whose, more)

    def totals(self) -> dict[str, Any]:
        """The turn's figures so far, for its last event."""
        used = self.ledger.row(self.whose.key_of("turn", "")).counters
        return {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "cached_tokens": used.cached_tokens,
            "total_tokens": used.total_tokens,
            "cost": None if used.steps_without_price else round(used.cost, 9),
            "calls": used.calls,
        }

    def usage(self) -> dict[str, Any]:
        """What the models used in the turn so far."""
        found = self.totals()
        del found["calls"]
        return found

    async def check(self) -> None:
        """Check that a model call may run. Raises BudgetExceeded after its event is stored."""
        if not self.ledger.limits:
            return
        day = today()
        for limit in self.ledger.limits:
            used = self.used(limit, day)
            if used >= limit.most:
                await self._exceeded(limit, used, day)

    async def refuse_calls(self) -> None:
        """Refuse a tool call. Raises BudgetExceeded after its event is stored."""
        day = today()
        of_calls = [limit for limit in self.ledger.limits if limit.what == "calls"]
        for limit in sorted(of_calls, key=lambda limit: limit.most - self.used(limit, day))[:1]:
            await self._exceeded(limit, self.used(limit, day), day)

    def room_for_calls(self, wanted: int) -> int:
        """How many of the tool calls that a model wants the budgets allow."""
        day = today()
        rooms = [
            int(limit.most - self.used(limit, day)) for limit in self.ledger.limits if limit.what == "calls"
        ]
        return max(0, min([wanted, *rooms]))

    def used(self, limit: Limit, day: str) -> float:
        """How much of a limit is used on a day, the running turns included: in the row, of the own one and
        those of the turns above, where it is most.
        """
        return self._most_used(limit, day)[0]

    def _most_used(self, limit: Limit, day: str) -> tuple[float, str]:
        """As `used`, with the key of that row."""
        keys = self.whose.keys_in(limit.scope, day)
        return max(((self._used_in(key, limit, day), key) for key in keys), default=(0.0, ""))

    def _used_in(self, key: str, limit: Limit, day: str) -> float:
        used = self.ledger.row(key).counters.used(limit.what)
        if limit.what in ("wall_s", "steps"):
            used += sum(
                meter.wall_ms / 1000 if limit.what == "wall_s" else meter.asks
                for meter in self.ledger.meters
                if key in meter.whose.keys_in(limit.scope, day)
            )
        return used

    async def _exceeded(self, limit: Limit, used: float, day: str) -> None:
        name = self._most_used(limit, day)[1].partition("/")[2]
        failure = budget_exceeded(limit, used)
        used_up = BudgetUsedUp(
            scope=limit.scope,
            name=name,
            what=limit.what,
            used=round(used, 6),
            limit=limit.most,
            message=failure.message,
        )
        await self.ledger.history.append(used_up.event())
        raise failure


def used_of(ledger: Ledger, whose: Whose) -> Iterable[tuple[Limit, str, float]]:
    """Each limit that applies, the name in its scope, and how much is used. Without a session or a running
    turn, the limits of that scope have an empty name and no usage.
    """
    meter, day = Meter(ledger, whose), today()
    for limit in ledger.limits:
        yield limit, whose.key_of(limit.scope, day).partition("/")[2], meter.used(limit, day)
