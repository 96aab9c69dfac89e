"""Brings the answer of a prompt to a file or to sendmail(8), as the user that this process is by then."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path

from lightagentd.errors import StorageError, ToolError, Unavailable
from lightagentd.unattended.journal import harmless
from lightagentd.worker.process import run

SENDMAIL_PATH = "/usr/sbin:/usr/lib:/usr/bin:/usr/local/sbin:/usr/local/bin"
MAIL_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An answer on its way. `name` is that of the prompt's file."""

    name: str
    agent: str
    text: str
    session: str


def write_file(delivery: Delivery, path: Path, *, append: bool) -> None:
    """Put the answer into a file: after what is there, below a line with the time, or in its place, whole.

    Raises StorageError.
    """
    text = harmless(delivery.text).rstrip("\n") + "\n"
    try:
        if append:
            when = time.strftime("%Y-%m-%d %H:%M:%S %z")
            _append(path, f"# {when} {delivery.name}, session {delivery.session}\n\n{text}\n")
        else:
            _replace(path, text)
    except OSError as err:
        raise StorageError(
            f"The answer cannot be written to {path}: {err.strerror or err}.",
            suggestion=f"It is kept: lactl sessions show {delivery.session}. The owner of the prompt must be "
            "able to write there, and the unit must let him: ReadWritePaths= in "
            f"systemctl edit lightagent-prompt@{delivery.name}",
        ) from err


def _append(path: Path, text: str) -> None:
    # O_NONBLOCK: a FIFO without a reader must not hold the program.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(None, "it is no regular file")
        file.write(text.encode())


def _replace(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():
        raise OSError(None, "it is no regular file")
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(text.encode())
            with contextlib.suppress(FileNotFoundError):  # who could read the old one can read the new one
                os.fchmod(fd, stat.S_IMODE(path.stat().st_mode) & 0o666)
            file.flush()
            os.fsync(fd)
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_sendmail() -> str:
    """Where sendmail(8) is. Raises Unavailable."""
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
