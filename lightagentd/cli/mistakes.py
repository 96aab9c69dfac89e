"""Says what is wrong with a command line. click's own words name its types, and change with its version."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import click

NEAR = 0.7
"""How like a command a mistyped one must be (difflib)."""
NEAR_OF_WORDS = 0.8
"""How like one the first of several words must be: `what is wrong?` is no `wait`."""


class NoCommand(click.UsageError):
    """There is no such command; `known` could stand in its place."""

    def __init__(
        self, context: click.Context, word: str, known: Iterable[str], *, verb: str = "", words: str = ""
    ) -> None:
        """`verb` is help for the help of one; with more `words` they may all be meant for an agent."""
        program, *path = context.command_path.split()
        super().__init__(f"There is no command {' '.join([*path, word])!r}.", context)
        near = difflib.get_close_matches(word, sorted(known), 1, NEAR_OF_WORDS if words else NEAR)
        self.meant = " ".join([program, *([verb] if verb else []), *path, *near]) if near else ""
        self.asked = f'{program} "{word} {words}"' if words else ""


def hint(err: click.ClickException) -> str:
    """What to do next."""
    context = err.ctx if isinstance(err, click.UsageError) else None
    see = f"Try: {context.command_path if context else 'lactl'} --help"
    if isinstance(err, NoCommand) and err.meant:
        to_agent = f"To ask your agent: {err.asked}\n" if err.asked else ""
        return f"Did you mean: {err.meant}\n{to_agent}{see}"
    return see


def sentence(err: click.ClickException) -> str:
    """What is wrong."""
    text = err.format_message()
    if isinstance(err, click.NoSuchOption):
        near = f" Did you mean {err.possibilities[0]}?" if err.possibilities else ""
        text = f"There is no option {err.option_name}.{near}"
    elif isinstance(err, click.MissingParameter) and err.param is not None:
        is_option = isinstance(err.param, click.Option)
        text = f"{err.param.opts[0] if is_option else err.param.human_readable_name} is missing."
    elif isinstance(err, click.BadOptionUsage):
        text = f"{err.option_name} {'takes no value' if 'does not take' in text else 'needs a value'}."
    elif (
        isinstance(err, click.BadParameter) and err.param is not None and (what := _expected(err.param.type))
    ):
        value = re.split(r" is not |: ", err.message)[0]
        text = f"{err.param.opts[0]} takes {what}, not {value}."
    elif isinstance(err, click.BadParameter):
        name = str(err.param_hint or "") or (err.param.opts[0] if isinstance(err.param, click.Option) else "")
        text = f"{name}: {err.message}" if name else err.message
    elif extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)\.?", text, re.DOTALL):
        text = f"That is more than it takes: {extra[1]}"
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _expected(kind: click.ParamType[Any]) -> str:
    """What a parameter of a type takes; empty for a type that says so itself."""
    if isinstance(kind, click.Choice):
        return f"one of {', '.join(map(str, kind.choices))}"
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    noun = f"a {getattr(kind, 'noun', 'whole number' if isinstance(kind, click.IntRange) else 'number')}"
    assert kind.min is not None
    low = f"more than {kind.min:g}" if kind.min_open else f"{kind.min:g} or more"
    return f"{noun} from {kind.min:g} to {kind.max:g}" if kind.max is not None else f"{noun}, {low}"
