"""`lactl audit`: who did what, and whether the history is unchanged."""

from __future__ import annotations

import base64
from typing import Any

import click

from lightagentd.cli import event_source
from lightagentd.cli.audit_list import list_acts
from lightagentd.cli.audit_verify import verify
from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import as_json, fields, say, table
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import is_terminal
from lightagentd.cli.when import moment
from lightagentd.errors import NotFound

_TOPIC = "daemon.checkpoint"


@click.group("audit", cls=Group)
def command() -> None:
    """See who did what, and check the history for tampering."""


command.add_command(list_acts)
command.add_command(verify)


@command.command("key")
@stored_option
@click.pass_obj
def key(settings: Settings) -> None:
    """Print the public key that the history is signed with.

    It is PEM, as openssl reads it; on a terminal its fingerprint stands before it. Keep a copy where
    nobody who can change the history can change it, for 'lactl audit verify --public-key'.
    """
    from lightagentd.events.audit.signing import public_pem

    found = event_source.newest(settings, {"topic": _TOPIC, "type": "key"}, 1)
    if not found or not found[0]["data"]:
        raise NotFound("The history names no key.", suggestion="Start the daemon: it makes one.")
    data = found[0]["data"]
    pem = public_pem(base64.b64decode(data["public_key"]))
    if as_json(settings, {**data, "pem": pem, "seq": found[0]["seq"], "time": found[0]["time"]}):
        return
    if is_terminal():
        fields([("fingerprint", data["fingerprint"]), ("since event", found[0]["seq"])])
    say(pem, end="")


@command.command("checkpoints")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest so many.")
@stored_option
@click.pass_obj
def checkpoints(settings: Settings, limit: int) -> None:
    """List the newest checkpoints: what of the history is signed.

    The columns: number of the event, time, the last event that it covers, that event's hash, the first
    digits of the key's fingerprint. What is signed is a text of three lines, each with its newline: the words
    'lightagentd checkpoint 1', the number and the hash of the last event that it covers. The signature, which
    --json shows, is Ed25519 in Base64, so 'openssl pkeyutl -verify -rawin' can check it, too.
    """
    found = event_source.newest(settings, {"topic": _TOPIC, "type": "signed"}, limit)
    rows = [_row(event) for event in found if event["data"]]
    if as_json(
        settings, [{**event["data"], "event": event["seq"], "time": event["time"]} for event in found]
    ):
        return
    table(
        ["EVENT", "TIME", "COVERS", "HASH", "KEY"],
        rows,
        spare=("KEY", "TIME"),
        empty="There is no checkpoint yet.",
    )


def _row(event: dict[str, Any]) -> list[object]:
    data = event["data"]
    return [event["seq"], moment(event["time"]), data["seq"], data["hash"], data["fingerprint"][:16]]
