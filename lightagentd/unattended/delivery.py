"""Delivers the answer of a prompt to a file or to sendmail(8), as the user that this process has become."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path

from lightagentd.errors import StorageError, ToolError, Unavailable
from lightagentd.host.process import run
from lightagentd.unattended import answer_file
from lightagentd.unattended.journal import harmless

SENDMAIL_PATH = "/usr/sbin:/usr/lib:/usr/bin:/usr/local/sbin:/usr/local/bin"
MAIL_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An answer to be delivered. `name` is that of the prompt's file."""

    name: str
    agent: str
    text: str
    session: str


def check_file(name: str, path: Path) -> None:
    """Check, before an agent works, whether the answer of the prompt `name` may go to this file. Raises
    StorageError.
    """
    try:
        answer_file.check_place(path)
    except OSError as err:
        raise _unwritable(name, path, err) from err


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
        refused = _unwritable(delivery.name, path, err)
        refused.suggestion = f"It is kept: lactl sessions show {delivery.session}. {refused.suggestion}"
        raise refused from err


def _unwritable(name: str, path: Path, err: OSError) -> StorageError:
    if isinstance(err, answer_file.Unsafe):
        suggestion = "The file has to be the owner's own, where nobody else but root can write to any folder."
    else:
        suggestion = (
            "The owner of the prompt must be able to write there, and the unit must let them: ReadWritePaths="
            f" in systemctl edit lightagent-prompt@{name}"
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
