"""`lactl agents`: the named agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lightagentd.cli.options import Group, Settings, agent_argument, agent_names, files, model_names
from lightagentd.cli.output import Columns, fields, listing, print_json, told
from lightagentd.cli.redrawn import watchable
from lightagentd.worker import change_profiles

_COLUMNS: Columns = {
    "NAME": "name",
    "STATE": "state",
    "MODEL": "model",
    "SESSIONS": "sessions",
    "ORIGIN": "origin",
    "DESCRIPTION": lambda agent: agent["problem"] or agent["description"],
}


@click.group("agents", cls=Group)
def command() -> None:
    """List, make, start and stop agents."""


@command.command("list")
@watchable("daemon,session.created,session.deleted")
@click.pass_obj
def list_agents(settings: Settings) -> None:
    """List all agents.

    The columns: name, state, model, sessions, origin, and the description or what is wrong. A member of a kit
    has the name of the kit's agent and its own, with a dot between them.
    """
    none = 'There are no agents. Make one with: lactl agents create NAME --description "…"'
    listing(
        settings,
        settings.call("Agents.List"),
        _COLUMNS,
        spare=("ORIGIN", "SESSIONS", "MODEL"),
        empty=none,
    )


@command.command("show")
@agent_argument
@click.pass_obj
def show(settings: Settings, agent: str) -> None:
    """Show one agent, with the profile that 'lactl change narrow' gave its worker on this machine."""
    found = settings.call("Agents.Get", name=agent)
    if not settings.host and (profile := change_profiles.chosen(found["name"])):
        found["change_profile"] = profile
    _print(settings, found)


@command.command("create")
@click.argument("name")
@click.option("--description", metavar="TEXT", help="What the agent is for, in one line.")
@click.option("--role", metavar="ROLE", help="default, sysadmin, or another file below agent/roles.")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=model_names,
    help="'runbook', PROVIDER/MODEL, or with --base-url a model's name alone.",
)
@click.option("--base-url", metavar="URL", help="An endpoint of its own that speaks chat completions.")
@click.option(
    "--api-key-file",
    metavar="FILE",
    shell_complete=files,
    help="The file with the key for it, which the daemon must be able to read; a name without a slash is a "
    "systemd credential of the daemon. For administrators.",
)
@click.option("--prompt", metavar="TEXT", help="Its system prompt.")
@click.option(
    "--from",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    shell_complete=files,
    help="A folder with an AGENT.md and what else a kit holds, which stays where it is and must be root's or "
    "the daemon's. For administrators.",
)
@click.pass_obj
def create(settings: Settings, /, folder: Path | None, **definition: Any) -> None:
    """Define the agent NAME and start it.

    The definition is kept across restarts of the daemon.
    """
    key_file = definition["api_key_file"]
    if key_file and "/" in key_file:
        definition["api_key_file"] = str(Path.cwd() / key_file)
    if folder is not None:
        definition["folder"] = str(Path.cwd() / folder)
    _print(settings, settings.call("Agents.Create", **definition))


@command.command("set")
@agent_argument
@click.option(
    "--model",
    metavar="MODEL",
    required=True,
    shell_complete=model_names,
    help="'runbook' or PROVIDER/MODEL; 'default' for that of its definition or of the configuration.",
)
@click.pass_obj
def set_model(settings: Settings, agent: str, model: str) -> None:
    """Have an agent ask another model from its next turn on.

    It stays across restarts and reloads. The agent's definition is not changed.
    """
    found = settings.call("Agents.Set", name=agent, model=model)
    told(settings, found, _model_told(found), found["name"], found["model"])


@command.command("delete")
@click.argument("agent", shell_complete=agent_names)
@click.pass_obj
def delete(settings: Settings, agent: str) -> None:
    """Stop an agent and forget its definition; its name must be written in full.

    That is for agents that were made with 'create'; their history stays.
    """
    settings.call("Agents.Delete", name=agent)
    told(settings, {"deleted": agent}, f"The agent {agent} is deleted.")


@command.command("start")
@agent_argument
@click.pass_obj
def start(settings: Settings, agent: str) -> None:
    """Start a stopped agent."""
    _print_state(settings, settings.call("Agents.Start", name=agent))


@command.command("stop")
@agent_argument
@click.pass_obj
def stop(settings: Settings, agent: str) -> None:
    """Cancel an agent's turns and stop it.

    It stays stopped until it is started again or the daemon restarts.
    """
    _print_state(settings, settings.call("Agents.Stop", name=agent))


@command.command("restart")
@agent_argument
@click.pass_obj
def restart(settings: Settings, agent: str) -> None:
    """Stop and start an agent; its sessions stay."""
    _print_state(settings, settings.call("Agents.Restart", name=agent))


def _print(settings: Settings, agent: dict[str, Any]) -> None:
    if settings.json:
        print_json(agent)
    else:
        fields((name.replace("_", " "), value) for name, value in agent.items() if value or name != "problem")


def _model_told(agent: dict[str, Any]) -> str:
    name, model, of = agent["name"], agent["model"], agent["model_from"]
    if of == "set":
        told = f"{name} asks {model} now. To take it back: lactl agents set {name} --model default"
    else:
        told = f"{name} asks {model} again, the model of its {of}."
    return told if agent["state"] == "running" else f"{told} It is {agent['state']}."


def _print_state(settings: Settings, agent: dict[str, Any]) -> None:
    told(settings, agent, f"{agent['name']}: {agent['state']}", agent["name"], agent["state"])
