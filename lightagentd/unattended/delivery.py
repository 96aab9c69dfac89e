"""Delivers an answer to a file, sendmail(8), a command or the desktop, as the owner of the question.

    python -I -m lightagentd.unattended.delivery --name TRIGGER     (the answer as JSON on standard input)

is how lightagent-triggers.service does that; the program of a prompt's unit does it itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from html import escape
from pathlib import Path

from lightagentd.bus.connection import connect
from lightagentd.config.triggers import TriggerFiles
from lightagentd.config.unattended import Unattended
from lightagentd.errors import LightagentError, StorageError, ToolError, Unavailable
from lightagentd.host import libc
from lightagentd.host.paths import default_paths
from lightagentd.host.process import run
from lightagentd.text.reason import reason
from lightagentd.unattended import answer_file
from lightagentd.unattended.journal import harmless
from lightagentd.unattended.owner import become

COMMAND_TIMEOUT_S = 600.0
DESKTOP_CHARS = 1000
SENDMAIL_PATH = "/usr/sbin:/usr/lib:/usr/bin:/usr/local/sbin:/usr/local/bin"
MAIL_TIMEOUT_S = 120.0
_UNIT = "lightagent-triggers"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An answer to be delivered. `name` is that of the file of its question, `unit` the unit that does it."""

    name: str
    unit: str
    agent: str
    text: str
    session: str


def check_file(unit: str, path: Path) -> None:
    """Check, before an agent works, whether its answer may go to this file. Raises StorageError."""
    try:
        answer_file.check_place(path)
    except OSError as err:
        raise _unwritable(unit, path, err) from err


def write_file(delivery: Delivery, path: Path, *, append: bool) -> None:
    """Write the answer to a file: appended, below a line with the time, or in place of the old content.
    Raises StorageError.
    """
    text = harmless(delivery.text).rstrip("\n") + "\n"
    try:
        if append:
            when = time.strftime("%Y-%m-%d %H:%M:%S %z")
            answer_file.append(path, f"# {when} {delivery.name}, session {delivery.session}\n\n{text}\n")
        else:
            answer_file.replace(path, text)
    except OSError as err:
        refused = _unwritable(delivery.unit, path, err)
        refused.suggestion = f"It is kept: lactl sessions show {delivery.session}. {refused.suggestion}"
        raise refused from err


def _unwritable(unit: str, path: Path, err: OSError) -> StorageError:
    if isinstance(err, answer_file.Unsafe):
        suggestion = "The file has to be the owner's own, where nobody else but root can write to any folder."
    else:
        suggestion = (
            "The owner must be able to write there, and the unit must let them: ReadWritePaths="
            f" in systemctl edit {unit}"
        )
    return StorageError(
        f"The answer cannot be written to {path}: {err.strerror or err}.", suggestion=suggestion
    )


def check_sendmail() -> str:
    """The path of sendmail(8). Raises Unavailable."""
    found = shutil.which("sendmail", path=SENDMAIL_PATH)
    if found is None:
        raise Unavailable(
            "The answer is to be mailed, and there is no sendmail(8) on this machine.",
            suggestion='Install a mail system, or have the answer go elsewhere: answer = "journal"',
        )
    return found


async def deliver(file: Unattended, delivery: Delivery) -> str:
    """Take an answer to where the file of its question says. Gives a sentence that says where it is. Raises
    StorageError, Unavailable, NotFound.
    """
    who = delivery.agent
    if file.file is not None:
        write_file(delivery, file.file, append=file.append)
        return f"The answer of {who} is in {file.file}."
    if file.answer == "mail":
        await send_mail(delivery, file.mail_to or file.owner)
        return f"The answer of {who} was mailed to {file.mail_to or file.owner}."
    if file.answer == "command":
        await _give_to_command(delivery, file.command, file.timeout_s)
        return f"The answer of {who} was given to {file.command[0]}."
    await _show(delivery)
    return f"The answer of {who} is on the desktop of {file.owner}."


def check_target(unit: str, file: Unattended) -> None:
    """Check, before an agent works, whether its answer can be delivered; and give up new privileges, which
    only some programs for mail need. Raises StorageError, Unavailable.
    """
    if file.answer == "mail":
        check_sendmail()
    else:
        libc.forbid_new_privileges()
    if file.file is not None:
        check_file(unit, file.file)


async def _give_to_command(delivery: Delivery, command: Sequence[str], timeout_s: float) -> None:
    kept = f"The answer is kept: lactl sessions show {delivery.session}"
    environment = {
        "LIGHTAGENT_TRIGGER": delivery.name,
        "LIGHTAGENT_AGENT": delivery.agent,
        "LIGHTAGENT_SESSION": delivery.session,
        **{name: os.environ[name] for name in ("HOME", "USER", "LOGNAME") if name in os.environ},
    }
    text = harmless(delivery.text).rstrip("\n") + "\n"
    limit_s = min(timeout_s, COMMAND_TIMEOUT_S)
    try:
        done = await run(list(command), timeout_s=limit_s, env=environment, stdin=text.encode())
    except ToolError as err:
        raise Unavailable(f"{command[0]} cannot be started: {err}", suggestion=kept) from err
    if done.timed_out or done.status != 0:
        said = " ".join(done.stderr.text().split())[:200]
        how = "took too long" if done.timed_out else f"ended with status {done.status}: {said}"
        raise Unavailable(f"The answer cannot be delivered: {command[0]} {how}.", suggestion=kept)


async def _show(delivery: Delivery) -> None:
    """Show the answer on the owner's desktop (https://specifications.freedesktop.org/notification-spec/)."""
    kept = f"The answer is kept: lactl sessions show {delivery.session}"
    bus = Path(f"/run/user/{os.geteuid()}/bus")
    if "DBUS_SESSION_BUS_ADDRESS" not in os.environ and not bus.exists():
        raise Unavailable("The owner has no desktop session on this machine just now.", suggestion=kept)
    os.environ.setdefault("DBUS_SESSION_BUS_ADDRESS", f"unix:path={bus}")
    text = escape(harmless(delivery.text), quote=False)[:DESKTOP_CHARS]
    summary = f"{delivery.agent}: {delivery.name}"
    arguments = ["lightagentd", 0, "", summary, text, [], {}, -1]
    name, path = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"
    async with connect("session") as session_bus:
        await session_bus.call(name, path, name, "Notify", "susssasa{sv}i", arguments)


async def send_mail(delivery: Delivery, to: str) -> None:
    """Hand the answer to sendmail(8). Raises Unavailable."""
    mail = EmailMessage()
    mail["To"] = to
    mail["Subject"] = f"{delivery.agent}: {delivery.name}"
    mail["Date"] = formatdate(localtime=True)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office answers
    mail["X-Lightagent-Session"] = delivery.session
    mail.set_content(harmless(delivery.text))
    kept = f"The answer is kept: lactl sessions show {delivery.session}"
    try:
        done = await run([check_sendmail(), "-i", "--", to], timeout_s=MAIL_TIMEOUT_S, stdin=bytes(mail))
    except ToolError as err:
        raise Unavailable(f"sendmail cannot be started: {err}", suggestion=kept) from err
    if done.timed_out or done.status != 0:
        said = " ".join(done.stderr.text().split())[:200]
        how = "took too long" if done.timed_out else f"ended with status {done.status}: {said}"
        raise Unavailable(f"The answer cannot be mailed: sendmail {how}.", suggestion=kept)


def main() -> None:
    """Deliver the answer of a trigger as its owner: what became of it is a sentence on standard output, or on
    standard error with a status that is not 0.
    """
    parser = argparse.ArgumentParser(prog="lightagent-deliver", description="Deliver an answer.")
    parser.add_argument("--name", required=True, help="the trigger")
    parser.add_argument("--folder", type=Path, help="instead of /etc/lightagentd")
    options = parser.parse_args()
    folder = options.folder or default_paths().config
    try:
        files = TriggerFiles(folder)
        files.read()
        file = files.get(options.name)
        become(file.account(folder))
        answer = json.loads(sys.stdin.buffer.read())
        delivery = Delivery(name=options.name, unit=_UNIT, **answer)
        check_target(_UNIT, file)
        said = asyncio.run(deliver(file, delivery))
    except (LightagentError, OSError, ValueError, TypeError) as err:
        sys.stderr.write(f"{reason(err, at=True) if isinstance(err, OSError) else err}\n")
        sys.exit(getattr(err, "exit_status", 71))
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main()
