"""The commands of lactl as click has them, in the order of the help."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import click

from lightagentd.cli.main import lactl

COMMON = ("--json", "--socket", "--host", "--hosts", "--no-ask-password", "--help")
"""Options that every command has."""


@dataclass(frozen=True)
class Command:
    """One command; `path` is empty for lactl itself."""

    path: tuple[str, ...]
    context: click.Context

    @property
    def name(self) -> str:
        return " ".join(("lactl", *self.path))

    @property
    def does_something(self) -> bool:
        """Not a group that only holds commands."""
        command = self.context.command
        return not isinstance(command, click.Group) or command.invoke_without_command

    @property
    def help(self) -> str:
        """The whole help text, with its examples indented."""
        text = inspect.cleandoc(self.context.command.help or "")
        return "\n\n".join(_example(part) if part.startswith("\b\n") else part for part in text.split("\n\n"))

    @property
    def summary(self) -> str:
        """The first sentence of the help."""
        return self.help.partition("\n\n")[0].replace("\n", " ").rstrip(".")

    def options(self, *, common: bool = False) -> list[click.Option]:
        """The options in the order of the help; those of every command only with `common`."""
        params = self.context.command.get_params(self.context)
        options = [one for one in params if isinstance(one, click.Option) and not one.hidden]
        return [one for one in options if common or not set(one.opts) & set(COMMON)]

    def arguments(self) -> list[click.Argument]:
        return [one for one in self.context.command.params if isinstance(one, click.Argument)]

    def usage(self) -> list[str]:
        """The arguments as the usage line shows them."""
        return [metavar(argument, self) for argument in self.arguments()]


def _example(paragraph: str) -> str:
    """A paragraph that click does not wrap, indented as an example."""
    return textwrap.indent(textwrap.dedent(paragraph.removeprefix("\b\n")), "    ")


def words(option: click.Option) -> list[str]:
    """All spellings of an option, short ones first."""
    return sorted((*option.opts, *option.secondary_opts), key=lambda word: (word.startswith("--"), word))


def value(option: click.Option, command: Command) -> str:
    """The placeholder of an option's value; empty for a flag."""
    return "" if option.is_flag or option.count else metavar(option, command)


def metavar(param: click.Parameter, command: Command) -> str:
    """The placeholder of a parameter, as the help shows it."""
    if inspect.signature(param.make_metavar).parameters:  # since click 8.2
        return param.make_metavar(command.context)
    return param.make_metavar()  # type: ignore[call-arg]


def commands() -> Iterator[Command]:
    """lactl, then every command below it, groups before what they hold."""
    yield from _below(Command((), click.Context(lactl, info_name="lactl", **lactl.context_settings)))


def _below(command: Command) -> Iterator[Command]:
    yield command
    group = command.context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(command.context):
            inner = group.get_command(command.context, name)
            assert inner is not None
            context = click.Context(inner, info_name=name, parent=command.context)
            yield from _below(Command((*command.path, name), context))
