"""A small store with all that one can have: sessions, deleted data, pruned and kept events, state."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import within
from lightagentd.events.store import layout, retention
from tests.events.stored import note, opened

STRANGE = ["Grüße 漢字 🦊", 'a "quoted" \\ text', "a\nb\tc\x00\x7f\x9b\u2028\u202e", "\udcff \ud800", ""]
VALUES: list[Any] = [*STRANGE, 0.1, -0.0, 1e300, float("nan"), 1 << 70, None, True, [], {}, [[{"a": [1]}]]]
FIELDS: dict[str, Any] = dict.fromkeys(
    ("id", "agent", "session", "state", "title", "summary", "summarized_by", "text"), "a text"
) | dict.fromkeys(("owner", "from_seq", "created_us", "updated_us"), 7)
"""What an entry of any state must have, see `events.states`."""


NOT_SET = ("prunings", layout.CHANGED)
"""The states that the history itself writes."""


async def fill(folder: Path) -> None:
    """Events 1 to 46; those up to 10 are pruned, but for the messages of a session that exists."""
    async with opened(folder) as history:
        sessions = [_session(name) for name in ("ses_a", "ses_b")]
        await history.append(note(1, "daemon.state"), changes=sessions)
        for number in range(2, 21):
            session = ("ses_a", "ses_b", "")[number % 3]
            with within(agent="ops", session=session, owner=1000, caller=number, trace_id=f"trace_{number}"):
                topic = "agent.message" if number % 2 else "tool.bash"
                said = NewEvent(
                    topic=topic,
                    type="message" if number % 2 else "invocation",
                    data={"role": "user", "content": f"text {number}", "tool": "bash", "effect": "observe"},
                )
                await history.append(said)
        with within(session="ses_b", owner=1000):
            gone = NewEvent(topic="session.deleted", type="deleted", data={})
            await history.erase("ses_b", gone, changes=[Change(state="sessions", key="ses_b", value=None)])
        bounds = retention.Bounds(reason="size", to_seq=10)
        await history.appending(partial(retention.prune, history.environment, bounds))
        await history.append(*(note(number, value=value) for number, value in enumerate(VALUES)))
        # Two names that are one once they are stored: the bytes have it twice, and no dictionary can.
        await history.append(note(twice={chr(0xDC80): 1, chr(0xDC81): 2}))
        state = {name: {**FIELDS, "n": at} for at, name in enumerate(layout.STATES) if name not in NOT_SET}
        await history.append(
            note(topic="daemon.state"),
            changes=[
                Change(state=name, key=f"key of {name} ü", value=value) for name, value in state.items()
            ],
        )
        await history.append(NewEvent(topic="daemon.state", type="stopped", data={}))


def _session(name: str) -> Change:
    record = {"id": name, "agent": "ops", "owner": 1000, "title": name, "created_us": 1, "updated_us": 2}
    return Change(state="sessions", key=name, value=record)


def make(state: Path) -> Path:
    """A stopped daemon's state folder with such a store; gives the store's folder."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "RESERVE_BYTES", 0)
        asyncio.run(fill(state / "history"))
    return state / "history"
