"""Checks that the journal survives a reboot and holds the daemon's events."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from lightagentd.api import Finding
from lightagentd.doctor.finding import not_tried, note, ok, wrong
from lightagentd.events.journal.journal_socket import SOCKET
from lightagentd.host.systemd import BOOTED

PERSISTENT, VOLATILE = Path("/var/log/journal"), Path("/run/log/journal")
READERS = "Run it as root, or as a member of the group systemd-journal."
_PATIENCE_S, _POLL_S = 3.0, 0.1
"""How long an event may take from journald's socket to its files."""
_SUPPRESSED = "a596d6fe7bfa4994828e72309e95d61e"
"""The MESSAGE_ID of what journald says when it drops entries for being too many (sd-messages.h)."""
_STATUS = "Look at: systemctl status systemd-journald"


def check(pid: int | None, seq: int | None, *, in_daemon: bool) -> list[Finding]:
    """`seq` is an event that the journal must have, stored by the daemon with the process id `pid`.

    The daemon does not read it: a journal file that is cut while it is mapped would end it with SIGBUS.
    """
    if not SOCKET.exists():
        if BOOTED.is_dir():
            remedy = "systemctl restart systemd-journald.socket; the history has every event meanwhile."
            return [wrong("journal", "journal", f"{SOCKET} is not there", remedy)]
        return [note("journal", "journal", "journald does not run here; the history has every event", "")]
    found = [_storage()]
    if in_daemon:
        why = "the daemon itself does not read the journal"
        return [*found, not_tried("journal", "events", why, "lactl doctor does.")]
    if not _readable():
        return [
            *found,
            not_tried("journal", "events", "this user may not read the system's journal", READERS),
        ]
    if seq is None or pid is None:
        return [*found, not_tried("journal", "events", "no daemon runs", "systemctl start lightagentd")]
    return [*found, _events(seq, pid), _suppressed()]


def _storage() -> Finding:
    if PERSISTENT.is_dir():
        return ok("journal", "storage", f"persistent, in {PERSISTENT}")
    remedy = "To keep it: mkdir /var/log/journal; systemctl restart systemd-journald"
    return note("journal", "storage", "volatile: it ends with the machine's uptime", remedy)


def _readable() -> bool:
    """Whether the files of the system's own journal are open to this user."""
    files = [path for folder in (PERSISTENT, VOLATILE) for path in folder.glob("*/system.journal")]
    return any(os.access(path, os.R_OK) for path in files)


def _events(seq: int, pid: int) -> Finding:
    deadline = time.monotonic() + _PATIENCE_S
    while not _has(LIGHTAGENT_SEQ=str(seq), _PID=str(pid)):
        if time.monotonic() > deadline:
            detail = f"event {seq} of the history is not in the journal"
            return wrong("journal", "events", detail, f"{_STATUS}; the history has every event.")
        time.sleep(_POLL_S)
    return ok("journal", "events", f"event {seq} is in the journal")


def _suppressed() -> Finding:
    matches = {"MESSAGE_ID": _SUPPRESSED, "OBJECT_SYSTEMD_UNIT": "lightagentd.service"}
    if _has(**matches):
        remedy = "Set LogRateLimitIntervalSec=0 again: systemctl edit lightagentd"
        return note(
            "journal", "rate limit", "journald has dropped entries of the daemon in this boot", remedy
        )
    return ok("journal", "rate limit", "nothing was dropped in this boot")


def _has(**matches: str) -> bool:
    """Whether this boot's journal has an entry with these fields."""
    library: Any = importlib.import_module("systemd.journal")
    with library.Reader() as reader:
        reader.this_boot()
        for name, value in matches.items():
            reader.add_match(f"{name}={value}")
        reader.seek_tail()
        return bool(reader.get_previous())
