"""What people are told: a notice for each event that is worth one.

All text may have been written by a model, or by the author of a text that a model read. It is shown as plain
text: each character that a screen would act on, hide or move is written as an escape, and a bar stands before
each line of a value, so that none can look like a line of ours. What looks like a secret is taken out, also
where the daemon has left it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from lightagentd.client.aio import AsyncClient
from lightagentd.config.notify import About
from lightagentd.config.terms import words as confirm_words
from lightagentd.errors import ApprovalNotFound, NotFound
from lightagentd.redaction import Redactor
from lightagentd.text.readable import visible, warnings
from lightagentd.unattended.following import Event

KINDS = (
    *("approval", "input", "trigger.answered", "trigger.stopped", "session.turn/done", "agent.error"),
    *("daemon.state/panic", "daemon.state/panic_ended", "budget.exceeded"),
)
"""What is followed."""
TITLE_CHARS, NAME_CHARS, TEXT_CHARS = 150, 60, 32 << 10
_TRIAGE = "triage:"
_NO_END = "fallback"
"""The one event of `agent.error` that does not end a turn."""
_MESSAGES = 20


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One thing to tell. Equal ids are the same thing. `key` is the id of the approval or the input that
    waits, and `digest` that of the call that an approval allows.
    """

    id: str
    about: About
    title: str
    text: str
    at_us: int
    agent: str = ""
    key: str = ""
    expires_us: int = 0
    digest: str = ""
    whole: bool = True
    """Whether the text shows all that there is, and nothing in it is easily overlooked."""
    hint: str = ""
    """Where to look, or how to answer, on the machine."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Notice:
        """Raises TypeError, ValueError."""
        found = cls(**value)
        texts = (found.id, found.title, found.text, found.agent, found.key, found.digest, found.hint)
        if not all(isinstance(one, str) for one in texts) or found.about not in get_args(About):
            raise ValueError("it is no notice")
        int(found.at_us), int(found.expires_us)
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A question that waits no more."""

    key: str


class Reader:
    """Makes notices of events. `redactor` takes secrets out of them."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def made(self, about: About, number: str, title: str, text: str, **more: Any) -> Notice:
        """A notice with safe words."""
        title, shown = self._redactor.text(title), self._redactor.text(text)
        whole = bool(more.pop("whole", True)) and shown == text and len(shown) <= TEXT_CHARS
        return Notice(
            id=number,
            about=about,
            title=one_line(title, TITLE_CHARS),
            text=visible(shown[:TEXT_CHARS]),
            whole=whole,
            **{"at_us": time.time_ns() // 1000, **more},
        )

    async def notice_of(self, client: AsyncClient, event: Event) -> Notice | Settled | None:
        """What an event is to people; None for nothing, or where its data was deleted. Raises the errors of a
        client; KeyError, TypeError, ValueError for an event that is not as it was declared.
        """
        data, topic, kind = event["data"], event["topic"], event["type"]
        if data is None:
            return None
        about = {
            "id": f"{event['seq']}-{event['hash'][:16]}",
            "at_us": int(event["time"]),
            "agent": event["agent"],
        }
        if topic.startswith(("approval.", "input.")) and kind != "requested":
            return Settled(key=str(data["approval" if topic.startswith("approval.") else "input"]))
        match topic:
            case "approval.requested":
                return await self._approval(client, data, about)
            case "input.requested":
                return self._input(data, about)
            case "daemon.state":
                return self._panic(kind, data, about)
            case "budget.exceeded":
                return self._event("budget", f"A budget of {named(event['agent'])} is used up", data, about)
            case "trigger.stopped":
                return self._event(
                    "trigger", f"The trigger {named(data['trigger'])} was stopped", data, about
                )
        return await self._result(client, event, data, about)

    async def _approval(
        self, client: AsyncClient, data: Mapping[str, Any], about: dict[str, Any]
    ) -> Notice | None:
        key = str(data["approval"])
        try:
            found = (await client.call("Approvals.Get", approval=key))["approval"]
        except ApprovalNotFound:
            return None
        if found["state"] != "waiting":
            return None
        args = found["args"] if isinstance(found["args"], dict) else {"arguments": found["args"]}
        if found["cwd"]:
            args = {**args, "cwd": found["cwd"]}
        lines = [] if found["volatile"] else [f"{visible(name)}: {_value(one)}" for name, one in args.items()]
        looks = warnings(args | {name: one for name in ("check", "inverse") if (one := found.get(name))})
        if found["volatile"]:
            lines.append("Its arguments hold a secret, so they are not shown here.")
        elif found["preview"]:
            lines.append(f"What it would do: {_barred(found['preview'])}")
        if takes_back := confirm_words(found):
            lines.append(_barred(takes_back))
        lines += looks
        reason = f": {one_line(found['reason'], TITLE_CHARS)}" if found["reason"] else ""
        lines.append(f"Asked by the rule {named(found['rule'])}{reason}")
        lines.append(f"It can be answered until {moment(found['expires_us'])}.")
        call = f"{named(found['tool'])}.{named(found['action'])}"
        return self.made(
            "approval",
            about.pop("id"),
            f"Agent {named(found['agent'])} asks to run {call} ({named(found['effect'])})",
            "\n".join(lines),
            key=key,
            expires_us=int(found["expires_us"]),
            digest=str(found["digest"]),
            whole=not (found["volatile"] or looks),
            hint=f"lactl approvals show {key}; lactl approve {key}; lactl deny {key}",
            **about,
        )

    def _input(self, data: Mapping[str, Any], about: dict[str, Any]) -> Notice:
        key = str(data["input"])
        choices = [f"{number}) {one_line(one, 200)}" for number, one in enumerate(data["choices"], 1)]
        until = f"It can be answered until {moment(data['expires_us'])}."
        return self.made(
            "question",
            about.pop("id"),
            f"Agent {named(about['agent'])} asks you",
            "\n".join([_barred(data["question"]), *choices, until]),
            key=key,
            expires_us=int(data["expires_us"]),
            hint=f"lactl inputs show {key}; lactl answer {key} TEXT",
            **about,
        )

    def _panic(self, kind: str, data: Mapping[str, Any], about: dict[str, Any]) -> Notice:
        if kind != "panic":
            return self._event("panic", "The emergency stop was taken back", {"message": ""}, about)
        figures = f"{data['turns']} turns and {data['workers']} workers were ended."
        said = {"message": f"{data['message']}\n{figures} Nothing new runs until: lactl panic --off"}
        return self._event("panic", "Emergency stop: everything is stopped", said, about)

    def _event(self, kind: About, title: str, data: Mapping[str, Any], about: dict[str, Any]) -> Notice:
        return self.made(kind, about.pop("id"), title, str(data["message"]), **about)

    async def _result(
        self, client: AsyncClient, event: Event, data: Mapping[str, Any], about: dict[str, Any]
    ) -> Notice | None:
        """What a trigger's agent came to, or who was asked why a unit failed."""
        failed = event["topic"] == "agent.error" or event["type"] == "failed"
        came_from = str(event["correlation_id"])
        if event["topic"] == "trigger.answered":
            kind: About = "trigger"
            title = f"Trigger {named(data['trigger'])}: {named(event['agent'])} "
        elif came_from.startswith(_TRIAGE) and event["type"] != _NO_END:
            kind = "triage"
            title = (
                f"{one_line(came_from.removeprefix(_TRIAGE), NAME_CHARS)} failed: {named(event['agent'])} "
            )
        else:
            return None
        text = str(data["message"]) if failed else await _answer(client, event)
        return self.made(
            kind,
            about.pop("id"),
            title + ("came to no answer" if failed else "answered"),
            text,
            hint=f"lactl sessions show {named(event['session'])}" if event["session"] else "",
            **about,
        )


async def _answer(client: AsyncClient, event: Event) -> str:
    """The newest answer in the session of an event, before it. Raises the errors of a client."""
    try:
        found = await client.call("Sessions.Messages", session=event["session"], limit=_MESSAGES)
    except NotFound:
        return ""
    said = [
        one["content"]
        for one in found["messages"]
        if one["role"] == "assistant" and one["content"] and one["seq"] <= event["seq"]
    ]
    return str(said[-1]) if said else ""


def moment(time_us: int) -> str:
    """A time for people, with its zone."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(time_us / 1e6))


def named(text: str) -> str:
    return one_line(str(text), NAME_CHARS)


def one_line(text: str, chars: int) -> str:
    """The beginning of a text, on one line."""
    short = " ".join(visible(str(text)[: chars * 4]).split())
    return short if len(short) <= chars else short[: chars - 1] + "…"


def _value(value: Any) -> str:
    return _barred(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _barred(text: str) -> str:
    """Text with a bar before each line but the first."""
    return visible(text).replace("\n", "\n| ")
