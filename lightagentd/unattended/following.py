"""Follows all that happens, for services that take it elsewhere: telemetry and notifications.

Such a service is an ordinary client of the control socket, which asks from time to time for what was stored
since, as it is stored (`History.Records`): the daemon decodes nothing for it. How far it came is in a file of
its own, which is written whole or not at all. `Telling` has the service manager and the daemon know what
keeps it from its work.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from lightagentd.client.aio import AsyncClient
from lightagentd.config.configuration import Config, load
from lightagentd.errors import Cancelled, LightagentError, StorageError
from lightagentd.events.model import decode
from lightagentd.host.atomic_file import whole_file
from lightagentd.host.paths import default_paths
from lightagentd.host.systemd import STATUS_MAX, notify
from lightagentd.text.reason import reason
from lightagentd.unattended.asking import run_until_told

_log = logging.getLogger(__name__)

Event = dict[str, Any]
"""A stored event as clients get it."""


class Service(Protocol):
    """`await run()` follows until it is cancelled."""

    async def run(self) -> None: ...


def serve(
    prog: str,
    description: str,
    made: Callable[[Config, Path, Path | None, Path | None], Service],
    arguments: Sequence[str] | None,
) -> None:
    """The program of a service. `made` gets the configuration, the file of its state, the daemon's socket and
    the runtime folder. What keeps it from its work is a sentence in the journal, and a status that is not 0.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="the daemon's (default: as lactl finds it)"
    )
    parser.add_argument("--state", type=Path, metavar="FILE", required=True, help="how far it has come")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        config, _ = load(options.folder or default_paths().config)
        runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        service = made(config, options.state, options.socket, Path(runtime) if runtime else None)
        run_until_told(service.run)
    except Cancelled:
        return  # told to end
    except LightagentError as err:
        notify(f"STATUS={err.message}")
        parser.exit(err.exit_status, f"<3>{err.message} {err.suggestion}\n")


async def head_of(client: AsyncClient) -> int:
    """The number of the newest event; 0 for none. Raises the errors of a client."""
    newest = (await client.call("History.Page", limit=1))["page"]["events"]
    return int(newest[-1]["seq"]) if newest else 0


async def page_from(
    client: AsyncClient,
    from_seq: int,
    kinds: Sequence[str],
    take: Callable[[str], Awaitable[None]],
    replaced: Callable[[], Awaitable[int]],
) -> tuple[int, bool]:
    """Have `take` take the records of one page, and give where to go on, and whether that is all for now.
    `replaced` says where when the history ends before `from_seq`. Raises the errors of a client.
    """
    page = (await client.call("History.Records", from_seq=from_seq, kinds=list(kinds)))["page"]
    if page["missed"]:
        _log.warning("retention removed %d events before they were sent", page["missed"])
    await take(page["records"])
    if page["head_seq"] + 1 < from_seq:
        return await replaced(), False
    return int(page["next_seq"]), page["next_seq"] > page["head_seq"]


def records_of(text: str) -> Iterator[tuple[str, Event | None]]:
    """The header of each record of a page, and its event; None for one that cannot be read."""
    lines = text.split("\n")
    for header, data in zip(lines[::2], lines[1::2], strict=False):
        try:
            yield header, decode(f"{header}\n{data}".encode()).to_dict()
        except (KeyError, TypeError, ValueError) as err:
            _log.warning("an event cannot be read: %s: %s: %s", type(err).__name__, err, header[:80])
            yield header, None


def read_state(path: Path) -> dict[str, Any] | None:
    """The stored object; None when there is none yet. Raises StorageError for a file that is damaged: to
    begin anywhere else would lose events, or send them again.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StorageError(f"{path} cannot be read: {reason(err)}.") from err
    except (ValueError, RecursionError) as err:
        raise damaged(path) from err
    if not isinstance(found, dict):
        raise damaged(path)
    return found


def damaged(path: Path) -> StorageError:
    return StorageError(f"{path} is damaged.", suggestion="Remove it; what happens from then on is sent.")


def store_state(path: Path, state: dict[str, Any]) -> None:
    """Raises StorageError."""
    try:
        with whole_file(path) as file:
            file.write(json.dumps(state).encode() + b"\n")
    except OSError as err:
        raise StorageError(f"{path} cannot be written: {reason(err)}.") from err


class Telling:
    """Tells how a service is; `told` is the file that has the daemon know of a problem."""

    def __init__(self, told: Path | None) -> None:
        self._told = told
        self.problem = ""

    def tell(self, does: str, problem: str | None = None) -> None:
        """Tell the service manager what the service does or what keeps it from that, and the daemon of a
        problem; with None it is as before.
        """
        if problem is not None and problem != self.problem:
            self.problem = problem
            self._tell_daemon()
        notify(f"READY=1\nSTATUS={(self.problem or does)[:STATUS_MAX]}")

    def _tell_daemon(self) -> None:
        if self._told is None:
            return
        try:
            with whole_file(self._told, mode=0o644) as file:
                file.write(self.problem.encode())
        except OSError as err:
            _log.warning("%s cannot be written: %s", self._told, reason(err))
