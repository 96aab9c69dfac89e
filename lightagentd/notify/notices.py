"""What people are told: a notice for each event that is worth one.

All text may have been written by a model, or by the author of a text that a model read. It is shown as plain
text: each character that a screen would act on, hide or move is written as an escape, and each line of it
begins with a word of ours or a bar, so that none can look like a line of ours. What looks like a secret is
taken out, also where the daemon has left it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, get_args

from lightagentd.client.aio import AsyncClient
from lightagentd.config.notify import About
from lightagentd.errors import ApprovalNotFound, HistoryDamaged, NotFound
from lightagentd.redaction import Redactor
from lightagentd.text.readable import barred, call_lines, visible, warnings
from lightagentd.unattended.following import Event

KINDS = (
    *("approval", "input", "confirmation", "trigger.answered", "trigger.stopped", "session.turn/done"),
    *("agent.error", "flow.run/ended", "daemon.state/panic", "daemon.state/panic_ended", "budget.exceeded"),
)
"""What is followed."""
TITLE_CHARS, NAME_CHARS, TEXT_CHARS = 150, 60, 32 << 10
_READ_CHARS = TEXT_CHARS + (4 << 10)
"""So much of a text is looked at: more than is shown, so that no secret is cut before it is found."""
_TRIAGE = "triage"
_NO_END = "fallback"
"""The one event of `agent.error` that does not end a turn."""
_MESSAGES = 20
_CONFIRMATION = {"what": "What", "back": "Taken back by", "check": "Confirmed when this ends with 0"}
_ASKING = {"approval": "approval", "input": "input", "confirmation": "call_id"}
"""By the first word of a topic: the field with the id of what waits for a person."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One thing to tell. `key` is the id of what waits for a person, and `digest` that of the call that an
    approval allows. A newer notice takes the place of one with the same key.
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


class _Tell(Protocol):
    def __call__(self, about: About, title: str, text: str, **more: Any) -> Notice: ...


class Reader:
    """Makes notices of events. `redactor` takes secrets out of them."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def made(
        self, about: About, title: str, text: str, *, number: str, whole: bool = True, **more: Any
    ) -> Notice:
        """A notice with safe words."""
        shown = visible(self._redactor.text(text[:_READ_CHARS]))
        return Notice(
            id=number,
            about=about,
            title=one_line(self._redactor.text(title[:_READ_CHARS]), TITLE_CHARS),
            text=shown[:TEXT_CHARS],
            whole=whole and shown == visible(text[:_READ_CHARS]) and len(shown) <= TEXT_CHARS,
            **{"at_us": time.time_ns() // 1000, **more},
        )

    async def notice_of(self, client: AsyncClient, event: Event) -> Notice | Settled | None:
        """What an event is to people; None for nothing, or where its data was deleted. Raises the errors of a
        client; KeyError, TypeError, ValueError for an event that is not as it was declared.
        """
        if event["data"] is None:
            return None
        data, kind, agent = self._redactor.value(event["data"]), event["type"], named(event["agent"])
        number, at_us = f"{event['seq']}-{event['hash'][:16]}", int(event["time"])
        tell = partial(self.made, number=number, at_us=at_us, agent=event["agent"])
        family = event["topic"].partition(".")[0]
        if (field := _ASKING.get(family)) is not None:
            key = str(data[field])
            if family == "confirmation":
                return await _confirmation(client, kind, data, key, tell)
            if kind != "requested":
                return Settled(key=key)
            return (
                _input(agent, data, key, tell)
                if family == "input"
                else await self._approval(client, key, tell)
            )
        match event["topic"]:
            case "daemon.state" if kind == "panic":
                figures = f"{data['turns']} turns and {data['workers']} workers were ended."
                text = f"{_said('Why', data['message'])}\n{figures} Nothing new runs until: lactl panic --off"
                return tell("panic", "Emergency stop: everything is stopped", text)
            case "daemon.state":
                return tell("panic", "The emergency stop was taken back", "Agents may work again.")
            case "budget.exceeded":
                once = f"used-up-{data['scope']}/{data['name']}/{data['what']}/{data['limit']}"
                text = barred(data["message"])
                return tell("budget", f"A budget of {agent} is used up", text, number=once)
            case "trigger.stopped":
                title = f"The trigger {named(data['trigger'])} was stopped"
                return tell("trigger", title, _said("Why", data["message"]))
        return await self._result(client, event, data, tell)

    async def _approval(self, client: AsyncClient, key: str, tell: _Tell) -> Notice | None:
        try:
            asked = (await client.call("Approvals.Get", approval=key))["approval"]
        except ApprovalNotFound:
            return None
        if asked["state"] != "waiting":
            return None
        found = self._redactor.value(asked)
        until = f"It can be answered until {moment(found['expires_us'])}."
        call = f"{named(found['tool'])}.{named(found['action'])}"
        args = found["args"] if isinstance(found["args"], dict) else {"": found["args"]}
        overlooked = warnings(args | {"check": found["check"], "inverse": found["inverse"]})
        return tell(
            "approval",
            f"Agent {named(found['agent'])} asks to run {call} ({named(found['effect'])})",
            "\n".join([*call_lines(found), until]),
            key=key,
            expires_us=int(found["expires_us"]),
            digest=str(asked["digest"]),
            whole=found == asked and not (found["volatile"] or overlooked),
            hint=f"lactl approvals show {key}; lactl approve {key}; lactl deny {key}",
        )

    async def _result(
        self, client: AsyncClient, event: Event, data: Mapping[str, Any], tell: _Tell
    ) -> Notice | None:
        """What a trigger's agent came to, or who was asked why a unit failed, or a flow in their place."""
        failed = event["topic"] == "agent.error" or event["type"] == "failed"
        about: About = "trigger"
        came_from, whom, run = str(event["correlation_id"]), named(event["agent"]), str(event["trace_id"])
        if event["topic"] == "trigger.answered":
            title = f"Trigger {named(data['trigger'])}"
        elif event["topic"] == "flow.run":
            run, whom, failed = data["run"], f"the flow {named(data['flow'])}", data["state"] != "success"
            filtered = {"topic": "trigger.fired", "session": event["session"], "limit": 1}
            began = (await client.call("History.Page", **filtered))["page"]["events"]
            if not began or began[0]["data"]["trigger"] != _TRIAGE:
                return None
            about, title = "triage", f"{named(began[0]['data']['happened']['unit'])} failed"
        elif came_from.startswith(f"{_TRIAGE}:") and event["type"] != _NO_END:
            about, title = "triage", f"{named(came_from.partition(':')[2])} failed"
        else:
            return None
        if failed:
            answer = _said("Why", data["message"])
        else:
            answer = _said("Answer", self._redactor.text(await _answer(client, event, run)))
        end = "came to no answer" if failed else "answered"
        hint = f"lactl sessions show {named(event['session'])}" if event["session"] else ""
        return tell(about, f"{title}: {whom} {end}", answer, hint=hint)


async def _answer(client: AsyncClient, event: Event, run: str) -> str:
    """The newest answer in the session of an event, before it, or the output of a flow's run. Raises the
    errors of a client.
    """
    try:
        if run.startswith("run_"):
            steps = (await client.call("Flows.Show", run=run))["shown"]["steps"]
            said = [one["output"] for one in steps if one["state"] == "success" and one["output"]]
        else:
            found = await client.call("Sessions.Messages", session=event["session"], limit=_MESSAGES)
            said = [
                one["content"]
                for one in found["messages"]
                if one["role"] == "assistant" and one["content"] and one["seq"] <= event["seq"]
            ]
    except (NotFound, HistoryDamaged) as err:
        return f"It cannot be read: {err.message}"
    return str(said[-1])[:_READ_CHARS] if said else "none"


def _input(agent: str, data: Mapping[str, Any], key: str, tell: _Tell) -> Notice:
    choices = [f"{number}) {one_line(one, 200)}" for number, one in enumerate(data["choices"], 1)]
    until = f"It can be answered until {moment(data['expires_us'])}."
    hint = f"lactl inputs show {key}; lactl answer {key} TEXT"
    text = "\n".join([_said("Question", data["question"]), *choices, until])
    return tell(
        "question", f"Agent {agent} asks you", text, key=key, expires_us=int(data["expires_us"]), hint=hint
    )


async def _confirmation(
    client: AsyncClient, kind: str, data: Mapping[str, Any], key: str, tell: _Tell
) -> Notice | Settled | None:
    """A change that takes itself back, as long as it can be confirmed, and when it was taken back."""
    change = f"{named(data['tool'])}.{named(data['action'])}"
    if kind == "pending":
        waiting = (await client.call("Confirmations.List"))["confirmations"]
        found = next(
            (one for one in waiting if one["id"] == key and one["state"] in ("running", "waiting")), None
        )
        if found is None:
            return None
        until = f", at {moment(found['due_us'])}" if found["state"] == "waiting" else ""
        lines = [
            f"Unless somebody confirms it, it is taken back {found['within_s']} s after it is done{until}."
        ]
        lines += [_said(label, found[field]) for field, label in _CONFIRMATION.items() if found[field]]
        title, hint = f"A change waits to be confirmed: {change}", f"lactl confirm {key}"
        return tell("confirmation", title, "\n".join(lines), key=key, hint=hint)
    if kind not in ("taken_back", "failed"):
        return Settled(key=key)
    if kind == "taken_back":
        return tell(
            "confirmation", f"A change was taken back: {change}", "Nobody confirmed it in time.", key=key
        )
    text = f"{_said('Why', data['message'])}\nMend it by hand, then confirm it."
    title = f"A change could not be taken back: {change}"
    return tell("confirmation", title, text, key=key, hint=f"lactl confirm {key}")


def moment(time_us: int) -> str:
    """A time for people, with its zone."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(time_us / 1e6))


def named(text: str) -> str:
    return one_line(str(text), NAME_CHARS)


def one_line(text: str, chars: int) -> str:
    """The beginning of a text, on one line."""
    short = " ".join(visible(str(text)[: chars * 4]).split())
    return short if len(short) <= chars else short[: chars - 1] + "…"


def _said(label: str, text: str) -> str:
    return f"{label}: {barred(str(text)[:_READ_CHARS])}"
