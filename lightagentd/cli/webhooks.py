"""`lactl webhooks`: the requests of other programs that fired triggers."""

from __future__ import annotations

import json
from typing import Any

import click

from lightagentd.cli.event_source import newest
from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import Columns, as_json, fields, listing, say, told
from lightagentd.cli.question import visible
from lightagentd.cli.when import ago, moment
from lightagentd.errors import EventNotFound

TOPIC = "trigger.webhook"


@click.group("webhooks", cls=Group)
def command() -> None:
    """List, show and replay the requests that the gateway took for triggers."""


@command.command("list")
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="N")
@click.pass_obj
def list_requests(settings: Settings, name: str | None, limit: int) -> None:
    """List the newest requests, of one webhook or of all, oldest first; refused ones with their count.

    The columns: time, number, webhook, what became of it, bytes of the body, and what it said it is about.
    """
    found = newest(settings, {"topic": TOPIC}, limit if name is None else 10_000)
    rows = [_row(one) for one in found if one["data"] and name in (None, one["data"]["trigger"])]
    columns: Columns = {
        "TIME": lambda one: ago(one["time"]),
        "NUMBER": "number",
        "WEBHOOK": "webhook",
        "RESULT": "result",
        "BYTES": "bytes",
        "ABOUT": "about",
    }
    none = 'There were none. Triggers with on = "webhook" take them: lightagent-trigger(5).'
    listing(settings, rows[-limit:], columns, spare=("ABOUT", "BYTES"), empty=none)


@command.command("show")
@click.argument("number")
@click.pass_obj
def show(settings: Settings, number: str) -> None:
    """Show a request: its headers, without signature and token, and its body."""
    found = settings.call("History.Query", request=number, type="taken", topic=TOPIC)
    event = next((one for one in found if one["data"]), None)
    if event is None:
        raise EventNotFound(f"There is no request {number[:80]!r}.", suggestion="See: lactl webhooks list")
    if as_json(settings, event):
        return
    said = event["data"]
    rows = {**_row(event), "time": moment(event["time"]), "sha256": said["digest"], **said["headers"]}
    fields((key, value) for key, value in rows.items() if value not in ("", None))
    say("")
    say(visible(_indented(said["body"])))


@command.command("replay")
@click.argument("number")
@click.pass_obj
def replay(settings: Settings, number: str) -> None:
    """Have the agent asked again about a request; for the owner of its trigger and administrators."""
    new = settings.call("Triggers.Replay", number=number)
    told(settings, {"number": new}, f"The request {number} is taken again, as {new}.")


def _row(event: dict[str, Any]) -> dict[str, Any]:
    said = event["data"]
    taken = event["type"] == "taken"
    return {
        "time": event["time"],
        "number": event["request_id"] if taken else "",
        "webhook": said["trigger"],
        "result": ("replayed" if said.get("replay_of") else "taken") if taken else f"{said['count']} refused",
        "bytes": len(said["body"].encode()) if taken else 0,
        "about": said["headers"].get("x-github-event", "") if taken else said["message"],
    }


def _indented(body: str) -> str:
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except ValueError:
        return body
