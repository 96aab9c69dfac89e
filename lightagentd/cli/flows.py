"""`lactl flows`: graphs of steps that run the same way every time, and their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.beginning import only_one
from lightagentd.cli.named_file import read_file
from lightagentd.cli.options import Group, Named, Settings, files
from lightagentd.cli.output import (
    Columns,
    as_json,
    cell,
    fields,
    listing,
    print_json,
    say,
    told,
    warn,
)
from lightagentd.cli.question import visible
from lightagentd.cli.redrawn import watchable
from lightagentd.cli.terminal import is_terminal
from lightagentd.cli.when import ago, moment
from lightagentd.errors import Cancelled, CommandFailed, ConfigError, InvalidArgument

_FLOWS, _RUNS = {"Flows.List": "name"}, {"Flows.Runs": "id"}
_run_argument = click.argument("run_id", metavar="RUN", cls=Named, lists=_RUNS, nouns="runs")
_SHOWN_LINES = 12
_MARKS = {"success": "ok", "failed": "FAILED", "waiting_approval": "waits"}


@click.group("flows", cls=Group)
def command() -> None:
    """Check and run flows, and see what their runs do."""


@command.command("list")
@click.pass_obj
def list_flows(settings: Settings) -> None:
    """List all flows.

    The columns: name, agent, the number of steps, inputs (with = those that have a default), and what it is
    for, or what is wrong with it.
    """
    columns: Columns = {
        "NAME": "name",
        "AGENT": "agent",
        "STEPS": "steps",
        "INPUTS": lambda one: " ".join(map(_shown_input, one["inputs"])),
        "DESCRIPTION": lambda one: cell(one["problem"] or one["description"]),
    }
    none = "There are no flows. Write one into /etc/lightagentd/flows, see lightagent-flow(5)."
    listing(settings, settings.call("Flows.List"), columns, spare=("AGENT", "STEPS", "INPUTS"), empty=none)


@command.command("check")
@click.argument("what", metavar="[FILE|NAME]", required=False, shell_complete=files)
@click.pass_obj
def check(settings: Settings, what: str | None) -> None:
    """Check a flow, a file that is to become one, or all flows: agents, calls, cycles, templates.

    The columns: name, result. What is wrong is on standard error, with file and line, and so is what looks
    strange, such as a step that nothing leads to. The exit status is 78 when a flow cannot be used.
    """
    rows = []
    if what is None:
        names = [one["name"] for one in settings.call("Flows.List")]
        rows = [settings.call("Flows.Check", name=name) for name in names]
    elif Path(what).is_file():
        rows = [settings.call("Flows.Check", name=what, text=read_file(what).decode("utf-8", "replace"))]
    else:
        rows = [settings.call("Flows.Check", name=what)]
    columns: Columns = {"NAME": "name", "RESULT": lambda one: "broken" if one["faults"] else "ok"}
    listing(settings, rows, columns, empty="There are no flows.")
    for one in rows:
        if not settings.json:
            for sentence in (*one["faults"], *one["warnings"]):
                warn(sentence)
    if broken := [one["name"] for one in rows if one["faults"]]:
        raise ConfigError(
            f"Not to be used: {', '.join(broken)}.", suggestion="Mend the files that are named."
        )


@command.command("graph")
@click.argument("what", metavar="NAME|RUN", cls=Named, lists=_FLOWS | _RUNS, nouns="flows and runs")
@click.option(
    "--format", "form", type=click.Choice(["text", "dot", "svg"]), default="text", show_default=True
)
@click.pass_obj
def graph(settings: Settings, what: str, form: str) -> None:
    """Draw a flow, or a run with the states of its steps."""
    picture = settings.call("Flows.Draw", what=what, format=form)
    if not as_json(settings, {"picture": picture}):
        say(picture)


@command.command("run")
@click.argument("name", cls=Named, lists=_FLOWS, nouns="flows")
@click.option("--input", "-i", "inputs", metavar="NAME=VALUE", multiple=True, help="An input of the flow.")
@click.option(
    "--from", "from_", metavar="STEP", default="", help="Begin there, with outputs of an earlier run."
)
@click.option("--of", metavar="RUN", default="", help="That earlier run; without it your newest one.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and run nothing.")
@click.option("--detach", "-d", is_flag=True, help="Print the run's id, and do not follow it.")
@click.pass_obj
def run(
    settings: Settings,
    name: str,
    inputs: tuple[str, ...],
    from_: str,
    of: str,
    dry_run: bool,
    detach: bool,
) -> None:
    """Run a flow, and follow it to its end: each step, its state and its time.

    Ctrl-C only stops following: the run goes on. The exit status is 80 when it fails, and 130 when it is
    cancelled.
    """
    given = dict(_input(one) for one in inputs)
    if dry_run:
        found = settings.call("Flows.Plan", flow=name, inputs=given)
        columns: Columns = {
            "STEP": "name",
            "KIND": "kind",
            "AFTER": lambda one: " ".join(one["after"]),
            "RUNS": "will",
        }
        listing(settings, found, columns, spare=("KIND",))
        return
    parameters: dict[str, Any] = {"flow": name, "inputs": given}
    if from_:
        listed = lambda: [one["id"] for one in settings.call("Flows.Runs")]  # noqa: E731
        parameters |= {"first": from_, "of": only_one(of, listed, "runs")} if of else {"first": from_}
    made = settings.call("Flows.Run", **parameters)
    if detach:
        told(
            settings,
            made,
            f"The run {made['id']} goes on. To see it: lactl flows show {made['id']}",
            made["id"],
        )
        return
    _follow(settings, made["id"])


@command.command("runs")
@click.argument("name", required=False, default="", cls=Named, lists=_FLOWS, nouns="flows")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N")
@watchable("flow,approval")
@click.pass_obj
def runs(settings: Settings, name: str, limit: int) -> None:
    """List runs, the newest first.

    The columns: run, flow, state, how many of its steps are over, when it began, how long it took in seconds,
    and why it failed or what it waits for.
    """
    columns: Columns = {
        "RUN": "id",
        "FLOW": "flow",
        "STATE": "state",
        "STEPS": lambda one: f"{one['done']}/{one['steps']}",
        "BEGAN": lambda one: ago(one["started_us"]),
        "TOOK": lambda one: _took(one),
        "WHY": lambda one: cell(" ".join(one["waits"]) or one["message"]),
    }
    found = settings.call("Flows.Runs", flow=name, limit=limit)
    listing(settings, found, columns, spare=("TOOK", "BEGAN"), empty="No flow has run.")


@command.command("show")
@_run_argument
@click.argument("step", required=False)
@click.pass_obj
def show(settings: Settings, run_id: str, step: str | None) -> None:
    """Show a run: the state of each step, what it said, cost and did. With STEP its whole output.

    Each step names what has more of it: a run, a session ('lactl sessions show') or a trace ('lactl trace
    show').
    """
    if step is not None:
        output = settings.call("Flows.Output", run=run_id, step=step)
        if not as_json(settings, {"output": output}):
            say(visible(output))
        return
    found = settings.call("Flows.Show", run=run_id)
    if as_json(settings, found):
        return
    of = found["run"]
    rows = [
        (key, of[key]) for key in ("id", "flow", "state", "message", "inputs", "agent", "session", "parent")
    ]
    if of["changed"]:
        rows.append(("definition", "another than the file has now"))
    rows.append(("began", moment(of["started_us"])))
    fields((key, value) for key, value in [*rows, ("took", _took(of))] if value not in ("", [], {}))
    say()
    for one in found["steps"]:
        _say_step(one, one["run"] or one["session"] or one["trace_id"])
        for line in _shown_lines(one["output"] if one["state"] == "success" else ""):
            say(f"    {line}")
    for question in of["waits"]:
        _say_question(question)


@command.command("resume")
@_run_argument
@click.option("--detach", "-d", is_flag=True, help="Do not follow it.")
@click.pass_obj
def resume(settings: Settings, run_id: str, detach: bool) -> None:
    """Go on with a run that failed or was cancelled. Steps that are done stay done."""
    _went_on(settings, settings.call("Flows.Resume", run=run_id), detach)


@command.command("rerun")
@_run_argument
@click.argument("step")
@click.option("--new", is_flag=True, help="As the flow's file is now, and not as it was when the run began.")
@click.option("--detach", "-d", is_flag=True, help="Do not follow it.")
@click.pass_obj
def rerun(settings: Settings, run_id: str, step: str, new: bool, detach: bool) -> None:
    """Run a step of a run again, and all behind it. Earlier attempts stay in the history."""
    _went_on(settings, settings.call("Flows.Rerun", run=run_id, step=step, new=new), detach)


@command.command("cancel")
@_run_argument
@click.pass_obj
def cancel(settings: Settings, run_id: str) -> None:
    """Cancel a run. What its steps did stays done."""
    found = settings.call("Flows.Cancel", run=run_id)
    told(settings, found, f"The run {found['id']} is {found['state']}.", found["state"])


@command.command("follow")
@_run_argument
@click.pass_obj
def follow(settings: Settings, run_id: str) -> None:
    """Follow a run to its end, as 'lactl flows run' does."""
    _follow(settings, run_id)


def _went_on(settings: Settings, made: dict[str, Any], detach: bool) -> None:
    if detach:
        told(settings, made, f"The run {made['id']} goes on.", made["id"])
        return
    _follow(settings, made["id"])


def _follow(settings: Settings, run_id: str) -> None:
    """Print the steps of a run as they go on. Raises CommandFailed, Cancelled."""
    seen: dict[str, str] = {}
    asked: set[str] = set()
    last: dict[str, Any] = {}
    try:
        with settings.client() as client:
            for reply in client.stream("Flows.Follow", run=run_id):
                if (progress := reply["progress"]) is None:
                    break
                last = progress["run"]
                if settings.json:
                    print_json(progress)
                    continue
                for one in progress["steps"]:
                    if one["state"] != "pending" and seen.get(one["name"]) != one["state"]:
                        _say_step(one)
                    seen[one["name"]] = one["state"]
                for question in last["waits"]:
                    if question not in asked:
                        _say_question(question)
                    asked.add(question)
    except KeyboardInterrupt:
        warn(f"The run {run_id} goes on.", f"To follow it again: lactl flows follow {run_id}")
        return
    if settings.json or not last:
        _end(last)
        return
    output = next(
        (one for one in reversed(settings.call("Flows.Show", run=run_id)["steps"]) if one["output"]), None
    )
    if last["state"] == "success":
        if output is not None:
            say()
            say(visible(settings.call("Flows.Output", run=run_id, step=output["name"])))
        if is_terminal():
            say(f"\nThe run {run_id} is done after {_took(last)} s.")
    _end(last)


def _end(last: dict[str, Any]) -> None:
    if last.get("state") == "cancelled":
        raise Cancelled(f"The run {last['id']} was cancelled: {last['message']}")
    if last.get("state") == "failed":
        raise CommandFailed(
            f"The run {last['id']} failed. {last['message']}",
            suggestion=f"To go on from there: lactl flows resume {last['id']}",
        )


def _say_step(one: dict[str, Any], where: str = "") -> None:
    """`where` is what has more about it: a run, a session or a trace."""
    state = _MARKS.get(one["state"], one["state"])
    took = f"{_took(one)} s" if one["ended_us"] and one["state"] in ("success", "failed") else ""
    why = cell(one["message"]) if one["message"] else ""
    cost = f"{one['total_tokens']} tokens" if one["total_tokens"] else ""
    said = "  ".join(part for part in (f"{state:<9}", one["name"], took, cost, where, why) if part)
    say(said)


def _say_question(question: str) -> None:
    if question.startswith("apr_"):
        say(f"          It waits for an approval: lactl approve {question}")
    else:
        say(f"          It waits for an answer: lactl answer {question}")


def _shown_lines(output: str) -> list[str]:
    lines = visible(output).splitlines()
    more = len(lines) - _SHOWN_LINES
    return [*lines[:_SHOWN_LINES], f"[{more} more lines]"] if more > 0 else lines


def _took(one: dict[str, Any]) -> str:
    if not one["ended_us"] or not one["started_us"]:
        return ""
    return f"{(one['ended_us'] - one['started_us']) / 1_000_000:.1f}"


def _shown_input(one: dict[str, Any]) -> str:
    if one["required"]:
        return str(one["name"])
    default = one["default"]
    return f"{one['name']}={default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)}"


def _input(text: str) -> tuple[str, Any]:
    """Raises InvalidArgument."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"{text[:60]!r} is not NAME=VALUE.", field="input")
    if value.startswith("["):
        try:
            return name, json.loads(value)
        except ValueError as err:
            raise InvalidArgument(f"The input {name} is no JSON list: {err}.", field="input") from err
    return name, value
