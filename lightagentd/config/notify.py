"""Declares the section `[notify]` of the configuration: whom `lightagent-away.service` tells what, and what
they may answer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from lightagentd.config.models import credential, read_key
from lightagentd.config.section import Seconds, Section
from lightagentd.errors import ConfigError

About = Literal["approval", "question", "triage", "trigger", "health", "budget", "panic"]
EVENTS: tuple[About, ...] = get_args(About)
_TIMES = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_NEEDS = {
    "ntfy": ("url",),
    "webhook": ("url", "secret_file"),
    "matrix": ("url", "room", "secret_file"),
    "mail": ("mail_to", "user"),
    "command": ("command", "user"),
}
"""By the kind of a destination: the keys without which it is nothing."""


def _quiet(text: str) -> str:
    if text and ((found := _TIMES.fullmatch(text)) is None or found[1] + found[2] == found[3] + found[4]):
        raise ValueError("write two times of day, such as 22:00-07:00")
    return text


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError("a name has up to 32 of a-z, 0-9, dash and underscore; a letter or digit first")
    return text


Quiet = Annotated[str, AfterValidator(_quiet)]
Url = Annotated[str, Field(pattern=r"^(https?://[^\s/@?#]+(/[^\s@#]*)?)?$", max_length=2000)]


class Destination(Section):
    """`[notify.to.NAME]`: one way to reach people."""

    kind: Literal["ntfy", "webhook", "matrix", "mail", "command"]
    """`ntfy` publishes to a topic of a server of ntfy. `webhook` posts JSON, signed as Standard Webhooks
    says. `matrix` sends to a room as a user of a homeserver. `mail` hands a mail to sendmail(8), and
    `command` the JSON of a webhook to a command, both as `user`."""
    url: Url = ""
    """Of ntfy: server and topic, such as `https://ntfy.sh/TOPIC`; whoever knows the name of a topic without
    access rules can read it. Of a webhook: the receiver. Of matrix: the homeserver."""
    secret_file: Path | None = None
    """A file with the access token of ntfy or matrix, or the secret of a webhook (`whsec_…`, or any text); a
    bare name is a credential of the service (`LoadCredential=`)."""
    room: str = Field(default="", pattern=r"^(![^\s/?#]+)?$")
    """The room of matrix, by its id: `!abc:example.org`. The user must be in it."""
    mail_to: str = Field(default="", pattern=r"^([^\s@,;<>\"-][^\s@,;<>\"]*(@[^\s@,;<>\"-][^\s@,;<>\"]*)?)?$")
    """The address for mail."""
    command: list[str] = Field(default_factory=list)
    """A program and its arguments; no shell is between."""
    user: str = ""
    """The user of this machine whom it reaches: mail and commands run as them, and answers are theirs."""
    events: list[About] | None = None
    """What it is told of; without it as `[notify]` says."""
    agents: list[str] = Field(default_factory=list)
    """The agents that it is told about; empty for all. What is no agent's is not for a list."""
    quiet: Quiet | None = None
    """Its own quiet hours; empty for none."""
    timeout_s: Seconds = 30.0
    """How long it may take for an answer."""
    give_up_s: Seconds = 86_400.0
    """After so long a message that is not taken is given up, and told as a problem."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Destination:
        if missing := [key for key in _NEEDS[self.kind] if not getattr(self, key)]:
            raise ValueError(f"the kind {self.kind} needs {' and '.join(missing)}")
        if self.kind == "ntfy" and not re.fullmatch(r"https?://.+/[A-Za-z0-9_-]{1,64}", self.url):
            raise ValueError("the url of ntfy ends in the topic: https://ntfy.sh/TOPIC")
        return self


class Answers(Section):
    """`[notify.answers]`: answers to approvals by a link, which the gateway takes (`public_url` there)."""

    on: bool = False
    """Whether messages to destinations with a `user` have a link to refuse a call. Whoever reads the message
    can use it, as that user."""
    approve: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_*-]+\.[A-Za-z0-9_*-]+$")]] = Field(
        default_factory=list
    )
    """Calls that may also be allowed so, as TOOL.ACTION, where `*` stands for any text: `service.restart`.
    Never one that holds a secret."""
    agents: list[str] = Field(default_factory=list)
    """The agents whose calls may be allowed so; empty for all."""


class Notify(Section):
    """`[notify]`: `lightagent-away.service` tells people who are away, and lets them answer."""

    to: dict[Annotated[str, AfterValidator(_name)], Destination] = Field(default_factory=dict)
    """The destinations."""
    events: list[About] = Field(default_factory=lambda: list(EVENTS))
    """What they are told of: approvals and questions that wait for a person, results of triage and of
    triggers, health that gets worse, budgets that are nearly used up, and panic."""
    quiet: Quiet = ""
    """Quiet hours in local time, such as `22:00-07:00`: what happens then waits for their end, and what was
    decided by then is not sent."""
    quiet_lets: list[About] = Field(default_factory=lambda: list(EVENTS[-1:]))
    """What is sent in quiet hours, too."""
    batch_s: float = Field(default=10.0, ge=0, le=3600)
    """What happens within so many seconds is one message."""
    link: str = Field(default="", pattern=r"^(https?://\S+)?$", max_length=500)
    """An address that each message ends with, such as that of a page for this machine; `{id}` in it stands
    for the id of what it is about."""
    budget_percent: int = Field(default=80, ge=1, le=100)
    """So much of a budget has to be used until its users are told."""
    health_s: Seconds = 900.0
    """How often health and budgets are looked at."""
    interval_s: Seconds = 1.0
    """How often the history is asked for what happened."""
    answers: Answers = Field(default_factory=Answers)


def checked(notify: Notify) -> Notify:
    """The section, if somebody is to be told, and every secret can be read. Raises ConfigError."""
    if not notify.to:
        raise ConfigError(
            "There is nobody to notify.",
            suggestion="Name a destination in /etc/lightagentd/lightagentd.toml: [notify.to.NAME], kind = …",
        )
    for destination in notify.to.values():
        secret_of(destination)
    return notify


def secret_of(destination: Destination) -> str:
    """The token or secret; empty where none is named. Raises ConfigError."""
    if destination.secret_file is None:
        return ""
    return read_key(credential(destination.secret_file))
