"""`lactl notify`: whom lightagent-away.service tells what happens, and whether it reaches them.

It works on the machine itself: the service says how each destination is in a file of its runtime folder, and
takes a test there from root.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.options import Command, Listing, Settings, lists
from lightagentd.cli.output import Columns, cell, listing, told
from lightagentd.cli.when import ago
from lightagentd.client.blocking import socket_path
from lightagentd.errors import LightagentError, NotFound, PermissionDenied, TimedOut, Unavailable

SERVICE = "lightagent-away"
STATUS, TEST = "status.json", "test"
_PATIENCE_S = 60.0


@click.group("notify", cls=Listing)
@click.pass_context
def command(context: click.Context) -> None:
    """List whom lightagent-away.service tells what happens, and test it."""
    if lists(context):
        context.invoke(list_destinations)


@command.command("list")
@click.pass_obj
def list_destinations(settings: Settings) -> None:
    """List the destinations.

    The columns: name, kind, how much waits, when a message was taken last and when not, and why not.
    """
    found = _destinations(settings)
    columns: Columns = {
        "NAME": "name",
        "KIND": "kind",
        "WAITING": "waiting",
        "SENT": lambda one: _moment(one["sent_us"]),
        "FAILED": lambda one: _moment(one["failed_us"]),
        "PROBLEM": lambda one: cell(one["problem"]),
    }
    listing(settings, found, columns, spare=("FAILED", "KIND"), empty="There are no destinations.")


@command.command("test", cls=Command)
@click.argument("name", required=False)
@click.pass_obj
def test(settings: Settings, name: str | None) -> None:
    """Send a test to one destination, or to all, and say what came of it. For root.

    The exit status is 69 when one did not take it.
    """
    names = [one["name"] for one in _destinations(settings)]
    if name is not None and name not in names:
        raise NotFound(f"There is no destination {name[:60]!r}.", suggestion=f"Known: {', '.join(names)}.")
    failed = []
    for each in names if name is None else [name]:
        result = _tried(settings, each)
        told(
            settings,
            {"name": each, "problem": result},
            f"{each}: {result or 'taken'}",
            each,
            result or "taken",
        )
        failed += [each] if result else []
    if failed:
        raise Unavailable(f"Not reached: {', '.join(failed)}.")


def _folder(settings: Settings) -> Path:
    """The runtime folder of the service that is beside the daemon."""
    return Path(settings.socket or socket_path()).parent.with_name(SERVICE)


def _destinations(settings: Settings) -> list[dict[str, Any]]:
    """How each destination is. Raises Unavailable."""
    try:
        found = json.loads((_folder(settings) / STATUS).read_bytes())["destinations"]
        return [{"name": name, **one} for name, one in sorted(found.items())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise Unavailable(
            "lightagent-away.service does not run.",
            suggestion="Name destinations ([notify.to.NAME] in lightagentd.toml(5)), and then: systemctl"
            f" enable --now {SERVICE}",
        ) from err


def _tried(settings: Settings, name: str) -> str:
    """What came of a test; empty when it was taken. Raises PermissionDenied, TimedOut."""
    folder, number = _folder(settings), secrets.token_hex(8)
    draft = folder / f".{TEST}.{number}"
    try:
        draft.write_text(json.dumps({"name": name, "number": number}))
        draft.replace(folder / TEST)
    except OSError as err:
        raise _refused(err) from err
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.05)
        try:
            found = json.loads((folder / f"{TEST}.json").read_bytes())
        except (OSError, ValueError):
            continue
        if found["number"] == number:
            return str(found["result"])
    raise TimedOut("The service did not answer.", suggestion=f"Look at: systemctl status {SERVICE}")


def _refused(err: OSError) -> LightagentError:
    if isinstance(err, PermissionError):
        return PermissionDenied("Only root sends a test.", suggestion="Run it with sudo.")
    return Unavailable(f"The service cannot be asked: {err.strerror}.")


def _moment(time_us: int) -> str:
    return ago(time_us) if time_us else "never"
