"""Triggers, and what the service that follows their sources gets."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """One trigger. `on`: timer, unit-failed, journal, inotify, udev, webhook, event, or unit for a prompt or
    a diagnosis that a unit of systemd asks for. `state`: active, paused, stopped (its own effects fired it
    again and again), broken (`problem` says why), or unfollowed when nobody follows what it waits for.

    What happened counts once, in `fired` (an agent was asked), `coalesced` (put into a question that
    waited), `limited`, `refused`, `missed` or `waiting` (a question that waits). `answered` and `failed` are
    how the questions ended.
    """

    name: str
    on: str
    about: str
    agent: str
    owner: str
    prompt: str
    flow: str
    session: str
    effects: list[str]
    rate_limit: int
    rate_period_s: float
    coalesce_s: float
    catch_up: bool
    answer: str
    state: str
    problem: str
    fired: int
    coalesced: int
    limited: int
    refused: int
    missed: int
    waiting: int
    answered: int
    failed: int
    last_us: int


@dataclass(frozen=True, kw_only=True)
class Fired:
    """What became of the things that happened: how many of them count as what."""

    fired: int
    coalesced: int
    limited: int
    refused: int
    missed: int


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A trigger whose source is to be followed, from `position` on, in the words of the source."""

    name: str
    position: str


@dataclass(frozen=True, kw_only=True)
class TriggerAnswer:
    """An answer to be taken to where the file of its trigger says. `code` is that of the error that ended its
    turn, if one did; `text` is its sentence then. `refused` are the calls that nobody was there to allow.
    """

    firing: str
    trigger: str
    agent: str
    session: str
    trace_id: str
    text: str
    code: str
    refused: list[str]
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class TriggerWork:
    """What the service is to do: either follow these triggers from now on, or deliver an answer."""

    follow: list[Followed] | None
    answer: TriggerAnswer | None


@dataclass(frozen=True, kw_only=True)
class TriggerQuestion:
    """What a trigger would ask: the question, and with it what happened, as the agent reads it."""

    question: str
    prompt: str
    sample: Any
