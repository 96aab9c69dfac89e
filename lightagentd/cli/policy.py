"""`lactl policy`: the rules that say which calls run, which are asked for and which are refused.

`check` reads files itself and needs no daemon. `replay` reads them, too, and sends the daemon their text, so
that the daemon opens no file that a client names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.filters import uid
from lightagentd.cli.named_file import check_readable
from lightagentd.cli.options import Group, Settings, action_names, agent_argument, agent_names, files
from lightagentd.cli.output import (
    Columns,
    as_json,
    dump,
    fields,
    listing,
    print_json,
    print_json_line,
    say,
    table,
    warn,
)
from lightagentd.cli.terminal import GREEN, MAGENTA, RED, is_terminal, style
from lightagentd.cli.tools import call_parameters
from lightagentd.cli.when import FORMS, local, since_time
from lightagentd.errors import LightagentError

if TYPE_CHECKING:
    from lightagentd.client import Client

_LOOK_S = 5.0
_ON = ("prompt", "attachment", "answer", "tool_result", "memory", "event")
_COLOURS = {"allow": GREEN, "ask": MAGENTA, "deny": RED}


@click.group("policy", cls=Group)
def command() -> None:
    """Check, list, explain and try the rules and guards of policy.d."""


@command.command("check")
@click.argument("places", metavar="[DIR|FILE]...", nargs=-1, shell_complete=files)
@click.pass_obj
def check(settings: Settings, places: tuple[str, ...]) -> None:
    """Check files of rules, those of the daemon if none are named.

    The examples of each rule are tried. The exit status is 78 when the daemon would refuse the files. The
    daemon need not run; where it does, "in force" says whether it has read them as they are.
    """
    from lightagentd.policy.rulefiles import load_texts

    texts = _read(places)
    loaded = load_texts(texts)
    examples = sum(len(one.rule.match) + len(one.rule.not_match) for one in loaded.rules)
    found: dict[str, Any] = {"files": list(texts), "rules": len(loaded.rules), "examples": examples}
    if loaded.guards:
        found["guards"] = len(loaded.guards)
        texts_tried = [one.guard.examples for one in loaded.guards]
        found["examples"] += sum(len(one.match) + len(one.not_match) for one in texts_tried)
    if not places and (in_force := _in_force(settings)):
        found["in_force"] = in_force == loaded.sha256
    if settings.json:
        print_json({"ok": True, **found})
    else:
        found["files"] = found["files"] or "none: the defaults apply"
        fields([*((name.replace("_", " "), value) for name, value in found.items()), ("result", "ok")])
        if found.get("in_force") is False:
            warn("The daemon has other rules in force.", "Have it read these: lactl reload")


@command.command("list")
@click.pass_obj
def list_rules(settings: Settings) -> None:
    """List the rules in force.

    The columns: name, decision, conditions, origin, reason. Where no rule matches a call, observe and reach
    are allowed and change is asked for.
    """
    columns: Columns = {
        "NAME": "name",
        "DECISION": _decision,
        "CONDITIONS": _conditions,
        "ORIGIN": "origin",
        "REASON": "reason",
    }
    none = "There are no rules: observe and reach are allowed, change is asked for."
    listing(settings, settings.call("Policy.List"), columns, spare=("ORIGIN", "REASON"), empty=none)


@command.command("guards")
@click.pass_obj
def list_guards(settings: Settings) -> None:
    """List the guards in force, the rules for text.

    The columns: name, action, on what, what it looks for, conditions, origin, reason.
    """
    columns: Columns = {
        "NAME": "name",
        "ACTION": "action",
        "ON": lambda one: ",".join(one["on"]),
        "FINDS": lambda one: ",".join([*one["match"], *one["pattern"]]),
        "CONDITIONS": _conditions,
        "ORIGIN": "origin",
        "REASON": "reason",
    }
    none = "There are no guards: only secrets are taken out of texts."
    spare = ("ORIGIN", "REASON", "CONDITIONS", "FINDS")
    listing(settings, settings.call("Policy.ListGuards"), columns, spare=spare, empty=none)


@command.command("explain")
@agent_argument
@click.argument("action", metavar="[TOOL.ACTION]", required=False, shell_complete=action_names)
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object.")
@click.option("--trigger", metavar="WORD", help="What began the turn, such as timer; person if not given.")
@click.option(
    "--tainted", is_flag=True, help="As in a session with text from outside; its host is a new one."
)
@click.option(
    "--plan",
    type=click.Choice(["observe", "none"]),
    help="As while a plan is drafted, by an agent whose plan_tools are that.",
)
@click.option(
    "--caller", metavar="USER", callback=uid, help="Whose session it is, a name or a uid; yours if not given."
)
@click.option("--text", help="What guards do to this text, in place of a call.")
@click.option("--on", type=click.Choice(_ON), default="prompt", help="What the text is; prompt if not given.")
@click.pass_obj
def explain(
    settings: Settings,
    /,
    agent: str,
    action: str | None,
    arguments: tuple[str, ...],
    whole: str | None,
    text: str | None,
    on: str,
    **more: Any,
) -> None:
    """Say what policy decides on a call, and by which rule, or what guards do to a text.

    Nothing is called. The arguments are written as for 'lactl tools call':

    \b
      lactl policy explain ops file.write path=/etc/hosts content=x
      lactl policy explain ops bash.exec command='df -h' --tainted
      lactl policy explain ops --text 'to jane@example.org'
    """
    if (action is None) == (text is None):
        raise click.UsageError("Name a call, or give a text with --text.")
    if text is not None:
        _explain_text(settings, agent=agent, text=text, on=on, caller=more["caller"])
        return
    assert action is not None
    parameters = {"agent": agent, **call_parameters(settings, agent, action, arguments, whole), **more}
    found = settings.call("Policy.Explain", **parameters)
    if as_json(settings, found):
        return
    fields(
        [
            ("decision", found["decision"]),
            ("rule", found["rule"]),
            ("origin", found["origin"] or "built in"),
            ("effect", found["effect"]),
            *((name, found[name]) for name in ("reason", "message", "suggestion") if found[name]),
            *(("note", text) for text in found["notes"]),
            *(("also matches", _one_line(one)) for one in found["matched"] if not _decides(found, one)),
        ]
    )


def _explain_text(settings: Settings, **parameters: Any) -> None:
    found = settings.call("Policy.ExplainText", **parameters)
    if as_json(settings, found):
        return
    fields(
        [
            ("action", found["action"]),
            *([("text", found["text"])] if found["action"] == "redact" else []),
            *(("guard", _hit(one)) for one in found["hits"]),
            *(("note", text) for text in found["notes"]),
        ]
    )


def _hit(one: dict[str, Any]) -> str:
    times = "took too long" if one["unsure"] else f"{one['count']} found"
    return f"{one['name']} ({one['action']}, {times}, {one['origin']})"


@command.command("replay")
@click.argument("places", metavar="DIR|FILE...", nargs=-1, required=True, shell_complete=files)
@click.option("--since", metavar="TIME", callback=since_time, help=f"Not before {FORMS}.")
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="Only calls of this agent.")
@click.pass_obj
def replay(settings: Settings, places: tuple[str, ...], since: int | None, agent: str | None) -> None:
    """Judge past calls by other rules, and list those whose decision would change; past texts by guards.

    The rules of the files named take the place of those in force. The columns: number, time, agent, call,
    decision then and now, rule then and now. The count goes to standard error. What the history does not
    say about a call is taken to be as in an ordinary prompt. Where the files have guards, the stored prompts,
    answers and results follow on which they would act, with the action and the guards. It needs an
    administrator: root, or the daemon's own user.
    """
    parameters = {"files": _read(places), "since_us": since, "agent": agent}
    last: dict[str, Any] = {}
    with settings.client() as client:
        for reply in client.stream("Policy.Replay", **parameters):
            last = reply["replay"]
            if settings.json:
                print_json_line(last)
            elif last["change"]:
                _print_change(last["change"])
        texts = _replay_texts(settings, client, parameters)
    if not settings.json:
        left = f"; {last['skipped']} were refused before policy saw them" if last["skipped"] else ""
        warn(f"{last['changed']} of {last['judged']} calls would be decided otherwise{left}.")
        if texts["judged"]:
            warn(f"Guards would act on {texts['changed']} of {texts['judged']} texts.")


def _replay_texts(settings: Settings, client: Client, parameters: dict[str, Any]) -> dict[str, Any]:
    """Print the texts on which guards would act; gives the last reply."""
    last: dict[str, Any] = {}
    for reply in client.stream("Policy.ReplayTexts", **parameters):
        last = reply["replay"]
        change = last["change"]
        if settings.json and (change or last["judged"]):
            print_json_line(last)
        elif change and not settings.json:
            guards = ", ".join(_hit(one) for one in change["hits"])
            cells = (change["seq"], local(change["time_us"]), change["agent"], change["on"])
            table((), [(*cells, change["action"], guards)])
    return last


def _print_change(change: dict[str, Any]) -> None:
    call = f"{change['tool']}.{change['action']} {dump(change['args'])}"
    cells = (change["seq"], local(change["time_us"]), change["agent"], call)
    decisions = f"{change['before']} -> {change['after']}"
    rules = f"{change['before_rule']} -> {change['after_rule']}"
    if not is_terminal():
        table((), [(*cells, decisions, rules)])
        return
    before, after = (style(change[key], _COLOURS[change[key]]) for key in ("before", "after"))
    say(
        f"{change['seq']:>6}  {local(change['time_us'])}  {change['agent']}  ",
        before,
        " -> ",
        after,
        f"  {call}",
    )
    say(f"        {rules}")


def _in_force(settings: Settings) -> str:
    """The digest of the rules that the daemon took from the usual folder; empty when that cannot be told."""
    from lightagentd.host.paths import default_paths
    from lightagentd.policy.rulefiles import POLICY_FOLDER

    settings.ask_password = False
    try:
        taken = settings.call(
            "History.Query", topic="policy.rules", type="loaded", limit=1, timeout_s=_LOOK_S
        )
    except LightagentError:
        return ""
    folder = str(default_paths().config / POLICY_FOLDER)
    return next((str(one["data"]["sha256"]) for one in taken if one["data"]["folder"] == folder), "")


def _read(places: Iterable[str]) -> dict[str, str]:
    """The texts of the files, and of those in the folders, by path. Raises ConfigError, `unreadable`."""
    from lightagentd.host.paths import default_paths
    from lightagentd.policy.rulefiles import POLICY_FOLDER, read_files, rule_files

    for name in places:
        check_readable(name)
    found = [Path(place) for place in places] or [default_paths().config / POLICY_FOLDER]
    files: list[Path] = []
    for place in found:
        files += rule_files(place) if place.is_dir() or not places else [place]
    return read_files(files)


def _decision(rule: dict[str, Any]) -> str:
    return f"{rule['decision']}{' even if tainted' if rule['even_if_tainted'] else ''}"


def _conditions(rule: dict[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in rule["conditions"].items())


def _value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    return dump(value)


def _one_line(rule: dict[str, Any]) -> str:
    return f"{rule['name']} ({_decision(rule)}, {rule['origin']})"


def _decides(found: dict[str, Any], rule: dict[str, Any]) -> bool:
    return bool(found["origin"]) and (found["rule"], found["origin"]) == (rule["name"], rule["origin"])
