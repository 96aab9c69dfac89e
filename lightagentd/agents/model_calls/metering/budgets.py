"""The limits of `[budgets]`, one by one, and the error for a turn that has used one up."""

from __future__ import annotations

from dataclasses import dataclass

from lightagentd.config.configuration import Budgets
from lightagentd.errors import BudgetExceeded

SCOPES = tuple(Budgets.model_fields)
"""The scopes that can have a budget: turn, session, owner, owner_day, day."""
_WHOSE = {
    "turn": "The budget of one turn",
    "session": "The budget of this session",
    "owner": "This user's budget",
    "owner_day": "This user's budget for one day",
    "day": "The daemon's budget for one day",
}
_REMEDY = {
    "turn": "Ask for less at once",
    "session": "Begin a new session",
    "owner": "Look at it with: lactl usage --budgets",
    "owner_day": "Go on after midnight UTC",
    "day": "Go on after midnight UTC",
}
_UNIT = {
    "tokens": "tokens",
    "cost": "in money",
    "steps": "steps",
    "calls": "tool calls",
    "wall_s": "seconds",
}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit: `what` is a field of `config.Budget`, `most` is in its unit."""

    scope: str
    what: str
    most: float


def limits_of(budgets: Budgets) -> tuple[Limit, ...]:
    """The limits that are set."""
    return tuple(
        Limit(scope=scope, what=what, most=most)
        for scope in SCOPES
        for what, most in getattr(budgets, scope)
        if most
    )


def budget_exceeded(limit: Limit, used: float) -> BudgetExceeded:
    """The error that says which budget is used up, and what to do next."""
    figures = f"{_figure(used)} of {_figure(limit.most)} {_UNIT[limit.what]}"
    return BudgetExceeded(
        f"{_WHOSE[limit.scope]} is used up: {figures}.",
        suggestion=f"{_REMEDY[limit.scope]}, or have an administrator raise"
        f" budgets.{limit.scope}.{limit.what} in the configuration.",
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6f}".rstrip("0")
