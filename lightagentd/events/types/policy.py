"""Which rules are in force, and which budget is used up."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind, Objects, Text


class RulesLoaded(Kind, topic="policy.rules", type="loaded"):
    """The rules of policy.d were read, and are in force."""

    folder: Text
    rules: int
    files: Objects
    """`name` and `sha256` of each."""
    sha256: Text
    """Over all files."""


class RulesBroken(Kind, topic="policy.rules", type="broken"):
    """The rules of policy.d cannot be read; those that were in force still are."""

    message: Text
    sha256: Text
    """Of the rules that are in force."""


class BudgetUsedUp(Kind, topic="budget.exceeded", type="exceeded", source="agent"):
    """A model call or a tool call was not made, because a budget is used up."""

    scope: Text
    name: Text
    """Whose budget in that scope: a trace, a session, a uid, a day."""
    what: Text
    used: float | int
    limit: float | int
    message: Text
