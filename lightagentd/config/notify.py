"""Declares the section `[notify]` of the configuration: whom `lightagent-away.service` tells what, and what
they may answer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, ValidationError, model_validator

from lightagentd.config.models import read_key
from lightagentd.config.section import Seconds, Section
from lightagentd.errors import ConfigError

About = Literal["approval", "question", "confirmation", "triage", "trigger", "health", "budget", "panic"]
EVENTS: tuple[About, ...] = get_args(About)
_TIMES = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_TOPIC = re.compile(r"https?://.+/[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_SECRET_CHARS = 8
"""What is shorter is a word that messages may hold."""
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
    url_file: Path | None = None
    """A file with the url instead, where that is a secret, such as the topic of ntfy or the address of a
    webhook; a bare name is a credential of the service (`LoadCredential=`)."""
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
        given = {key for key in _NEEDS[self.kind] if getattr(self, key)} | (
            {"url"} if self.url_file else set()
        )
        if missing := [key for key in _NEEDS[self.kind] if key not in given]:
            raise ValueError(f"the kind {self.kind} needs {' and '.join(missing)}")
        if self.url and self.url_file:
            raise ValueError("give url or url_file, not both")
        if self.kind == "ntfy" and self.url and not _TOPIC.fullmatch(self.url):
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
    Never one that holds a secret, and no change where systemd runs the workers: people allow it at the
    approver."""
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

    @model_validator(mode="after")
    def _allow_only_what_agents_cannot_read(self) -> Notify:
        """An agent that can read a topic would allow its own calls."""
        for name, one in self.to.items() if self.answers.on and self.answers.approve else ():
            if one.kind == "ntfy" and one.user and not (one.url_file or one.secret_file):
                raise ValueError(
                    f"answers.approve: agents may read this file, and so the topic of {name}; name a file"
                    " that only root reads, in its url_file (or secret_file, for a topic with access rules)"
                )
        return self


def checked(notify: Notify) -> Notify:
    """The section with each url from its file, if somebody is to be told, and every secret can be read.
    Raises ConfigError.
    """
    if not notify.to:
        raise ConfigError(
            "There is nobody to notify.",
            suggestion="Name a destination in /etc/lightagentd/lightagentd.toml: [notify.to.NAME], kind = …",
        )
    for destination in notify.to.values():
        secret_of(destination)
    return notify.model_copy(update={"to": {name: _with_url(name, one) for name, one in notify.to.items()}})


def _with_url(name: str, destination: Destination) -> Destination:
    """Raises ConfigError, which does not say what the file holds."""
    if destination.url_file is None:
        return destination
    given = {**destination.model_dump(), "url": read_key(destination.url_file), "url_file": None}
    try:
        return Destination(**given)
    except ValidationError:
        raise ConfigError(
            f"The file of notify.to.{name}.url_file holds no url for the kind {destination.kind}.",
            suggestion="Write it into that file, and nothing else, such as https://ntfy.sh/TOPIC.",
        ) from None


def secret_of(destination: Destination) -> str:
    """The token or secret; empty where none is named. Raises ConfigError."""
    return "" if destination.secret_file is None else read_key(destination.secret_file)


def secrets_of(notify: Notify) -> list[str]:
    """All that must be in no message. Raises ConfigError."""
    urls = [read_key(one.url_file) for one in notify.to.values() if one.url_file is not None]
    found = [
        *(secret_of(one) for one in notify.to.values()),
        *urls,
        *(url.rpartition("/")[2] for url in urls),
    ]
    return [one for one in found if len(one) >= _SECRET_CHARS]
