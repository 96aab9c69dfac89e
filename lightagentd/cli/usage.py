"""`lactl usage`: what agents used, and the budgets that limit it."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import Columns, listing
from lightagentd.cli.redrawn import watchable
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.cli.terminal import is_terminal
from lightagentd.errors import InvalidArgument

SCOPES = ("session", "turn", "agent", "owner", "owner_day", "day", "all")


@click.command("usage", cls=Command)
@click.option(
    "--by",
    "scope",
    type=click.Choice(SCOPES),
    help="What each line is about: a session (the default), a turn, an agent, a user, a user's day, a day, "
    "or everything. Days are those of UTC; 'day' and 'all' are for administrators.",
)
@click.option(
    "--session",
    metavar="SESSION",
    shell_complete=session_ids,
    help="This session alone, or with --by turn its turns.",
)
@click.option("--budgets", is_flag=True, help="Show the limits that apply, and how much of each is used.")
@watchable("agent.llm_response,session.turn")
@click.pass_obj
def command(settings: Settings, scope: str | None, session: str | None, budgets: bool) -> None:
    """Show what agents used: model calls, tokens, tool calls, money and time.

    The columns: name, turns, steps (model calls), tool calls, tokens, cost, seconds, and of the tokens
    those of prompts, those of answers, and those of prompts that the endpoint had cached. The cost is '-'
    where no price is known (see 'lactl models show'), and lacks the steps without one.

    With --budgets the columns are: scope, name, what is limited, used, limit.
    """
    session = whole_session(settings, session) if session else None
    if budgets:
        if scope:
            raise InvalidArgument("--budgets goes with --session, not with --by.", field="by")
        none = "No budgets are configured ([budgets.SCOPE] in the configuration)."
        listing(settings, settings.call("Usage.Budgets", session=session), _BUDGETS, empty=none)
        return
    if session and scope not in (None, "session", "turn"):
        raise InvalidArgument("--session goes with --by session and --by turn.", field="session")
    found = settings.call("Usage.Get", scope=scope or "session", name=session)
    listing(
        settings,
        found,
        _COLUMNS,
        spare=("CACHED", "ANSWER", "PROMPT", "SECONDS", "CALLS"),
        empty="Nothing was used yet.",
    )


def amount(what: str, value: float) -> str:
    """What of a budget is used, or its limit."""
    return f"{value:.2f}" if what == "cost" else number(round(value))


def number(value: int) -> str:
    """A whole number; a person gets separators between the thousands."""
    return f"{value:,}" if is_terminal() else str(value)


def money(used: dict[str, Any]) -> str:
    """A cost with two digits, more where it is less than a cent; `-` when no price is known."""
    cost = used["cost"]
    if not cost:
        return "-" if used["steps_without_price"] or used["steps_without_usage"] else "0.00"
    return f"{cost:.2f}" if cost >= 0.01 else f"{cost:.2g}"


_COLUMNS: Columns = {
    "NAME": "name",
    "TURNS": lambda used: number(used["turns"]),
    "STEPS": lambda used: number(used["steps"]),
    "CALLS": lambda used: number(used["calls"]),
    "TOKENS": lambda used: number(used["total_tokens"]),
    "COST": money,
    "SECONDS": lambda used: number(round(used["wall_ms"] / 1000)),
    "PROMPT": lambda used: number(used["prompt_tokens"]),
    "ANSWER": lambda used: number(used["completion_tokens"]),
    "CACHED": lambda used: number(used["cached_tokens"]),
}
_BUDGETS: Columns = {
    "SCOPE": "scope",
    "NAME": "name",
    "WHAT": "what",
    "USED": lambda budget: amount(budget["what"], budget["used"]),
    "LIMIT": lambda budget: amount(budget["what"], budget["limit"]),
}
