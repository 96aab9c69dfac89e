"""`lactl models`: the language models, the facts about them, and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from lightagentd.cli.options import Group, Settings, agent_names, model_names, names_of
from lightagentd.cli.output import Columns, as_json, fields, listing, say, table, warn
from lightagentd.cli.table_source import DEFAULT_URL
from lightagentd.cli.terminal import GREEN, MAGENTA, RED, is_terminal, style
from lightagentd.errors import LimitExceeded

TEST_TIMEOUT_S = 1000.0
"""Longer than a model may take for an answer, unless the configuration says otherwise."""
_COLOURS = {"ready": GREEN, "unusable": RED, "paused": MAGENTA}
_SHOWN_PROBLEMS = 5


@click.group("models", cls=Group)
def command() -> None:
    """See, test and refresh the language models that agents can use."""


provider_names = names_of("Models.Providers", "name")


@command.command("list")
@click.option("--all", "every", is_flag=True, help="All known models of every configured provider, too.")
@click.option(
    "--provider",
    metavar="NAME",
    shell_complete=provider_names,
    help="The known models of this provider, whether it is configured or not.",
)
@click.pass_obj
def list_models(settings: Settings, every: bool, provider: str | None) -> None:
    """List the models that agents or the configuration name, and whether they can be used.

    The columns: model, state, window (tokens), whether it calls tools, whether it reasons, price of a
    million tokens of prompts, price of a million of answers, where these facts are from, agents. The model
    of agents that name none is marked '(default)' among these.

    On a terminal, servers that run on this machine and that nobody uses are offered below the list; for
    programs, 'lactl models providers' lists them.
    """
    found = settings.call("Models.List", provider=provider, all=every or None)
    listing(
        settings,
        found,
        _COLUMNS,
        spare=("FROM", "REASONS", "TOOLS", "ANSWER", "PROMPT", "WINDOW"),
        empty="No models are known.",
    )
    if settings.json:
        return
    for each in _unique_problems(found):
        warn(*each)
    if is_terminal() and not provider:
        _offer(settings.call("Models.Providers"))


@command.command("providers")
@click.pass_obj
def list_providers(settings: Settings) -> None:
    """List the endpoints of models: those that are configured, and servers found on this machine or at the
    addresses of models.look_at.

    The columns: name, state, kind, URL, whether there is a key, how many of its models are known, and of a
    server that was found its models. One that was found is used by nobody until a model of it is named.
    """
    found = settings.call("Models.Providers")
    none = "No provider is configured, and no server was found on this machine."
    listing(settings, found, _PROVIDERS, spare=("KNOWN", "KIND"), empty=none)
    if settings.json:
        return
    for each in _unique_problems(found):
        warn(*each)
    if is_terminal():
        _offer(found)


@command.command("show")
@click.argument("model", metavar="MODEL", shell_complete=model_names)
@click.pass_obj
def show(settings: Settings, model: str) -> None:
    """Show what is known of MODEL, which is PROVIDER/MODEL, and from where.

    What the configuration says ([models.known], [models.prices]) goes before the table that 'lactl models
    refresh' brought, and that before the one that came with the program.
    """
    found = settings.call("Models.Show", model=model)
    if as_json(settings, found):
        return
    price = found.get("price") or {}
    state = found["state"]
    fields(
        [
            ("model", found["model"]),
            ("name", found["name"]),
            ("state", style(state, _COLOURS[state]) if state in _COLOURS and is_terminal() else state),
            ("problem", found["problem"]),
            ("agents", found["agents"]),
            ("default", found["default"]),
            ("window", _number(found.get("context_tokens"))),
            ("window from", found["context_from"]),
            ("longest prompt", _number(found.get("input_tokens"))),
            ("longest answer", _number(found.get("max_output_tokens"))),
            ("tools", _yes(found.get("tools"))),
            ("reasons", _yes(found.get("reasoning"))),
            ("attachments", _yes(found.get("attachments"))),
            ("price prompt", _money(price.get("prompt"))),
            ("price answer", _money(price.get("completion"))),
            ("price cached", _money(price.get("cached"))),
            ("price from", price.get("origin", "")),
            ("knows until", found["knowledge"]),
            ("released", found["released"]),
            ("status", found["status"]),
            ("facts from", found["facts_from"]),
        ]
    )
    if found["suggestion"]:
        warn(found["problem"], found["suggestion"])


@command.command("test")
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="The model of this agent.")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=model_names)
@click.pass_obj
def test(settings: Settings, agent: str | None, model: str | None) -> None:
    """Make one real call of MODEL, or of the default model, and show what it can do.

    The model is asked for a sentence and for a call of a function, which nothing runs. The call costs what
    it costs, and 'lactl usage' counts it. A model that no agent uses can be tested by administrators.

    The columns: what was looked for, whether it was seen ('-' where that cannot be told), details. The exit
    status is 0 when the model answered.
    """
    found = settings.call("Models.Test", timeout_s=TEST_TIMEOUT_S, model=model, agent=agent)
    if as_json(settings, found):
        return
    if is_terminal():
        whose = f" of the agent {found['agent']}" if found["agent"] else ""
        say(f"{found['model']}{whose} answers. {found['text']}".strip())
    table(
        ("CHECK", "SEEN", "DETAIL"),
        ((each["name"], _yes(each.get("seen")), each["detail"]) for each in found["checks"]),
    )
    if is_terminal() and found.get("cost") is not None:
        say(f"This call cost {found['cost']:.2g}.")


@command.command("refresh")
@click.argument("source", metavar="[FILE|URL]", required=False)
@click.pass_obj
def refresh(settings: Settings, source: str | None) -> None:
    """Give the daemon a newer table of what is known of models: windows, prices, abilities.

    It comes from FILE ('-' is standard input), from URL, or from https://models.dev/api.json, and has the
    JSON shape of that. It is lactl that fetches it; the daemon checks and keeps it. Where a key is sent to is
    never taken from it. Prices count at once, a new window after the next 'lactl reload'.
    """
    from lightagentd.cli.table_source import read_source
    from lightagentd.llm.metadata.table import MAX_TABLE_CHARS, read_table, table_text

    reading = read_table(read_source(source or DEFAULT_URL), strict=False)
    text = table_text(reading.table)
    if len(text) > MAX_TABLE_CHARS:
        raise LimitExceeded(
            f"The table has more than {MAX_TABLE_CHARS >> 20} MiB, even without what is not needed.",
            suggestion="Leave out the providers that you do not use.",
        )
    found = settings.call("Models.Refresh", data=text)
    if as_json(settings, {**found, "left_out": reading.left_out}):
        return
    say(f"The table has {_count(found['models'], 'model')} of {_count(found['providers'], 'provider')} now.")
    for change in found["changes"]:
        say(change)
    for problem in reading.left_out[:_SHOWN_PROBLEMS]:
        warn(f"Left out: {problem}.")
    if len(reading.left_out) > _SHOWN_PROBLEMS:
        warn(f"Left out: {len(reading.left_out) - _SHOWN_PROBLEMS} more.")


def _offer(providers: Iterable[dict[str, Any]]) -> None:
    """Mention unused model servers on this machine, and how to use one."""
    for each in providers:
        if each["state"] != "found":
            continue
        names = each["models"]
        if each["suggestion"]:  # of models.look_at
            say(f"\nFound at {each['base_url'].removesuffix('/v1')}: {_few(names)}.")
            say(f"To use it: {each['suggestion']} Then its models are {each['name']}/MODEL.")
            continue
        say(f"\nFound on this machine: {each['name']} at {each['base_url']} with {_few(names)}.")
        if names:
            model = f"{each['name']}/{names[0]}"
            say(f"To use it, write 'model: {model}' into an AGENT.md,")
            say(f"or 'default = \"{model}\"' under [models] in the configuration.")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _few(names: Sequence[str]) -> str:
    if not names:
        return "no model"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _unique_problems(found: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each problem once, with a remedy."""
    return [*dict.fromkeys((each["problem"], each["suggestion"]) for each in found if each["problem"])]


def _number(value: int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if is_terminal() else str(value)


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _price(model: dict[str, Any], what: str) -> str:
    return _money((model.get("price") or {}).get(what))


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


_COLUMNS: Columns = {
    "MODEL": "model",
    "STATE": "state",
    "WINDOW": lambda each: _number(each.get("context_tokens")),
    "TOOLS": lambda each: _yes(each.get("tools")),
    "REASONS": lambda each: _yes(each.get("reasoning")),
    "PROMPT": lambda each: _price(each, "prompt"),
    "ANSWER": lambda each: _price(each, "completion"),
    "FROM": "facts_from",
    "AGENTS": lambda each: [*(["(default)"] if each["default"] else []), *each["agents"]],
}
_PROVIDERS: Columns = {
    "NAME": "name",
    "STATE": "state",
    "KIND": "kind",
    "URL": "base_url",
    "KEY": "key",
    "KNOWN": "known_models",
    "MODELS": "models",
}
