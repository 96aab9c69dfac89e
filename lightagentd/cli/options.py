"""The options that every command takes, before or after its name, and the connection to the daemon.

The `Settings` of one run of lactl are made in `main.run` and handed down by click as the context's object.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from lightagentd.cli.authorize import AskingClient
from lightagentd.client.blocking import Client
from lightagentd.errors import (
    ApprovalNotFound,
    DaemonUnreachable,
    LightagentError,
    MalformedMessage,
    NotFound,
    PermissionDenied,
)
from lightagentd.host import users

if TYPE_CHECKING:
    from lightagentd.client.remote import Remote

USAGE_STATUS = 2
_SENTENCE = 1000
"""Characters, more than any first sentence of a help has."""
STORED_INSTEAD = "Or read the store itself, which needs no daemon: add --stored."
"""For a command that has that option and finds no daemon; nothing falls back to it by itself."""
NOT_UNDERSTOOD = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ExceptionGroup)
"""What code raises that reads an answer of another shape, as the daemon of another host may give it."""
_SHOWN_CHARS = 100
_BOOTED = "/run/systemd/system"
"""Is there where systemd is the init system (sd_booted(3))."""
CALL_TIMEOUT_S = 60.0
"""How long an ordinary operation may take before lactl gives up; long ones name their own."""


@dataclass
class Settings:
    """The values of the common options."""

    json: bool = False
    socket: str = ""
    ask_password: bool = True
    store: Callable[[Settings], Client] | None = None
    """Makes a client of the store itself, where that is asked and not the daemon; see `cli.stored`."""
    may_be_stored: bool = False
    """Whether the command has an option for that."""
    state_dir: str = ""
    host: str = ""
    """The machine whose daemon is meant, as ssh takes it; empty for this one."""
    asks_default: bool = False
    """Whether the command line is words alone, a prompt to the default agent."""
    hosts: tuple[str, ...] = ()
    """Several of them; see `cli.several`."""

    def client(self, timeout_s: float | None = CALL_TIMEOUT_S) -> Client:
        """A client for the socket or host that was named, not yet connected."""
        if self.store is not None:
            return self.store(self)
        if self.host:  # polkit's agent would be asked there, and the terminal is here
            return Client(self.place, timeout_s=timeout_s)
        kind = AskingClient if self.ask_password else Client
        return kind(self.place, timeout_s=timeout_s)

    @property
    def place(self) -> str | Remote | None:
        """Where the daemon is, as clients take it. Raises UsageError for several hosts."""
        if self.hosts:
            raise click.UsageError("This takes one host: --host HOST. With --hosts go: prompt, status.")
        return self._remote if self.host else self.socket or None

    @cached_property
    def _remote(self) -> Remote:
        from lightagentd.client.remote import Remote

        return Remote(host=self.host, socket=self.socket, may_ask=self.ask_password)

    def uid(self) -> int:
        """The user that the daemon sees: on another host, the one who logs in there."""
        if not self.host:
            return os.geteuid()
        if self._remote.uid is None:
            with self.client():
                pass
        assert self._remote.uid is not None
        return self._remote.uid

    def there(self, text: str) -> str:
        """A text for a person, whose commands of lactl go to the host that is meant."""
        return re.sub(r"\blactl (?=[a-z])", f"lactl --host {self.host} ", text) if self.host else text

    def call(self, method: str, /, *, timeout_s: float | None = CALL_TIMEOUT_S, **parameters: Any) -> Any:
        """Make one call on a connection of its own and return the one parameter of its reply, or None."""
        with self.client(timeout_s) as client, self._told_of_waiting(client):
            reply = client.call(method, **parameters)
        return next(iter(reply.values()), None)

    @property
    def has_approver(self) -> bool:
        """Whether an approver is beside the daemon that is meant, or may be, on another host."""
        from lightagentd.client.approver import SOCKET, UNIT_FILE, socket_path
        from lightagentd.client.blocking import SYSTEM_SOCKET
        from lightagentd.client.blocking import socket_path as of_daemon

        if self.host or (named := socket_path()) != SOCKET:
            return bool(self.host) or os.access(named, os.F_OK)
        of_system = (self.socket or of_daemon()) == SYSTEM_SOCKET
        return of_system and UNIT_FILE.exists() and os.access(_BOOTED, os.F_OK)

    @property
    def approver(self) -> Settings:
        """The same for the approver of that machine."""
        from lightagentd.client.approver import SOCKET, socket_path

        return replace(self, socket=SOCKET if self.host else socket_path(), store=None)

    def approval(self, approval: str) -> dict[str, Any]:
        """An approval, which comes from the approver if that has to answer it. Raises ApprovalMismatch."""
        return self.question(self.call("Approvals.Get", approval=approval))

    def question(self, found: dict[str, Any]) -> dict[str, Any]:
        """An approval, or a turn event that asks for one, as it is at the approver if that has to answer it.
        Raises ApprovalMismatch.
        """
        from lightagentd.client.approver import (
            Question,
            approval_id,
            asks_approver,
            denies_approver,
            mismatch,
            question_of,
            without_request,
        )

        if not isinstance(found, Question) and denies_approver(found) and self.has_approver:
            raise mismatch(found, "who is asked")
        if not asks_approver(found):
            return found if isinstance(found, Question) else without_request(found)
        found = without_request(found)
        return question_of(found, self.approver.call("Approver.Get", approval=approval_id(found)))

    def asked(self, event: dict[str, Any]) -> dict[str, Any]:
        """A turn event, with the question as `question` has it, or with the `problem` of that."""
        if event["type"] != "approval_requested":
            return event
        try:
            return self.question(event)
        except LightagentError as err:
            from lightagentd.client.approver import unanswerable

            return unanswerable(event, err)

    def answer(self, method: str, found: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        """Approve or deny what was shown (`question`, or the approval itself), where it is answered. Gives
        the approval as it is then. Raises ApprovalMismatch.
        """
        from lightagentd.client.approver import answered, approval_id, approve_parameters

        name = approval_id(found)
        if found.get("approver"):
            try:
                if method == "Approvals.Approve":
                    found = self.question(found)
                    asked = approve_parameters(found, parameters)
                    return answered(found, self.approver.call("Approver.Approve", **asked))
                asked = {"approval": name, "note": parameters.get("note")}
                return answered(found, self.approver.call("Approver.Deny", **asked))
            except (DaemonUnreachable, ApprovalNotFound, PermissionDenied):
                if method == "Approvals.Approve":
                    raise  # a no is taken from more than people, by the daemon
        return dict(self.call(method, approval=name, **parameters))

    def _told_of_waiting(self, client: Client) -> AbstractContextManager[None]:
        """Tell a person at a terminal when an answer takes long; not where polkit's agent asks them."""
        if self.json or sys.stderr is None or not sys.stderr.isatty():
            return nullcontext()
        from lightagentd.cli.progress import waiting

        return waiting(lambda: not client.interactive)


def not_understood(host: str, err: Exception) -> MalformedMessage:
    """The error for an answer of another host that lacks what it should have."""
    why = f"{type(err).__name__}: {str(err)[:_SHOWN_CHARS]}"
    return MalformedMessage(
        f"{host} answered what this lactl does not understand: {why}.",
        suggestion="Check that lactl and the lightagentd there have the same version.",
    )


def setting(name: str, *, off: bool = False) -> dict[str, Any]:
    """An option that fills a field of the `Settings` instead of a parameter of its command."""

    def fill(context: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ARG001
        if value:
            setattr(context.ensure_object(Settings), name, False if off else value)

    return {"expose_value": False, "callback": fill}


def _set_host(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    from lightagentd.cli.places import hosts_of
    from lightagentd.client.remote import wrong_host

    settings = context.ensure_object(Settings)
    if parameter.name == "hosts":
        settings.hosts = hosts_of(value)
    elif why := wrong_host(value):
        raise click.UsageError(f"{why}.", context)
    else:
        settings.host = value
    users.tell_numbers(True)
    if settings.host and settings.hosts:
        raise click.UsageError("--host and --hosts cannot be used together.", context)


def _host_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Hosts of the user's configuration, and for --hosts its groups."""
    from lightagentd.cli.places import own

    try:
        found = own().hosts
    except LightagentError:
        return []
    names = {host for hosts in found.values() for host in hosts}
    names |= set(found if parameter.name == "hosts" else ())
    return sorted(name for name in names if name.startswith(incomplete))


def _common() -> list[click.Parameter]:
    socket = "The daemon's socket, instead of $LIGHTAGENT_SOCKET or the usual place."
    never = "Fail instead of asking for a password on the terminal."
    host = "The daemon of another machine, through ssh: [USER@]HOST."
    several = "Ask several at once: hosts and groups of hosts, with commas. For prompt and status."
    elsewhere: dict[str, Any] = {"expose_value": False, "callback": _set_host, "shell_complete": _host_names}
    return [
        click.Option(["--json"], is_flag=True, **setting("json"), help="Print JSON."),
        click.Option(["--socket"], metavar="PATH", shell_complete=files, **setting("socket"), help=socket),
        click.Option(["--host"], metavar="HOST", **elsewhere, help=host),
        click.Option(["--hosts"], metavar="HOST,...", **elsewhere, help=several),
        click.Option(["--no-ask-password"], is_flag=True, **setting("ask_password", off=True), help=never),
    ]


def _check_place(context: click.Context) -> None:
    """Raises UsageError for a command that cannot work on another host."""
    settings = context.ensure_object(Settings)
    if settings.host or settings.hosts:
        from lightagentd.cli.places import check_place

        check_place(context, settings)


class Command(click.Command):
    """A command with the common options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *_common()]

    def invoke(self, ctx: click.Context) -> Any:
        _check_place(ctx)
        try:
            return super().invoke(ctx)
        except NotFound as err:
            if err.field in ("file", "attachments") or not self._names_made_whole(ctx):
                raise
        return super().invoke(ctx)

    def _names_made_whole(self, ctx: click.Context) -> bool:
        """Whether a name was cut short, and there is one that is meant: so far nothing was done."""
        before = dict(ctx.params)
        for one in self.params:
            if isinstance(one, Named) and one.name and (written := before[one.name]):
                ctx.params[one.name] = one.whole(ctx.ensure_object(Settings), written)
        return ctx.params != before


class Named(click.Argument):
    """An argument that is one of the names in the daemon's lists. It may be cut short as long as it is the
    only one that begins so: when the daemon does not find it, `Command.invoke` makes it whole.
    """

    def __init__(
        self, declarations: Sequence[str], *, lists: Mapping[str, str], nouns: str, **attributes: Any
    ) -> None:
        """`lists` has methods, and the fields with the names in what they return."""
        completions = [names_of(method, field) for method, field in lists.items()]

        def complete(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
            return [name for names in completions for name in names(context, parameter, begin)]

        super().__init__(declarations, shell_complete=complete, **attributes)
        self._lists, self._nouns = lists, nouns

    def whole(self, settings: Settings, written: str) -> str:
        """The name that is meant; the text itself where there is none. One with a dot, such as that of a
        member of a kit, is meant if no other begins so. Raises InvalidArgument for an ambiguous one.
        """
        from lightagentd.cli.beginning import only_one

        if settings.hosts:
            return written
        try:
            names = [each[field] for name, field in self._lists.items() for each in settings.call(name)]
        except LightagentError:
            return written  # that the daemon does not find it is the better error
        plain = [name for name in names if name.startswith(written) and "." not in name]
        return only_one(written, lambda: plain if plain and written not in names else names, self._nouns)


class Group(click.Group):
    """A noun: a group of commands, which takes the common options too."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *_common()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a command the help is an error; click itself does that since 8.2, and Debian 13 has 8.1."""
        if not args and not ctx.resilient_parsing:
            if ctx.ensure_object(Settings).json:
                raise click.UsageError("Missing command.", ctx)
            click.echo(ctx.get_help(), err=True, color=ctx.color)
            ctx.exit(USAGE_STATUS)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises NoCommand."""
        if not ctx.resilient_parsing and args[0][:1] != "-" and self.get_command(ctx, args[0]) is None:
            from lightagentd.cli.mistakes import NoCommand

            raise NoCommand(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With the whole first sentence of each: click cuts it to one line."""
        if names := self.list_commands(ctx):
            with formatter.section("Commands"):
                self.write_commands(ctx, formatter, names)

    def write_commands(self, ctx: click.Context, formatter: click.HelpFormatter, names: list[str]) -> None:
        width = max(map(len, self.list_commands(ctx)))
        found = [(name.ljust(width), self.get_command(ctx, name)) for name in names]
        formatter.write_dl([(name, one.get_short_help_str(_SENTENCE)) for name, one in found if one])

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of the source, which begins with what is used most."""
        return list(self.commands)


class Listing(Group):
    """A noun that lists when no command is named; it has the options of the list itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"invoke_without_command": True, **kwargs})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Group.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        _check_place(ctx)
        return super().invoke(ctx)


def lists(context: click.Context) -> bool:
    """Whether a `Listing` is to list, because no command of it is named.

    Raises UsageError for an option of the list before the name of a command: there it would do nothing.
    """
    if context.invoked_subcommand is None:
        return True
    for one in context.command.params:
        said = context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
        if said and one.expose_value:
            raise click.UsageError(
                f"{one.opts[0]} goes with the list, not before {context.invoked_subcommand!r}.", context
            )
    return False


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Names of files and folders; the shell completes these itself."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(method: str, field: str, **parameters: Any) -> Completion:
    """Completions from a field of a method's list; nothing when the daemon does not answer."""

    def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
        found = _listed(context, method, **parameters)
        return [each[field] for each in found if each[field].startswith(incomplete)]

    return names


def words_of(words: Callable[[], Iterable[str]]) -> Completion:
    """Completions from words that need no daemon."""

    def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
        return sorted({word for word in words() if word.startswith(incomplete)})

    return names


def _listed(context: click.Context, method: str, **parameters: Any) -> list[dict[str, Any]]:
    settings = context.ensure_object(Settings)
    settings.ask_password = False
    try:
        return list(settings.call(method, timeout_s=4.0 if settings.host else 1.0, **parameters))
    except LightagentError:
        return []


agent_names = names_of("Agents.List", "name")
AGENT: dict[str, Any] = {"cls": Named, "lists": {"Agents.List": "name"}, "nouns": "agents"}
"""The attributes of an argument that is an agent."""
tool_names = names_of("Tools.List", "name")
model_names = names_of("Models.List", "model", all=True)


def action_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Completions of TOOL.ACTION."""
    found = _listed(context, "Tools.List")
    names = (f"{tool['name']}.{action['name']}" for tool in found for action in tool["actions"])
    return [name for name in names if name.startswith(incomplete)]


def agent_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument AGENT."""
    return click.argument("agent", **AGENT)(function)


def of_agent(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --agent of what shows an agent's own things beside those of all agents."""
    told = "With what this agent has of its own."
    option = click.option("--agent", metavar="AGENT", default="", shell_complete=agent_names, help=told)
    return option(function)
