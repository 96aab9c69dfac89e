"""`lactl skills`: what the embedded model can run, and language models can read."""

from __future__ import annotations

import click

from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import fields, print_json, say, table


@click.group("skills", cls=Group)
def command() -> None:
    """List and read skills."""


@command.command("list")
@click.pass_obj
def list_skills(settings: Settings) -> None:
    """List all skills.

    The columns: name, whether it is a runbook, effect, origin, and the description or what is wrong.
    """
    skills = settings.call("Skills.List")
    if settings.json:
        print_json(skills)
        return
    table(
        ("NAME", "RUNBOOK", "EFFECT", "ORIGIN", "DESCRIPTION"),
        (
            (
                skill["name"],
                skill["runbook"],
                skill["effect"],
                skill["origin"],
                skill["problem"] or skill["description"],
            )
            for skill in skills
        ),
        empty="There are no skills.",
    )


@command.command("show")
@click.argument("name")
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one skill with its body."""
    skill = settings.call("Skills.Get", name=name)
    if settings.json:
        print_json(skill)
        return
    fields((key, value) for key, value in skill.items() if key != "body" and (value or key != "problem"))
    if skill["body"]:
        say()
        say(skill["body"].rstrip("\n"))
