"""The options that select events; every command that lists events takes the same ones."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click

from lightagentd.cli.beginning import is_whole
from lightagentd.cli.options import Settings, agent_names, tool_names, words_of
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.cli.trace_name import trace_ids, whole_trace
from lightagentd.cli.when import FORMS, since_time
from lightagentd.errors import NotFound

_EFFECTS = ("observe", "reach", "change")
_DECISIONS = ("allow", "ask", "deny")


def uid(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The callback of an option that takes a user."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return int(value)
    try:
        return pwd.getpwnam(value).pw_uid
    except KeyError as err:
        raise click.BadParameter(f"there is no user {value!r}.", context, parameter) from err


def _declared(part: int) -> Iterable[str]:
    """Topics (0) or types (1) of events, without those that stand for many."""
    from lightagentd.events.types.registry import all_types

    return [each[part] for each in all_types() if "*" not in each[part]]


_OPTIONS = {
    "agent": click.option(
        "--agent", metavar="NAME", shell_complete=agent_names, help="Only events of this agent."
    ),
    "session": click.option(
        "--session", metavar="SESSION", shell_complete=session_ids, help="Only events of this session."
    ),
    "topic": click.option(
        "--topic",
        metavar="TOPIC",
        shell_complete=words_of(partial(_declared, 0)),
        help="Only this topic and those below it, such as 'tool'; several with commas.",
    ),
    "type": click.option(
        "--type",
        metavar="TYPE",
        shell_complete=words_of(partial(_declared, 1)),
        help="Only events of this type, such as 'invocation'.",
    ),
    "tool": click.option(
        "--tool",
        metavar="TOOL",
        shell_complete=tool_names,
        help="Only what is about this tool, such as 'bash'.",
    ),
    "effect": click.option("--effect", type=click.Choice(_EFFECTS), help="Only calls with this effect."),
    "decision": click.option(
        "--decision", type=click.Choice(_DECISIONS), help="Only calls that were decided so."
    ),
    "caller": click.option(
        "--caller", metavar="USER", callback=uid, help="Only what this user (a name or a uid) caused."
    ),
    "trace": click.option(
        "--trace", metavar="TRACE", shell_complete=trace_ids, help="Only events of this turn."
    ),
    "request": click.option(
        "--request", metavar="REQUEST", help="Only events of this model call and its tool calls."
    ),
    "text": click.option(
        "--text", metavar="TEXT", help="Only events that hold this text, in any case of letters."
    ),
}
_NAMES = {"since": "since_us", "until": "until_us"}
"""The parameters that are not called as the options are."""


def filter_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options with these names, or all but the times. The command passes their values to `wanted`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names or tuple(_OPTIONS)):
            function = _OPTIONS[name](function)
        return function

    return decorate


def time_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options --since and --until."""
    function = until_option(function)
    option = click.option("--since", metavar="TIME", callback=since_time, help=f"Not before {FORMS}.")
    return option(function)


def until_option(function: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option("--until", metavar="TIME", callback=since_time, help="Not after such a time.")
    return option(function)


def wanted(settings: Settings, options: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the daemon's methods from these options. Raises NotFound, InvalidArgument."""
    found = {_NAMES.get(name, name): value for name, value in options.items()}
    if found.get("session"):
        found["session"] = whole_session(settings, found["session"])
    if found.get("trace"):
        found["trace"] = whole_trace(settings, found["trace"])
    for name, ids in (("trace", "lactl trace list"), ("request", "lactl trace show TRACE")):
        if found.get(name) and not is_whole(found[name]):
            raise NotFound(f"There is no {name} {found[name]!r}.", suggestion=f"Run: {ids}", field=name)
    return found
