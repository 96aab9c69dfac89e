"""Whatever is done with sessions, and however often the daemon is killed in between: what was acknowledged is
there afterwards, and nothing else.

A kill is a copy of the store, taken while turns run, that another daemon is started on: what was committed at
that moment. That commits are whole and on the disk show the tests of the history, with SIGKILL.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightagentd import errors
from lightagentd.agents.content import Content
from lightagentd.agents.sessions.session import Session
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.audit.verification import verify
from lightagentd.events.store import layout
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, check_conversation, define
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, say

OPERATIONS = (
    *("create", "prompt", "prompt", "prompt", "prompt_current", "rename", "pause", "resume"),
    *("switch", "fork", "delete", "cancel", "rest", "kill", "restart"),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5), st.sampled_from("abc")), min_size=4, max_size=24
)
FIRST = (("create", 0, "a"), ("create", 0, ""), ("prompt", 0, "b"))
EXAMPLES = 12


@dataclass(kw_only=True)
class Known:
    """What was acknowledged of one session."""

    title: str
    prompts: list[str] = field(default_factory=list)
    paused: bool = False
    forked_from: str = ""


class World:
    """A daemon, and beside it what everybody was told of its sessions."""

    def __init__(self, base: Path, model: ScriptedModel) -> None:
        self.base, self.model = base, model
        self.known: dict[str, Known] = {}
        self.deleted: set[str] = set()
        self.current = ""
        self.lives = 0
        self.paths = Paths(config=base / "etc", state=base / "0", runtime=base / "run")
        define(self.paths, model)
        write(
            self.paths.config / "lightagentd.toml", '[worker]\nsandbox = "none"\n[limits]\nmax_queue = 100\n'
        )

    async def start(self) -> None:
        self.daemon = Daemon(self.paths)
        await self.daemon.start()

    async def do(self, operation: str, which: int, text: str) -> None:
        ids = sorted(self.known)
        session = ids[which % len(ids)] if ids else ""
        if session or operation in ("create", "prompt_current", "kill", "restart"):
            await getattr(self, f"_{operation}")(session, text)

    # The operations, and what they mean

    async def _create(self, _: str, text: str) -> None:
        made = await self.daemon.service.sessions.create(ME, "test", text)
        self.known[made.id] = Known(title=text)
        self.current = made.id

    async def _prompt(self, session: str, text: str) -> None:
        if self.known[session].paused:
            with pytest.raises(errors.SessionPaused):
                await self._say(session, text)
            return
        assert await self._say(session, text) == session
        self.current = session
        self._said(session, text)

    async def _prompt_current(self, _: str, text: str) -> None:
        if not self.current and self.known:
            return  # then it goes to the one that changed last, which nobody was told
        if self.current and self.known[self.current].paused:
            with pytest.raises(errors.SessionPaused):
                await self._say("", text)
            return
        session = await self._say("", text)
        assert session == (self.current or session)
        self.known.setdefault(session, Known(title=""))
        self.current = session
        self._said(session, text)

    def _said(self, session: str, text: str) -> None:
        known = self.known[session]
        known.title = known.title or text
        known.prompts.append(text)

    async def _say(self, session: str, text: str) -> str:
        """Prompt, and wait until that is acknowledged, but not for the answer."""
        events = self.daemon.service.conversations.prompt(
            ME, agent="test", text=text, session=session, new=False, correlation_id=""
        )
        try:
            return str((await anext(events))["session"])
        finally:
            await events.aclose()

    async def _rename(self, session: str, text: str) -> None:
        await self.daemon.service.sessions.rename(ME, session, f"title {text}")
        self.known[session].title = f"title {text}"

    async def _pause(self, session: str, _: str) -> None:
        assert (await self.daemon.service.sessions.pause(ME, session)).paused
        self.known[session].paused = True

    async def _resume(self, session: str, _: str) -> None:
        if self.known[session].paused:
            await self.daemon.service.sessions.resume(ME, session)
            self.known[session].paused = False
        else:
            with pytest.raises(errors.SessionNotPaused):
                await self.daemon.service.sessions.resume(ME, session)

    async def _switch(self, session: str, _: str) -> None:
        await self.daemon.service.sessions.switch(ME, session)
        self.current = session

    async def _fork(self, session: str, text: str) -> None:
        await self._rest(session, text)
        said = [one.content for one in self._session(session).messages if one.role == "user"]
        made = await self.daemon.service.sessions.fork(ME, session, f"fork {text}", None)
        self.known[made.id] = Known(title=f"fork {text}", prompts=said, forked_from=session)
        self.current = made.id

    async def _delete(self, session: str, _: str) -> None:
        await self.daemon.service.sessions.delete(ME, session, confirmed=True)
        del self.known[session]
        self.deleted.add(session)
        self.current = "" if session == self.current else self.current

    async def _cancel(self, session: str, _: str) -> None:
        await self.daemon.service.conversations.cancel(ME, session)
        found = self._session(session)
        await found.until_at_rest()
        assert not found.queue or found.record.paused
        while found.queue:
            await asyncio.sleep(0)
        await found.until_at_rest()  # what was in the queue of a paused session is ending now
        self.known[session].prompts = [one.content for one in found.messages if one.role == "user"]

    async def _rest(self, session: str, _: str) -> None:
        await self._session(session).until_at_rest()

    async def _kill(self, *_: str) -> None:
        """Go on with what is on the disk now."""
        self.lives += 1
        state = self.base / str(self.lives)
        (state / "history").mkdir(parents=True, mode=0o700)
        self.daemon.history.environment.env.copy(str(state / "history"))
        await self.daemon.close()
        self.paths = replace(self.paths, state=state)
        await self.start()

    async def _restart(self, *_: str) -> None:
        await self.daemon.close()
        await self.start()

    # What has to be so

    async def check(self) -> None:
        sessions = {one.id: one for one in await self.daemon.service.sessions.listed(ME, "")}
        assert sessions.keys() == self.known.keys()
        assert [one.id for one in sessions.values() if one.current] == (
            [self.current] if self.current else []
        )
        for session, known in self.known.items():
            shown, found = sessions[session], self._session(session)
            assert (shown.title, shown.paused, shown.forked_from) == (
                known.title,
                known.paused,
                known.forked_from,
            )
            await found.until_at_rest()
            messages = [*found.messages]
            check_conversation(messages)
            said = [one.content for one in messages if one.role == "user"]
            assert said + [turn.prompt.text for turn in found.queue] == known.prompts
            assert known.paused or not found.queue
            if shown.interrupted:
                assert "The daemon stopped in the middle of the turn" in shown.interrupted
        history = self.daemon.history
        for event in history.queries.range(limit=100_000):
            if event.session in self.deleted:
                assert (event.data is None) == (event.topic != "session.deleted")
        assert self.deleted.isdisjoint(history.queries.state("sessions"))
        assert {str(turn["session"]) for turn in history.queries.state("turns").values()} <= self.known.keys()
        assert verify(history.environment).ok

    def _session(self, session: str) -> Session:
        return self.daemon.registry.get("test").sessions[session]


def answer(body: dict[str, Any]) -> Answer:
    return say("re: ", str(body["messages"][-1]["content"]), pause_s=0.001)


async def live(steps: Sequence[tuple[str, int, str]]) -> None:
    base = Path(tempfile.mkdtemp(prefix="la-lives-"))
    try:
        async with ScriptedModel(answer) as model:
            world = World(base, model)
            await world.start()
            try:
                for step in [*FIRST, *steps, ("kill", 0, "")]:
                    await world.do(*step)
                    if step[0] in ("kill", "restart"):
                        await world.check()
            finally:
                await world.daemon.close()
    finally:
        shutil.rmtree(base)


async def _no_tools(*_: object, **__: object) -> None:
    """Sessions need none, and to describe them takes longer than all the rest of a start."""


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_what_was_acknowledged_survives_whatever_happens(steps: list[tuple[str, int, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "RESERVE_BYTES", 0)
        patch.setattr(Content, "read_tools", _no_tools)
        asyncio.run(live(steps))
