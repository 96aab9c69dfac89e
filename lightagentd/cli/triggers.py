"""`lactl triggers`: what happens on the machine becomes a question to an agent.

`check` works on files with the rights of the user who runs lactl, and needs no daemon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.event_line import print_event
from lightagentd.cli.event_source import newest
from lightagentd.cli.named_file import read_file
from lightagentd.cli.options import Group, Named, Settings, files, names_of
from lightagentd.cli.output import Columns, as_json, cell, fields, listing, say, told, warn
from lightagentd.cli.question import visible
from lightagentd.cli.redrawn import watchable
from lightagentd.cli.turn import end_with, watch
from lightagentd.cli.when import ago, moment
from lightagentd.errors import ConfigError, InvalidArgument, LightagentError, NotFound

if TYPE_CHECKING:
    from lightagentd.config.triggers import TriggerFile

trigger_names = names_of("Triggers.List", "name")
_trigger_argument = click.argument("name", cls=Named, lists={"Triggers.List": "name"}, nouns="triggers")
_COUNTS = ("fired", "coalesced", "limited", "refused", "missed", "waiting", "answered", "failed")
_TOPICS = "trigger"


@click.group("triggers", cls=Group)
def command() -> None:
    """List, check, try, pause and resume what has agents asked by itself."""


@command.command("list")
@watchable("trigger")
@click.pass_obj
def list_triggers(settings: Settings) -> None:
    """List all triggers, and what units of systemd ask.

    The columns: name, what it waits for, agent, owner, state, how often its agent was asked, how many things
    were put into a question that waited, how many came too often, how many were refused and missed, and when
    its agent was asked last, or what is wrong.
    """
    columns: Columns = {
        "NAME": "name",
        "ON": "on",
        "AGENT": "agent",
        "OWNER": "owner",
        "STATE": "state",
        **{count.upper(): count for count in _COUNTS[:5]},
        "LAST": lambda one: cell(one["problem"]) or (ago(one["last_us"]) if one["last_us"] else "never"),
    }
    none = "There are no triggers. Write one into /etc/lightagentd/triggers, see lightagent-trigger(5)."
    spare = ("MISSED", "COALESCED", "LIMITED", "REFUSED", "OWNER", "FIRED")
    listing(settings, settings.call("Triggers.List"), columns, spare=spare, empty=none)


@command.command("show")
@_trigger_argument
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one trigger: what it waits for and asks, how it stands, and what it counted.

    Everything that happened counts once, as fired, coalesced, limited, refused, missed or waiting.
    """
    found = settings.call("Triggers.Get", name=name)
    if as_json(settings, found):
        return
    if found["last_us"]:
        found["last_us"] = moment(found["last_us"])
    rows = [(key.removesuffix("_us").replace("_", " "), value) for key, value in found.items()]
    fields((key, value) for key, value in rows if value not in ("", []))


@command.command("check")
@click.argument("what", metavar="[FILE|NAME]", required=False, shell_complete=files)
@click.pass_obj
def check(settings: Settings, what: str | None) -> None:
    """Check the file of a trigger, or all of them. The daemon need not run.

    The columns: name, result. What is wrong is on standard error, with file and line. The exit status is 78
    when a trigger cannot be used.
    """
    from lightagentd.config.triggers import check_trigger
    from lightagentd.unattended.sources import check as check_source

    rows: list[dict[str, Any]] = []
    for path in _paths(what):
        problem = ""
        try:
            file = check_trigger(path)
            run_async(check_source(file))
            _check_secret(file)
        except (LightagentError, OSError) as err:
            problem = f"{err} {getattr(err, 'suggestion', '')}".strip()
            problem = problem if str(path) in problem else f"{path}: {problem}"
        rows.append({"name": path.stem, "problem": problem})
    columns: Columns = {"NAME": "name", "RESULT": lambda one: "broken" if one["problem"] else "ok"}
    listing(settings, rows, columns, empty="There are no triggers.")
    for one in rows:
        if one["problem"] and not settings.json:
            warn(one["problem"])
    if broken := [one["name"] for one in rows if one["problem"]]:
        raise ConfigError(
            f"Not to be used: {', '.join(broken)}.", suggestion="Mend the files that are named."
        )


def _check_secret(file: TriggerFile) -> None:
    """Raises ConfigError for a webhook's secret that is not there; not for what this user may not read, and a
    credential of the daemon's.
    """
    from lightagentd.agents.triggers.webhooks.webhooks import secrets_of

    if file.secret_file is None or not file.secret_file.is_absolute():
        return
    try:
        secrets_of(file)
    except ConfigError as err:
        if not isinstance(err.__cause__, PermissionError):
            raise


@command.command("test")
@_trigger_argument
@click.option(
    "--data",
    "data",
    metavar="FILE",
    shell_complete=files,
    help="What happened, as a JSON object; - for standard input. Without it, a sample.",
)
@click.option("--preview", is_flag=True, help="Print what the agent would be asked, and ask nobody.")
@click.option("--quiet", "-q", is_flag=True, help="Print the final answer and nothing else.")
@click.pass_obj
def test(settings: Settings, name: str, data: str | None, preview: bool, quiet: bool) -> None:
    """Ask the trigger's agent as if something had happened, in its owner's name, and watch it work.

    It is as real as a prompt: the agent may do what the trigger's file lets it do without a person. It counts
    for no limit, and the answer is shown here and delivered nowhere. It is for administrators and the owner.
    """
    happened = None if data is None else _data(data)
    if preview:
        found = settings.call("Triggers.Preview", name=name, data=happened)
        if not as_json(settings, found):
            say(visible(found["prompt"]))
        return
    parameters = {"name": name, "data": happened}
    end_with(watch(settings, "Triggers.Run", parameters, quiet=quiet))


@command.command("pause")
@_trigger_argument
@click.pass_obj
def pause(settings: Settings, name: str) -> None:
    """Refuse what happens from now on; it is counted."""
    settings.call("Triggers.Pause", name=name)
    told(settings, {"paused": name}, f"The trigger {name} is paused.")


@command.command("resume")
@_trigger_argument
@click.pass_obj
def resume(settings: Settings, name: str) -> None:
    """Let a trigger go on that was paused, or that its own effects stopped."""
    settings.call("Triggers.Resume", name=name)
    told(settings, {"resumed": name}, f"The trigger {name} goes on.")


@command.command("log")
@click.argument("name", required=False, shell_complete=trigger_names)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="N")
@click.pass_obj
def log(settings: Settings, name: str | None, limit: int) -> None:
    """Print what triggers did, oldest first: what fired them, what was held back, and the ends of answers.

    The lines are those of 'lactl history'.
    """
    found = newest(settings, {"topic": _TOPICS}, limit if name is None else 10_000)
    own = [one for one in found if name is None or (one.get("data") or {}).get("trigger") == name]
    for event in own[-limit:]:
        print_event(event, json=settings.json)


def _paths(what: str | None) -> list[Path]:
    """The files to check. Raises NotFound."""
    from lightagentd.config.triggers import TRIGGERS, trigger_files
    from lightagentd.host.paths import default_paths

    folder = default_paths().config
    if what is None:
        return trigger_files(folder)
    named = folder / TRIGGERS / f"{what}.toml"
    for path in (Path(what), named):
        if path.is_file():
            return [path]
    raise NotFound(f"There is no trigger {what[:60]!r} and no such file.", suggestion=f"It would be {named}.")


def _data(path: str) -> dict[str, Any]:
    """Raises InvalidArgument."""
    text = read_file(path)
    try:
        found = json.loads(text)
    except ValueError as err:
        raise InvalidArgument(f"{path} is no JSON: {err}.", field="data") from err
    if not isinstance(found, dict):
        raise InvalidArgument(f"{path} is no JSON object.", field="data")
    return found
