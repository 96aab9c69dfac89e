"""Which rules are in force, and which budget is used up."""

from __future__ import annotations

from lightagentd.events.model import Event
from lightagentd.events.types.event_type import ERROR, NOTICE, Objects, Reported, Text


class RulesLoaded(Reported, topic="policy.rules", type="loaded"):
    """The rules of policy.d were read, and are in force."""

    catalog = """Rules of policy were taken
    The rules below /etc/lightagentd/policy.d are in force. The history has the SHA-256 of each file.
    > What is in force: lactl policy list. What past calls would be decided otherwise: lactl policy replay"""
    folder: Text
    rules: int
    guards: int = 0
    files: Objects
    """`name` and `sha256` of each."""
    sha256: Text
    """Over all files."""


class RuleWritten(Reported, topic="policy.rules", type="written"):
    """An administrator had a rule written that was proposed from an approval."""

    priority = NOTICE
    catalog = """A rule of policy was written
    The user with uid @CALLER_UID@ had the daemon write a rule that allows one exact call from now on.
    > What it allows: lactl policy list. To take it back, remove its file below /etc/lightagentd/policy.d,
    then: lactl reload"""
    message: Text
    path: Text
    approval: Text
    sha256: Text
    by: int


class RulesBroken(Reported, topic="policy.rules", type="broken"):
    """The rules of policy.d cannot be read; those that were in force still are."""

    priority = ERROR
    catalog = """Rules of policy are broken; the old ones stay
    A file below /etc/lightagentd/policy.d could not be taken at a reload, so none of the new rules are in
    force, and those from before are. With such a file the daemon would not start.
    > What is wrong: lactl policy check. When it is mended: systemctl reload lightagentd"""
    message: Text
    sha256: Text
    """Of the rules that are in force."""


class GuardActed(Reported, topic="policy.guard", type="acted", source="agent"):
    """A guard found something in a text. The event never has the text."""

    priority = NOTICE
    catalog = """A guard of @AGENT@ found something in a text
    A guard of policy.d found what it looks for in a prompt, an attachment, an answer, a tool's result, a
    memory or an event of the agent @AGENT@, in the turn @TRACE_ID@, and did what the message says.
    > What the guard is: lactl policy guards. All that guards did: lactl history query --topic policy.guard"""
    guard: Text
    on: Text
    action: Text
    """`block`, `redact`, `ask` or `tag`."""
    count: int
    """How many matches it found."""
    sha256: Text
    """Of the whole text as it was: that of a match alone could be guessed."""
    tag: Text = ""
    unsure: bool = False
    """Whether a pattern took too long, so that the whole text counts as a match."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        data = event.data or {}
        return f"guard {data.get('guard', '')}: {data.get('action', '')} on {data.get('on', '')}"


class BudgetUsedUp(Reported, topic="budget.exceeded", type="exceeded", source="agent"):
    """A model call or a tool call was not made, because a budget is used up."""

    priority = NOTICE
    catalog = """A budget of @AGENT@ is used up
    A model call or a tool call in the turn @TRACE_ID@ was not made, because the budget that the message names
    is used up, and the turn ended. It was made for the user with uid @CALLER_UID@.
    > What is used, and the limits: lactl usage --budgets. They are set in [budgets] of the configuration."""
    scope: Text
    name: Text
    """Whose budget in that scope: a trace, a session, a uid, a day."""
    what: Text
    used: float | int
    limit: float | int
    message: Text
