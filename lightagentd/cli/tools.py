"""`lactl tools`: the tools of agents, and calls of them by a person."""

from __future__ import annotations

import json
from typing import Any

import click

from lightagentd.cli.confirm import confirming
from lightagentd.cli.options import (
    Group,
    Settings,
    action_names,
    agent_argument,
    agent_names,
    of_agent,
    tool_names,
)
from lightagentd.cli.output import Columns, as_json, dump, fields, listing, say, table, warn
from lightagentd.cli.terminal import BOLD, is_terminal, style
from lightagentd.cli.tool_drafts import discard, draft, drafts, install
from lightagentd.cli.turn import end_with, watch
from lightagentd.cli.typed_call import TypedCall
from lightagentd.config.terms import words as confirm_words
from lightagentd.errors import CommandFailed, ToolNotFound

_MAX_REFERENCES = 8


@click.group("tools", cls=Group)
def command() -> None:
    """List and call tools."""


@command.command("list")
@of_agent
@click.pass_obj
def list_tools(settings: Settings, agent: str) -> None:
    """List all tools.

    The columns: name, actions, origin, and the description or what is wrong.
    """
    columns: Columns = {
        "NAME": "name",
        "ACTIONS": lambda tool: [action["name"] for action in tool["actions"]],
        "ORIGIN": "origin",
        "DESCRIPTION": lambda tool: tool["problem"] or tool["description"],
    }
    none = "There are no tools; lactl status says what is wrong."
    found = settings.call("Agents.Tools", name=agent) if agent else settings.call("Tools.List")
    listing(settings, found, columns, spare=("ORIGIN", "ACTIONS"), empty=none)


@command.command("show")
@click.argument("name", shell_complete=tool_names)
@of_agent
@click.pass_obj
def show(settings: Settings, name: str, agent: str) -> None:
    """Show one tool with its actions and their arguments."""
    tool = _tool(settings, agent, name)
    if as_json(settings, tool):
        return
    fields((key, tool[key]) for key in ("name", "description", "origin", "problem") if tool[key])
    for action in tool["actions"]:
        say()
        effect = action["effect"] or "the effect that the call names"
        say(style(f"{name}.{action['name']}", BOLD), f"  [{effect}]  {action['description']}")
        schema = action["schema"]
        required = schema.get("required", [])
        for argument, described in schema.get("properties", {}).items():
            say(f"  {argument}: {_type_name(described, schema)}{_note(argument, described, required)}")


@command.command("select")
@click.argument("prompt")
@click.option("--agent", metavar="AGENT", shell_complete=agent_names, help="Of the functions of one agent.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many to show."
)
@click.pass_obj
def select(settings: Settings, prompt: str, agent: str | None, limit: int) -> None:
    """Show which functions a model is offered for PROMPT.

    An agent that has more functions than limits.max_tools, or than take a third of its model's window, offers
    those that fit the prompt, those that every conversation needs, and a search for the others. No model is
    asked.

    The columns: score, whether it is offered for the prompt (fits), in every conversation (always) or not
    (left_out), function, and the words that it was found by.
    """
    parameters: dict[str, Any] = {"prompt": prompt, "limit": limit} | ({"agent": agent} if agent else {})
    found = settings.call("Tools.Select", **parameters)
    if as_json(settings, found):
        return
    table(
        ("SCORE", "WHY", "FUNCTION", "WORDS"),
        ((f"{one['score']:.2f}", one["why"], one["function"], one["words"]) for one in found["choices"]),
        empty="No function fits.",
    )
    if is_terminal():
        say()
        say(_summary(found))


def _summary(found: dict[str, Any]) -> str:
    if found["all_offered"]:
        return (
            f"All {found['functions']} functions are offered, whatever the prompt: up to {found['max_tools']}"
            " may be (limits.max_tools, the model's window)."
        )
    offered, limit = f"{found['offered']} of {found['functions']}", found["max_tools"]
    return f"{offered} functions are offered: up to {limit} may be (limits.max_tools, the model's window)."


@command.command("call")
@agent_argument
@click.argument("action", metavar="TOOL.ACTION", shell_complete=action_names)
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object.")
@confirming
@click.pass_obj
def call(
    settings: Settings,
    /,
    agent: str,
    action: str,
    arguments: tuple[str, ...],
    whole: str | None,
    **terms: str | None,
) -> None:
    """Call an action as AGENT would.

    The call goes through policy, worker and history, but no model has a part in it.

    \b
      lactl tools call ops systemd.status unit=ssh.service
      lactl tools call ops bash.exec --args '{"command": "df -h"}'

    A VALUE is text where the action takes text, and JSON everywhere else.

    The exit status is 80 when a command ran and failed; with --json its own status is in the event
    tool_result, as metadata.exit_status. A call that you may approve counts as approved by you: policy does
    not ask again, and the history says who called. Where the approver allows changes, lactl answers it there
    if what waits is exactly what you typed, the rest being the defaults of the tool's file; else it shows the
    call and asks on the terminal, and in a pipe it says how to answer, and waits. The last three options are
    for who may approve, and as those of lactl approve.
    """
    parameters = {"agent": agent, **call_parameters(settings, agent, action, arguments, whole)}
    parameters |= {name: one for name, one in terms.items() if one is not None}
    named = {name: parameters[name] for name in ("agent", "tool", "action", "args")}
    typed = TypedCall(**named, terms=terms)
    metadata = watch(settings, "Tools.Call", parameters, hang_up=True, typed=typed)
    end_with(metadata)
    if (within := terms["confirm_within"]) and not settings.json and metadata.get("changed") is not False:
        warn(confirm_words(terms, within), "Keep it with: lactl confirm")
    status, killer = metadata.get("exit_status"), metadata.get("signal")
    if status or killer:
        raise CommandFailed(f"The command ended {f'by {killer}' if killer else f'with status {status}'}.")


for one in (draft, drafts, discard, install):
    command.add_command(one)


def call_parameters(
    settings: Settings, agent: str, action: str, arguments: tuple[str, ...], whole: str | None
) -> dict[str, Any]:
    """The tool, the action and the arguments of a call, as they stand on a command line."""
    tool, dot, name = action.partition(".")
    if not dot or not tool or not name:
        raise click.BadParameter(
            f"{action!r} is not a tool and an action, such as systemd.status.", param_hint="TOOL.ACTION"
        )
    if whole is not None and arguments:
        raise click.UsageError("KEY=VALUE and --args cannot be used together.")
    found = _object(whole) if whole is not None else _pairs(settings, (agent, tool, name), arguments)
    return {"tool": tool, "action": name, "args": found}


def _object(text: str) -> dict[str, Any]:
    wrong = """--args takes a JSON object, such as '{"command": "df -h"}'"""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as err:
        raise click.UsageError(f"{wrong}; in this it is wrong at character {err.pos + 1}.") from err
    except RecursionError as err:
        raise click.UsageError(f"{wrong}; this is nested too deep.") from err
    if not isinstance(found, dict):
        raise click.UsageError(f"{wrong}; this is JSON, but no object.")
    return found


def _tool(settings: Settings, agent: str, name: str) -> dict[str, Any]:
    """A tool of all agents, or of this one. Raises ToolNotFound."""
    try:
        found: dict[str, Any] = settings.call("Tools.Get", name=name)
    except ToolNotFound:
        own = settings.call("Agents.Tools", name=agent) if agent else []
        if not (named := [tool for tool in own if tool["name"] == name]):
            raise
        found = named[0]
    return found


def _pairs(settings: Settings, called: tuple[str, str, str], arguments: tuple[str, ...]) -> dict[str, Any]:
    """The arguments, each of the type that the schema says. `called` are agent, tool and action. Raises
    ToolNotFound.
    """
    agent, tool, name = called
    if not arguments:
        return {}
    described = _tool(settings, agent, tool)
    if described["problem"]:
        return {}  # the daemon says why it is disabled
    actions = described["actions"]
    schema = next((action["schema"] for action in actions if action["name"] == name), None)
    if schema is None:
        known = ", ".join(action["name"] for action in actions)
        raise ToolNotFound(f"The tool {tool} has no action {name!r}.", suggestion=f"It has: {known}")
    found = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{argument!r} is not KEY=VALUE.")
        found[key] = _value(value, schema.get("properties", {}).get(key, {}), schema)
    return found


def _value(text: str, described: dict[str, Any], schema: dict[str, Any]) -> Any:
    if "string" in _types(described, schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the daemon says what is wrong with it


def _types(described: dict[str, Any], schema: dict[str, Any], depth: int = 0) -> list[str]:
    """The JSON types that a property takes (JSON Schema, with the references that pydantic makes)."""
    if depth > _MAX_REFERENCES:
        return []
    if "$ref" in described:
        target = schema.get("$defs", {}).get(described["$ref"].rpartition("/")[2], {})
        return _types(target, schema, depth + 1)
    if "anyOf" in described:
        return [name for each in described["anyOf"] for name in _types(each, schema, depth + 1)]
    names = described.get("type", [])
    return [names] if isinstance(names, str) else list(names)


def _type_name(described: dict[str, Any], schema: dict[str, Any]) -> str:
    names = [name for name in _types(described, schema) if name != "null"]
    return " or ".join(names) or "any"


def _note(argument: str, described: dict[str, Any], required: list[str]) -> str:
    words = ["required"] if argument in required else []
    if described.get("default") is not None:
        words.append(f"default {dump(described['default'])}")
    if described.get("description"):
        words.append(described["description"])
    return f" ({'; '.join(words)})" if words else ""
