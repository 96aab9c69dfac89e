"""`lactl tokens`: secrets with which programs speak for a user through the gateway."""

from __future__ import annotations

import re
from typing import Any

import click

from lightagentd.cli.options import Group, Settings, agent_names, names_of
from lightagentd.cli.output import Columns, as_json, fields, listing, say, told, warn
from lightagentd.cli.when import ago, local
from lightagentd.errors import InvalidArgument

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SPAN = re.compile(rf"(\d{{1,9}})({'|'.join(_UNITS_S)})")
_LIMIT = re.compile(r"(requests|streams|bytes|tokens)=(\d{1,12})([KMG]?)(/min|/day|)")
_LIMITS = {
    "requests": ("requests_per_minute", "/min"),
    "streams": ("streams", ""),
    "bytes": ("request_bytes", ""),
    "tokens": ("tokens_per_day", "/day"),
}
_COLUMNS: Columns = {
    "NAME": "name",
    "USER": "user",
    "SCOPES": "scopes",
    "AGENTS": lambda token: token["agents"] or "all",
    "CREATED": lambda token: ago(token["created_us"]),
    "EXPIRES": lambda token: ago(token["expires_us"]) if token["expires_us"] else "never",
    "USED": lambda token: ago(token["used_us"]) if token["used_us"] else "never",
    "ID": "id",
    "LIMITS": lambda token: _shown(token["limits"]) or "-",
    "TODAY": lambda token: _today(token["tokens_today"], token["limits"]["tokens_per_day"]),
}
_SPARE = ("TODAY", "LIMITS", "ID", "CREATED", "USER")
token_names = names_of("Tokens.List", "name")


@click.group("tokens", cls=Group)
def command() -> None:
    """Make, list and revoke tokens, with which programs use the gateway in your name.

    A token does what its scopes say and you may do without being asked for a password, and nothing else: it
    cannot change the configuration, stop everything, install tools or make tokens.
    """


@command.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    metavar="SCOPE,…",
    help="What it is for: inspect, prompt, approve.",
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    shell_complete=agent_names,
    help="For this agent alone; may be given again.",
)
@click.option("--expires", default="", metavar="SPAN", help="When it ends: 12h, 30d, 52w; never without it.")
@click.option("--user", default="", metavar="USER", help="Whose it is, if not yours; for root.")
@click.option(
    "--limits",
    default="",
    metavar="LIMIT,…",
    help="What it is held to: requests=60/min, streams=4, bytes=1M, tokens=200000/day.",
)
@click.pass_obj
def create(
    settings: Settings,
    name: str,
    scopes: tuple[str, ...],
    agents: tuple[str, ...],
    expires: str,
    user: str,
    limits: str,
) -> None:
    """Make a token, and show it this once; the daemon keeps its SHA-256.

    A token with the scope approve answers your agents' questions for you: whoever has it can have them change
    this machine.

    \b
      lactl tokens create chat --scope prompt --agent ops --expires 30d
    """
    given: dict[str, Any] = {
        "name": name,
        "scopes": [one for text in scopes for one in text.split(",") if one],
    }
    given |= {"agents": list(agents)} if agents else {}
    given |= {"expires_s": _seconds(expires)} if expires else {}
    given |= {"user": user} if user else {}
    given |= {"limits": _limits(limits)} if limits else {}
    made = settings.call("Tokens.Create", **given)
    if as_json(settings, made):
        return
    say(made["secret"])
    token = made["token"]
    until = f"until {local(token['expires_us'])}" if token["expires_us"] else "without an end"
    whose = (
        f"{token['user']}'s, for {', '.join(token['scopes'])} of {', '.join(token['agents']) or 'all agents'}"
    )
    warn(f"This is shown once. It is {whose}, {until}.")


@command.command("list")
@click.pass_obj
def list_tokens(settings: Settings) -> None:
    """List your tokens; root sees those of all users."""
    listing(settings, settings.call("Tokens.List"), _COLUMNS, spare=_SPARE, empty="There are no tokens.")


@command.command("show")
@click.argument("name", shell_complete=token_names)
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show a token, by its name or ID; never its secret."""
    found = [one for one in settings.call("Tokens.List") if name in (one["name"], one["id"])]
    if not found:
        raise InvalidArgument(f"There is no token {name[:60]!r}.", suggestion="Run: lactl tokens list")
    if as_json(settings, found[0] if len(found) == 1 else found):
        return
    for one in found:
        fields(
            (title.lower(), value(one) if callable(value) else one[value])
            for title, value in _COLUMNS.items()
        )


@command.command("revoke")
@click.argument("name", shell_complete=token_names)
@click.pass_obj
def revoke(settings: Settings, name: str) -> None:
    """End a token, by its name or ID: its calls are refused at once, and its streams end."""
    found = settings.call("Tokens.Revoke", name=name)
    told(settings, found, f"The token {found['name']} of {found['user']} is revoked.")


def _seconds(text: str) -> int:
    if (found := _SPAN.fullmatch(text)) is None:
        raise InvalidArgument(
            f"{text[:60]!r} is no span of time.", field="expires", suggestion="Write 90min, 12h, 30d or 52w."
        )
    return int(found[1]) * _UNITS_S[found[2]]


def _limits(text: str) -> dict[str, int]:
    limits: dict[str, int] = {}
    for one in text.split(","):
        found = _LIMIT.fullmatch(one.strip())
        if found is None or found[4] not in ("", _LIMITS[found[1]][1]):
            raise InvalidArgument(
                f"{one[:60]!r} is no limit of a token.",
                field="limits",
                suggestion="Write requests=60/min, streams=4, bytes=1M, tokens=200000/day, or some of them.",
            )
        limits[_LIMITS[found[1]][0]] = int(found[2]) * _SIZES[found[3]]
    return limits


def _today(used: int, most: int) -> str:
    return f"{used:,} of {most:,} tokens" if most else f"{used:,} tokens"


def _shown(limits: dict[str, int]) -> str:
    return ",".join(f"{name}={limits[key]}{per}" for name, (key, per) in _LIMITS.items() if limits[key])
