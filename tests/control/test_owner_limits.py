"""What one user may have of the daemon: `[limits.owner]`. Administrators are not held to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lightagentd.control.authz import Caller
from lightagentd.control.operations.service import Service
from lightagentd.errors import LimitExceeded
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME
from tests.control.caring import caring
from tests.other_user import OUTSIDERS_GID

LIMITS = "[limits.owner]\nsessions = 3\nchanges_per_minute = 40\nstored_bytes_per_day = 100_000\n"


def member(uid: int) -> Caller:
    return Caller(uid=uid, gid=OUTSIDERS_GID, pid=1)


@pytest.fixture
async def service(paths: Paths) -> AsyncIterator[Service]:
    async with caring(paths, LIMITS) as test:
        yield test.daemon.service


async def test_each_user_has_a_share_and_a_refusal_names_the_limit(service: Service) -> None:
    sessions, conversations = service.sessions, service.conversations
    one, other, third = (member(uid) for uid in (12_001, 12_002, 12_003))

    made = [await sessions.create(one, "test") for _ in range(3)]
    with pytest.raises(LimitExceeded, match="uid 12001 has reached the limit sessions, which is 3") as caught:
        await sessions.create(one, "test")
    assert "[limits.owner] sessions" in caught.value.suggestion
    for again in (sessions.fork(one, made[0].id), conversations.ask(one, agent="test", text="a", new=True)):
        with pytest.raises(LimitExceeded, match="limit sessions"):
            await again
    await sessions.delete(one, made[0].id, confirmed=True)
    await sessions.create(one, "test")

    named = (await sessions.create(other, "test")).id
    with pytest.raises(LimitExceeded, match="limit changes_per_minute, which is 40"):  # noqa: PT012
        for number in range(200):  # more than a minute's, and the next one's, if it begins just now
            await sessions.rename(other, named, f"title {number}")
    await sessions.get(other, named)

    for _ in range(3):
        await conversations.ask(third, agent="test", text="x" * 40_000)
        try:
            await conversations.ask(third, agent="test", text="a")
        except LimitExceeded as err:
            assert "limit stored_bytes_per_day" in err.message  # noqa: PT017
            break
    else:
        pytest.fail("more was stored than the limit allows")
    [first] = await sessions.listed(third)
    await sessions.delete(third, first.id, confirmed=True)

    for _ in range(50):
        await sessions.create(ME, "test")
