"""Those who prompt in the soak: one for each session, and one turn after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lightagentd.client.aio import AsyncClient
from lightagentd.host.paths import Paths
from tests.soak.answers import VERBS
from tests.soak.books import Books

WAYS = {"watch": 92, "leave": 4, "cancel": 4}
"""What somebody does with a turn of his own, and how often: watch it to its end; hang up in the middle; have
it cancelled while he watches."""


class Person:
    """Prompts in a session of his own."""

    def __init__(self, paths: Paths, agent: str, books: Books, seed: str) -> None:
        self._paths, self._agent, self._books = paths, agent, books
        self._rng = random.Random(seed)
        self._session = ""

    async def live(self, turns: Iterator[int]) -> None:
        """Take numbers of turns until there are no more."""
        if not self._session:
            async with AsyncClient(self._paths.socket) as client:
                made = await client.call("Sessions.Create", agent=self._agent)
            self._session = made["session"]["id"]
        for number in turns:
            (verb,) = self._rng.choices(list(VERBS), list(VERBS.values()))
            (way,) = self._rng.choices(list(WAYS), list(WAYS.values()))
            await self._prompt(self._session, f"turn-{number} {verb}", way)

    async def _prompt(self, session: str, text: str, way: str) -> None:
        leaves_after = self._rng.randint(1, 3) if way == "leave" else 0
        cancels_after = self._rng.randint(1, 5) if way == "cancel" else 0
        trace, count = "", 0
        async with AsyncClient(self._paths.socket) as client:
            async for reply in client.stream("Sessions.Prompt", session=session, text=text):
                event = reply["event"]
                trace, count = event["trace_id"], count + 1
                self._books.tell(event)
                if count == leaves_after:
                    break
                if count == cancels_after:
                    await self._cancel(session)
            else:
                self._books.watched.add(trace)
        if way == "leave":
            await self._rest(session)

    async def _cancel(self, session: str) -> None:
        async with AsyncClient(self._paths.socket) as client:
            await client.call("Sessions.Cancel", session=session)

    async def _rest(self, session: str) -> None:
        """Wait until the turn is over that nobody watches."""
        async with AsyncClient(self._paths.socket) as client:
            await client.call("Sessions.Wait", session=session)


async def write_up(paths: Paths, books: Books) -> None:
    """Have the books say what is stored, until cancelled."""
    async with AsyncClient(paths.socket) as client:
        async for reply in client.stream("Events.Subscribe", from_seq=1, follow=True):
            if reply.get("event") is not None:
                books.store(reply["event"])
