"""Sessions after `kill -9`, over the socket of a real process: as was acknowledged, and able to go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import LightagentError, SessionPaused
from lightagentd.events.queries import StoredHistory
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, add, lines, prepare
from tests.agents.scripted import define
from tests.conftest import DaemonProcess, write
from tests.scripted_model import Answer, ScriptedModel, Stream, call, chunk, say


@contextlib.asynccontextmanager
async def process(paths: Paths, model: ScriptedModel) -> AsyncIterator[DaemonProcess]:
    """A daemon process whose agent is `test`, not started yet."""
    define(paths, model, front=FRONT)
    write(paths.config / "lightagentd.toml", TOML)
    daemon = DaemonProcess(paths)
    try:
        yield daemon
    finally:
        await asyncio.to_thread(daemon.close)


async def ask(paths: Paths, method: str, **parameters: Any) -> Any:
    """One call on a connection of its own."""
    async with AsyncClient(paths.socket, timeout_s=60) as client:
        reply = await client.call(method, **parameters)
    return next(iter(reply.values()), None)


async def session(paths: Paths, name: str) -> dict[str, Any]:
    return dict(await ask(paths, "Sessions.Get", session=name))


class Prompting:
    """Prompts that their callers wait for while the test does other things, and the daemon dies."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Prompting:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def prompt(self, name: str, text: str, event_type: str) -> None:
        """Prompt, and come back once an event of this type was told."""
        told = asyncio.Event()
        task = asyncio.create_task(self._prompt(name, text, event_type, told))
        self._tasks.append(task)
        waiting = asyncio.create_task(told.wait())
        self._tasks.append(waiting)  # type: ignore[arg-type]
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert told.is_set()

    async def _prompt(self, name: str, text: str, event_type: str, told: asyncio.Event) -> None:
        with contextlib.suppress(LightagentError):
            async with AsyncClient(self._paths.socket) as client:
                async for reply in client.stream("Sessions.Prompt", session=name, text=text):
                    if reply["event"]["type"] == event_type:
                        told.set()


async def test_everything_about_sessions_survives_a_kill(paths: Paths) -> None:
    hang = Stream(pieces=[chunk({"content": "I begin"})], hang=True)

    def script(body: dict[str, Any]) -> Answer:
        text = str(body["messages"][-1]["content"])
        return hang if text == "hang" else say(f"re: {text}")

    async with ScriptedModel(script) as model, process(paths, model) as daemon, Prompting(paths) as prompts:
        await asyncio.to_thread(daemon.start)
        first = (await ask(paths, "Sessions.Create", agent="test", title="first"))["id"]
        await ask(paths, "Manager.Ask", agent="test", text="one")
        fork = (await ask(paths, "Sessions.Fork", session=first, title="fork"))["id"]
        gone = (await ask(paths, "Sessions.Create", agent="test"))["id"]
        await ask(paths, "Sessions.Delete", session=gone)
        other = (await ask(paths, "Sessions.Create", agent="test"))["id"]
        await ask(paths, "Sessions.Switch", session=fork)
        await ask(paths, "Sessions.Rename", session=fork, title="a better one")
        await prompts.prompt(other, "hang", "text_delta")
        await ask(paths, "Sessions.Switch", session=fork)
        await prompts.prompt(other, "later", "queued")
        await ask(paths, "Sessions.Switch", session=fork)
        await ask(paths, "Sessions.Pause", session=other)
        before = {one["id"]: one for one in await ask(paths, "Sessions.List")}
        assert set(before) == {first, fork, other}
        daemon.kill()
        await asyncio.to_thread(daemon.start)
        after = {one["id"]: one for one in await ask(paths, "Sessions.List")}
        told = after[other].pop("interrupted")
        assert "The daemon stopped in the middle of the turn trace_" in told
        assert "none of its calls had ended" in told
        assert before[other].pop("interrupted") == ""
        assert (before[other].pop("state"), after[other].pop("state")) == ("running", "idle")
        assert after == before
        assert after[fork]["current"]
        assert (after[other]["paused"], after[other]["queued"]) == (True, 1)
        with pytest.raises(SessionPaused):
            await ask(paths, "Manager.Ask", agent="test", text="no", session=other)
        await ask(paths, "Sessions.Resume", session=other)
        at_rest = await ask(paths, "Sessions.Wait", session=other, timeout_s=60)
        assert (at_rest["interrupted"], at_rest["queued"]) == ("", 0)
        said = [one["content"] for one in await ask(paths, "Sessions.Messages", session=other)]
        assert said == ["hang", "", "later", "re: later"]
        assert (await ask(paths, "Manager.Ask", agent="test", text="two"))["session"] == fork
        assert (await ask(paths, "History.Verify"))["ok"]


async def test_a_turn_that_waits_in_a_paused_session_goes_on_after_a_kill(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("added"), say("and later")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon, Prompting(paths) as prompts:
        await asyncio.to_thread(daemon.start)
        name = (await ask(paths, "Sessions.Create", agent="test"))["id"]
        await prompts.prompt(name, "go", "approval_requested")
        await prompts.prompt(name, "later", "queued")
        await ask(paths, "Sessions.Pause", session=name)
        daemon.kill()
        await asyncio.to_thread(daemon.start)
        [approval] = await ask(paths, "Approvals.List")
        await ask(paths, "Approvals.Approve", approval=approval["id"])
        at_rest = await ask(paths, "Sessions.Wait", session=name, timeout_s=60)
        assert (at_rest["paused"], at_rest["queued"], at_rest["state"]) == (True, 1, "idle")
        assert len(lines(out)) == 1
        said = [one["content"] for one in await ask(paths, "Sessions.Messages", session=name)]
        assert (said[0], said[-1], len(said)) == ("go", "added", 4)
        await ask(paths, "Sessions.Resume", session=name)
        await ask(paths, "Sessions.Wait", session=name, timeout_s=60)
        last = (await ask(paths, "Sessions.Messages", session=name, limit=2))[-1]
        assert last["content"] == "and later"


async def test_a_killed_delete_happened_or_did_not(paths: Paths) -> None:
    async with ScriptedModel([say("yes")]) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        names = [
            (await ask(paths, "Manager.Ask", agent="test", text="x", new=True))["session"] for _ in range(6)
        ]

        async def delete(name: str) -> bool:
            with contextlib.suppress(LightagentError):
                await ask(paths, "Sessions.Delete", session=name, confirmed=True)
                return True
            return False

        deleting = [asyncio.create_task(delete(name)) for name in names]
        await asyncio.wait(deleting, return_when=asyncio.FIRST_COMPLETED)
        daemon.kill()
        gone = {name for name, done in zip(names, await asyncio.gather(*deleting), strict=True) if done}
        assert gone
        await asyncio.to_thread(daemon.start)
        left = {one["id"] for one in await ask(paths, "Sessions.List")}
        assert gone.isdisjoint(left)
        for name in left:
            assert len(await ask(paths, "Sessions.Messages", session=name)) == 2
        assert (await ask(paths, "History.Verify"))["ok"]
        await asyncio.to_thread(daemon.stop)
        stored = StoredHistory(paths.history)
        try:
            for event in stored.queries.range(limit=10_000):
                if event.session in names and event.session not in left:
                    assert (event.data is None) == (event.topic != "session.deleted")
        finally:
            stored.close()
