"""`lactl skills`: what the embedded model can run, and language models can read."""

from __future__ import annotations

import click

from lightagentd.cli.options import Group, Settings, names_of
from lightagentd.cli.output import Columns, as_json, fields, listing, say


@click.group("skills", cls=Group)
def command() -> None:
    """List and read skills."""


@command.command("list")
@click.pass_obj
def list_skills(settings: Settings) -> None:
    """List all skills.

    The columns: name, whether it is a runbook, effect, origin, and the description or what is wrong.
    """
    columns: Columns = {
        "NAME": "name",
        "RUNBOOK": "runbook",
        "EFFECT": "effect",
        "ORIGIN": "origin",
        "DESCRIPTION": lambda skill: skill["problem"] or skill["description"],
    }
    listing(
        settings,
        settings.call("Skills.List"),
        columns,
        spare=("ORIGIN", "RUNBOOK", "EFFECT"),
        empty="There are no skills.",
    )


@command.command("show")
@click.argument("name", shell_complete=names_of("Skills.List", "name"))
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one skill with its body."""
    skill = settings.call("Skills.Get", name=name)
    if as_json(settings, skill):
        return
    fields((key, value) for key, value in skill.items() if key != "body" and (value or key != "problem"))
    if skill["body"]:
        say()
        say(skill["body"].rstrip("\n"))
