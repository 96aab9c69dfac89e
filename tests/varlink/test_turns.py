"""Turns: a few calls of each user work at a time, the users take turns, and no turn is lost."""

from __future__ import annotations

import asyncio

from lightagentd.varlink.turns import AT_ONCE_IN_ALL, AT_ONCE_OF_UID, Turns


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Takers:
    """Calls that wait for their turn, in tasks."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.began: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, uid: int, count: int) -> list[asyncio.Task[None]]:
        async def take() -> None:
            await self.turns.take(uid)
            self.began.append(uid)

        added = [asyncio.create_task(take()) for _ in range(count)]
        self.tasks += added
        await settled()
        return added


async def test_one_user_has_so_many_and_all_together_so_many() -> None:
    takers = Takers()
    await takers.add(1, 20)
    assert takers.began == [1] * AT_ONCE_OF_UID
    for uid in range(2, 9):
        await takers.add(uid, 20)
    assert len(takers.began) == AT_ONCE_IN_ALL
    for _ in range(20 * 8):
        takers.turns.give_back(takers.began.pop())
        await settled()
    assert all(task.done() for task in takers.tasks)
    assert takers.turns._working.total() == 0
    assert takers.turns._waiting == {}


async def test_the_users_take_turns_however_many_calls_one_has() -> None:
    takers = Takers()
    for uid in (1, 2, 3, 4):
        await takers.add(uid, AT_ONCE_OF_UID)
    await takers.add(1, 50)
    await takers.add(5, 2)
    await takers.add(6, 1)
    takers.began.clear()
    for uid in (1, 2, 3, 1):
        takers.turns.give_back(uid)
        await settled()
    assert takers.began == [1, 5, 6, 1]
    for task in takers.tasks:
        task.cancel()
    await asyncio.gather(*takers.tasks, return_exceptions=True)


async def test_a_turn_that_came_to_a_cancelled_call_goes_on_to_the_next() -> None:
    takers = Takers()
    await takers.add(1, AT_ONCE_OF_UID)
    first, second, third = await takers.add(1, 3)
    first.cancel()
    takers.turns.give_back(1)
    second.cancel()
    await settled()
    assert third.done()
    assert first.cancelled()
    assert second.cancelled()
    assert takers.turns._working[1] == AT_ONCE_OF_UID
