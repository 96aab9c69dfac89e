"""Checks of the approver, which alone lets people allow changes where systemd runs the workers.

The person who looks asks it themselves: the daemon, which is not trusted with changes, is no witness.
"""

from __future__ import annotations

import stat
from pathlib import Path

from lightagentd.api import Finding
from lightagentd.client.aio import AsyncClient
from lightagentd.client.approver import UNIT_FILE, socket_path
from lightagentd.client.blocking import SYSTEM_SOCKET
from lightagentd.config import configuration
from lightagentd.doctor.finding import not_tried, note, ok, wrong
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from lightagentd.host.users import user_name

STATE = Path("/var/lib/lightagent-approver")
WORKERS = Path("/var/lib/lightagent-change")
USER = "lightagent-approver"
_CALL_S = 5.0
_GROUP = "approver"
_WHY = "See why: systemctl status lightagent-approver.socket lightagent-approver.service"


async def check(paths: Paths) -> list[Finding]:
    """Nothing where no approver belongs to the daemon that is meant."""
    if str(paths.socket) != SYSTEM_SOCKET or not UNIT_FILE.exists():
        return []
    try:
        async with AsyncClient(socket_path(), timeout_s=_CALL_S) as client:
            status = (await client.call("Approver.GetStatus"))["status"]
    except LightagentError as err:
        detail = f"no change can be allowed, since it does not answer: {err.message}"
        return [wrong(_GROUP, "approver", detail, _WHY), *_links(paths)]
    found = [ok(_GROUP, "approver", f"answers; {status['waiting']} wait for a person")]
    found += [wrong(_GROUP, "approver's problem", text, _WHY) for text in status["problems"]]
    if status["panic"] is not None:
        found.append(note(_GROUP, "panic", "it signs nothing", "It ends with: lactl panic --off"))
    return [*found, *_key(str(status["public"])), *_workers(), *_links(paths)]


def _key(public: str) -> list[Finding]:
    """The two halves of its key: one that nobody else reads, and one that the workers for change have."""
    file, key = STATE / "public", STATE / "key"
    try:
        same = file.read_bytes().hex() == public
    except OSError as err:
        return [wrong(_GROUP, "public key", f"{file}: {err.strerror}; no change can be verified", _WHY)]
    if not same:
        remedy = "Start it again: systemctl restart lightagent-approver"
        return [wrong(_GROUP, "public key", f"{file} is not that of its key", remedy)]
    found = [ok(_GROUP, "public key", f"{public[:16]}…, where the workers for change read it")]
    try:
        info = key.stat()
    except FileNotFoundError:
        return [*found, ok(_GROUP, "key", "a credential of its unit")]
    except OSError as err:
        return [*found, not_tried(_GROUP, "key", f"{key}: {err.strerror}")]
    if stat.S_IMODE(info.st_mode) & 0o077 or user_name(info.st_uid) != USER:
        remedy = f"Others may have read it. Make a new one: rm {key}; systemctl restart lightagent-approver"
        return [*found, wrong(_GROUP, "key", f"{key} can be read by others than {USER}", remedy)]
    return [*found, ok(_GROUP, "key", f"{key}, for {USER} alone")]


def _workers() -> list[Finding]:
    """The workers for change sign what they did: each with a key of its own."""
    try:
        folders = sorted(one for one in WORKERS.iterdir() if one.is_dir())
        keys = {one.name: (one / "public").read_bytes().hex()[:16] for one in folders if _has_run(one)}
    except FileNotFoundError:
        return []
    except OSError as err:
        return [not_tried(_GROUP, "workers' keys", f"{WORKERS}: {err.strerror}")]
    said = ", ".join(f"{name} {key}…" for name, key in keys.items())
    return [ok(_GROUP, "workers' keys", said or "no change has run yet")]


def _has_run(folder: Path) -> bool:
    return (folder / "public").exists()


def _links(paths: Paths) -> list[Finding]:
    """Links of notifications that would allow a change."""
    try:
        answers = configuration.load(paths.config)[0].notify.answers
    except (LightagentError, OSError):
        return []  # that the configuration cannot be read is told elsewhere
    if not (answers.on and answers.approve):
        return []
    detail = f"answers.approve has {', '.join(answers.approve)}; links allow no change, they only refuse it"
    return [note(_GROUP, "answers by links", detail, "People allow changes at the approver: lactl approve")]
