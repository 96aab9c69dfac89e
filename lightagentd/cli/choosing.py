"""The options of `lactl prompt` that choose for one turn: a model, fewer tools, the form of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lightagentd.cli.named_file import read_file
from lightagentd.cli.options import files

_F = TypeVar("_F", bound=Callable[..., Any])
_SCHEMA_BYTES = 64 << 10

_OPTIONS = (
    click.option("--model", metavar="MODEL", help="Ask this model of the agent's first."),
    click.option(
        "--tools",
        metavar="TOOL,TOOL.ACTION",
        multiple=True,
        help="Only these tools of the agent's; '' for none. May be repeated.",
    ),
    click.option(
        "--effects",
        metavar="EFFECT,EFFECT",
        multiple=True,
        help="Only these effects of the agent's: observe, reach, change. May be repeated.",
    ),
    click.option(
        "--max-steps", metavar="NUMBER", type=int, help="Fewer steps than the agent may take otherwise."
    ),
    click.option(
        "--deliberate/--no-deliberate",
        default=None,
        help="Have drafts of a plan made and judged first, or not; the agent must have 'deliberate'.",
    ),
    click.option(
        "--schema",
        "schema_file",
        metavar="FILE",
        type=click.Path(),
        shell_complete=files,
        help="A JSON Schema that the answer has to fit.",
    ),
)


def choosing(command: _F) -> _F:
    """Give a command the options; their values are what `chosen` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen(
    *,
    model: str | None,
    tools: tuple[str, ...],
    effects: tuple[str, ...],
    max_steps: int | None,
    deliberate: bool | None,
    schema_file: str | None,
) -> dict[str, Any]:
    """The parameters of `Sessions.Prompt`. Raises what `read_file` does."""
    schema = None
    if schema_file is not None:
        hint = "A schema has 64 KiB at most; $defs say what is repeated once."
        data = read_file(schema_file, max_bytes=_SCHEMA_BYTES, too_large=hint)
        schema = data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    return {
        "model": model or None,
        "tools": _listed(tools),
        "effects": _listed(effects),
        "max_steps": max_steps,
        "deliberate": deliberate,
        "schema": schema,
    }


def _listed(values: tuple[str, ...]) -> list[str] | None:
    """The names in options that each have one or several; None without the option."""
    if not values:
        return None
    return [name for value in values for name in (part.strip() for part in value.split(",")) if name]
