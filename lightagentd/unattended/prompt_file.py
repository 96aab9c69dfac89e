"""`lightagent-prompt@NAME.service`: asks what `/etc/lightagentd/prompts/NAME.toml` says, as its owner.

    agent = "ops"
    prompt = "check disk"
    owner = "carol"

The session is the owner's, so the program becomes that user, with their group and supplementary groups,
before it connects: the kernel then names them, and their rights count. The answer goes to the journal, to a
file that they can write, or to sendmail(8). Nobody is asked: a call that needs an approval is refused.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import sys
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightagentd.config.configuration import load_one
from lightagentd.errors import ConfigError, LightagentError, NotFound, PermissionDenied
from lightagentd.events.journal.journal_socket import SOCKET
from lightagentd.host import libc
from lightagentd.host.paths import default_paths
from lightagentd.text.reason import reason
from lightagentd.unattended import journal
from lightagentd.unattended.asking import Answer, Asker, run_until_told
from lightagentd.unattended.delivery import Delivery, check_file, check_sendmail, send_mail, write_file

FOLDER = "prompts"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,99}\Z")

Line = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


class PromptFile(BaseModel):
    """One prompt on a calendar."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    agent: Line = Field(examples=["ops"])
    prompt: str = Field(min_length=1, max_length=1 << 20, examples=["check disk"])
    owner: Line = Field(examples=["carol"])
    """The user whose session it is."""
    session: Annotated[str, Field(pattern=r"^(new|same|ses_[0-9a-f]{1,64})$")] = "new"
    """`new` each time, the `same` one each time, or the id of a session of the owner's that goes on."""
    timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """How long to wait for the answer; then the turn is cancelled."""
    answer: Literal["journal", "file", "mail"] = "journal"
    """Where the answer goes."""
    file: Path | None = None
    append: bool = False
    """Whether the answer is added to the file; else it takes the place of what is there."""
    mail_to: str = Field(default="", pattern=r"^([A-Za-z0-9._+][A-Za-z0-9._+@-]{0,253})?$")
    """The address; empty for the owner."""

    @model_validator(mode="after")
    def _file_belongs_to_it(self) -> Self:
        if (self.answer == "file") != (self.file is not None):
            raise ValueError('answer = "file" and file = "/a/path" go together')
        if self.file is not None and not self.file.is_absolute():
            raise ValueError("file has to be an absolute path")
        if self.append and self.file is None:
            raise ValueError("append is about a file")
        if self.mail_to and self.answer != "mail":
            raise ValueError('mail_to goes with answer = "mail"')
        return self


DEFAULTS = {"health": PromptFile(agent="ops", prompt="health check", owner="root")}
"""What counts where there is no such file: lightagent-health.timer needs none."""


def prompt_files(folder: Path) -> list[Path]:
    """The prompt files below a configuration folder."""
    return sorted((folder / FOLDER).glob("*.toml"))


def load(folder: Path, name: str) -> PromptFile:
    """The prompt `name` of a configuration folder. Raises ConfigError, NotFound."""
    if not _NAME.match(name):
        raise ConfigError(
            f"{name[:60]!r} cannot be the name of a prompt.",
            suggestion="Letters, digits and any of : _ . - make one, as in lightagent-prompt@daily-disk.",
        )
    path = folder / FOLDER / f"{name}.toml"
    if not path.exists():
        if name in DEFAULTS:
            return DEFAULTS[name]
        raise NotFound(
            f"There is no {path}.",
            suggestion="Copy one of /usr/share/doc/lightagentd/examples/prompts/, see lightagentd(8).",
        )
    return check(path)


def check(path: Path) -> PromptFile:
    """Check a prompt file, as far as possible without the daemon. Raises ConfigError."""
    if not _NAME.match(path.stem):
        raise ConfigError(
            f"{path} has a name that no unit can have.",
            suggestion="Letters, digits and any of : _ . - make one.",
        )
    found = load_one(path, PromptFile)
    account_of(found.owner, path)
    return found


def account_of(owner: str, path: Path) -> pwd.struct_passwd:
    """Raises ConfigError when there is no such user."""
    try:
        return pwd.getpwnam(owner)
    except KeyError:
        raise ConfigError(
            f"{path}: owner: there is no user {owner[:60]!r}.", suggestion="Name a user of this machine."
        ) from None


def become(account: pwd.struct_passwd) -> None:
    """Become that user for good, with their group, their supplementary groups and none of root's rights.
    Raises PermissionDenied where this process may not.
    """
    if os.getuid() == os.geteuid() == account.pw_uid:
        return
    try:
        os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    except OSError as err:
        raise PermissionDenied(
            f"The prompt is {account.pw_name}'s, and this process may not become that user: {err.strerror}.",
            suggestion="Start it as root: systemctl start lightagent-prompt@NAME",
        ) from err
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)


def run(name: str, folder: Path, *, control: Path | None = None, journal_socket: Path = SOCKET) -> None:
    """Ask, and deliver the answer. Raises LightagentError."""
    prompt = load(folder, name)
    become(account_of(prompt.owner, folder / FOLDER / f"{name}.toml"))
    if prompt.answer == "mail":
        check_sendmail()
    else:
        libc.forbid_new_privileges()
    if prompt.file is not None:
        check_file(name, prompt.file)
    asker = Asker(control)
    correlation_id = f"prompt:{name}"

    async def ask() -> None:
        session = prompt.session
        if session in ("new", "same"):
            session = await asker.session_named(prompt.agent, f"prompt {name}", reuse=session == "same")
        answer = await asker.ask(
            prompt.agent,
            prompt.prompt,
            correlation_id=correlation_id,
            timeout_s=prompt.timeout_s,
            session=session,
        )
        await _deliver(name, prompt, answer, correlation_id, journal_socket)

    run_until_told(ask)


async def _deliver(
    name: str, prompt: PromptFile, answer: Answer, correlation_id: str, journal_socket: Path
) -> None:
    """Deliver the answer, and log the delivery in the journal."""
    fields = {**journal.fields_of(prompt.agent, answer, correlation_id), "LIGHTAGENT_PROMPT": name}
    delivery = Delivery(name=name, agent=prompt.agent, text=answer.text, session=answer.session)
    if answer.refused:
        refused = ", ".join(dict.fromkeys(answer.refused))
        journal.enter(
            "prompt.refused",
            f"Nobody was there to allow what {prompt.agent} wanted to do, so it was refused: {refused}",
            priority=journal.NOTICE,
            fields=fields,
            socket=journal_socket,
        )
    if prompt.answer == "journal":
        said = answer.text
    elif prompt.file is not None:
        write_file(delivery, prompt.file, append=prompt.append)
        said = f"The answer of {prompt.agent} is in {prompt.file}."
    else:
        await send_mail(delivery, prompt.mail_to or prompt.owner)
        said = f"The answer of {prompt.agent} was mailed to {prompt.mail_to or prompt.owner}."
    journal.enter("prompt.answered", said, fields=fields, socket=journal_socket)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-prompt",
        description="Ask an agent what a file below /etc/lightagentd/prompts says. It is what "
        "lightagent-prompt@NAME.timer starts.",
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="the file, without .toml")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    options = parser.parse_args()
    try:
        run(options.name, options.folder or default_paths().config)
    except (LightagentError, OSError) as err:
        sys.stderr.write(
            f"<3>lightagent-prompt: {reason(err, at=True)}. {getattr(err, 'suggestion', '')}".rstrip() + "\n"
        )
        sys.exit(getattr(err, "exit_status", 71))  # EX_OSERR of sysexits.h


if __name__ == "__main__":
    main()
