"""What is left of a session that is deleted while something of it is on its way to the disk: nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lightagentd.control.operations.service import Service
from lightagentd.events.audit.verification import verify
from lightagentd.events.store.layout import CHANGED, STATES
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker.pool import Call
from tests.agents.scripted import ME, scripted
from tests.scripted_model import say

SECRET = "marmot-4711"
PLAN = {"title": SECRET, "tasks": [{"id": "1", "text": SECRET}]}


@pytest.mark.parametrize(
    "change",
    [
        lambda service, session: service.plans.set(ME, session, PLAN),
        lambda service, session: service.sessions.rename(ME, session, SECRET),
        lambda service, session: service.sessions.switch(ME, session),
    ],
    ids=["plan", "title", "current"],
)
async def test_what_is_stored_just_before_goes_with_it(
    paths: Paths,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Service, str], Coroutine[Any, Any, Any]],
) -> None:
    async with scripted(paths, [say("ok")]) as test:
        session, _ = await test.session(), await test.session()
        history, service = test.daemon.history, test.daemon.service
        begun, commit = threading.Event(), history._commit

        def slowly(batch: Any) -> None:
            begun.set()
            time.sleep(0.2)  # a slow disk: who does not wait for it misses what is being written
            commit(batch)

        monkeypatch.setattr(history, "_commit", slowly)
        changing = asyncio.create_task(change(service, session.id))
        await asyncio.to_thread(begun.wait)
        await service.sessions.delete(ME, session.id, confirmed=True)
        await asyncio.gather(changing, return_exceptions=True)
        left = {state: history.queries.state(state) for state in STATES}
        assert SECRET not in json.dumps(left)
        left.pop(CHANGED)  # which rows changed until the next checkpoint
        assert session.id not in json.dumps(left)
        assert SECRET not in json.dumps([event.data for event in test.stored()])
        assert verify(history.environment).ok


async def test_outputs_that_are_kept_to_be_read_again_go_with_it(paths: Paths) -> None:
    async with scripted(paths, [say("ok")]) as test:
        one, other = await test.session(), await test.session()
        kept = test.daemon.pool.kept
        piece = {
            "stream": "stdout",
            "data": base64.b64encode(SECRET.encode()).decode(),
            "total_bytes": len(SECRET),
        }
        for number, session in enumerate((one, other)):
            call = Call(
                call_id=f"call_{number:016x}",
                tool="bash",
                action="exec",
                args={},
                agent="test",
                session=session.id,
                effect=Effect.OBSERVE,
                timeout_s=1.0,
            )
            await kept.add(call, piece)
            await kept.whole(call)
        assert len(list(kept._folder.iterdir())) == 2
        await test.daemon.service.sessions.delete(ME, one.id, confirmed=True)
        assert [path.read_text() for path in kept._folder.iterdir()] == [SECRET]
