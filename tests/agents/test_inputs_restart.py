"""Questions to people that outlive the daemon: ended in order or killed, the same turn goes on, once."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lightagentd.agents.sessions.session import Session
from lightagentd.client.aio import AsyncClient
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import DaemonUnreachable, InputClosed, LightagentError
from lightagentd.events.history import Change
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from lightagentd.policy.questions.inputs import Input
from lightagentd.policy.questions.question import now_us
from tests.agents.questions import QUESTION, ask, ends, intents, kinds, prompted, question
from tests.agents.scripted import ME, Scripted, check_conversation, define, scripted, until
from tests.conftest import DaemonProcess, write
from tests.scripted_model import ScriptedModel, Stream, calls, say

RULE = '[[rule]]\nname = "people"\ntool = "human"\ndecision = "ask"\n'
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"


async def rpc(paths: Paths, method: str, **parameters: Any) -> Any:
    """One call on a connection of its own."""
    async with AsyncClient(paths.socket, timeout_s=60) as client:
        reply = await client.call(method, **parameters)
    return next(iter(reply.values()), None)


async def open_one(paths: Paths, interface: str = "Inputs") -> dict[str, Any]:
    """Wait until something is asked; gives the first of it."""
    async with asyncio.timeout(60):
        while not (found := await rpc(paths, f"{interface}.List")):
            await asyncio.sleep(0.02)
    return dict(found[0])


async def settled(paths: Paths) -> list[dict[str, Any]]:
    """Wait until no turn is unfinished; gives the messages of the one session."""
    async with asyncio.timeout(60):
        while True:
            (session,) = await rpc(paths, "Sessions.List")
            if session["state"] == "idle" and not session["queued"]:
                return list(await rpc(paths, "Sessions.Messages", session=session["id"]))
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def process(
    paths: Paths, *script: Stream, front: str = ""
) -> AsyncIterator[tuple[DaemonProcess, ScriptedModel]]:
    """A daemon process that was prompted."""
    async with ScriptedModel(script) as model:
        define(paths, model, front=front)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            async with AsyncClient(paths.socket) as client:
                asking = asyncio.create_task(_wait(client))
                try:
                    yield daemon, model
                finally:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
        finally:
            await asyncio.to_thread(daemon.close)


async def _wait(client: AsyncClient) -> None:
    with contextlib.suppress(LightagentError):
        await client.call("Manager.Ask", agent="test", text="go")


def stop(daemon: DaemonProcess) -> None:
    assert daemon.stop() == 0


def kill(daemon: DaemonProcess) -> None:
    daemon.kill()


ENDINGS = pytest.mark.parametrize("end", [stop, kill], ids=["SIGTERM", "kill -9"])


async def once(paths: Paths) -> None:
    """The call was begun once and ended once, and the chain holds."""
    events = await rpc(paths, "History.Query", topic="agent.tool_dispatch")
    assert [event["type"] for event in events] == ["intent"]
    assert len(await rpc(paths, "History.Query", topic="tool.human")) == 1
    assert (await rpc(paths, "History.Verify"))["ok"]


@ENDINGS
async def test_the_same_turn_goes_on_with_an_answer_after_a_restart(
    paths: Paths, end: Callable[[DaemonProcess], None]
) -> None:
    async with process(paths, ask(choices=["sda", "sdb"]), say("sdb it is")) as (daemon, model):
        asked = await open_one(paths)
        for _ in range(2):
            await asyncio.to_thread(end, daemon)
            await asyncio.to_thread(daemon.start)
            assert await open_one(paths) == asked
        assert len(model.requests) == 1, "the model is not asked again"
        assert (asked["question"], asked["choices"]) == (QUESTION, ["sda", "sdb"])
        await rpc(paths, "Inputs.Answer", input=asked["id"], text="2")
        messages = await settled(paths)
        assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[2]["content"] == f"{called(ME.uid)} answered:\nsdb"
        assert messages[3]["content"] == "sdb it is"
        await once(paths)
        await asyncio.to_thread(end, daemon)
        await asyncio.to_thread(daemon.start)
        assert (await rpc(paths, "Inputs.Get", input=asked["id"]))["state"] == "answered"
        assert len(model.requests) == 2


async def test_a_turn_that_was_killed_at_any_moment_after_the_answer_has_one_result(paths: Paths) -> None:
    async with process(paths, ask(), say("ok")) as (daemon, model):
        asked = await open_one(paths)
        answering = asyncio.create_task(rpc(paths, "Inputs.Answer", input=asked["id"], text="sda"))
        await asyncio.to_thread(daemon.kill)
        acknowledged = True
        try:
            await answering
        except DaemonUnreachable:
            acknowledged = False
        await asyncio.to_thread(daemon.start)
        if not acknowledged:
            with contextlib.suppress(InputClosed):
                await rpc(paths, "Inputs.Answer", input=asked["id"], text="sda")
        messages = await settled(paths)
        results = [one["content"] for one in messages if one["role"] == "tool"]
        assert results == [f"{called(ME.uid)} answered:\nsda"]
        assert (await rpc(paths, "Inputs.Get", input=asked["id"]))["answer"] == "sda"
        assert len(await rpc(paths, "History.Query", topic="input.answered")) == 1
        await once(paths)
        assert model.requests


async def test_a_question_that_expired_while_the_daemon_was_down_is_taken_up(paths: Paths) -> None:
    async with process(paths, ask(timeout_s=2), say("then not")) as (daemon, _):
        asked = await open_one(paths)
        await asyncio.to_thread(daemon.kill)
        await until(lambda: now_us() > asked["expires_us"])
        await asyncio.to_thread(daemon.start)
        messages = await settled(paths)
        assert messages[2]["content"].startswith("Nobody answered within 2 seconds")
        assert messages[3]["content"] == "then not"
        with pytest.raises(InputClosed, match="has expired"):
            await rpc(paths, "Inputs.Answer", input=asked["id"], text="sda")
        await once(paths)


async def test_an_approval_and_then_a_question_of_one_call_both_outlive_the_daemon(paths: Paths) -> None:
    write(paths.config / "policy.d" / "50-ask.toml", RULE)
    async with process(paths, ask(), say("ok")) as (daemon, _):
        approval = await open_one(paths, "Approvals")
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        await rpc(paths, "Approvals.Approve", approval=approval["id"])
        asked = await open_one(paths)
        assert asked["call_id"] == approval["call_id"]
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        await rpc(paths, "Inputs.Answer", input=asked["id"], text="sda")
        messages = await settled(paths)
        assert messages[2]["content"].endswith("\nsda")
        assert (await rpc(paths, "Approvals.Get", approval=approval["id"]))["state"] == "used"
        await once(paths)


async def test_the_rest_of_the_step_runs_after_a_restart(paths: Paths) -> None:
    both = calls(("human_ask", {"question": "first"}, "c1"), ("human_ask", {"question": "second"}, "c2"))
    async with process(paths, both, say("ok")) as (daemon, _):
        first = await open_one(paths)
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        await rpc(paths, "Inputs.Answer", input=first["id"], text="1")
        second = await open_one(paths)
        assert (first["question"], second["question"]) == ("first", "second")
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        await rpc(paths, "Inputs.Answer", input=second["id"], text="2")
        answers = [one["content"][-1] for one in await settled(paths) if one["role"] == "tool"]
        assert answers == ["1", "2"]


async def test_a_turn_that_has_its_answer_and_is_killed_later_waits_for_nobody(paths: Paths) -> None:
    silent = Stream(pieces=say("x").pieces[:1], hang=True)
    async with process(paths, ask(), silent) as (daemon, model):
        asked = await open_one(paths)
        await rpc(paths, "Inputs.Answer", input=asked["id"], text="sda")
        await until(lambda: len(model.requests) == 2)
        async with asyncio.timeout(60):  # the model is asked while the result is being written
            while not await rpc(paths, "History.Query", topic="tool.human"):
                await asyncio.sleep(0.02)
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        messages = await settled(paths)
        assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
        (session,) = await rpc(paths, "Sessions.List")
        assert "1 of its calls ended before that" in session["interrupted"]
        assert len(model.requests) == 2, "it is not taken up as one that waits"
        await once(paths)


# In this process


@contextlib.asynccontextmanager
async def left_waiting(paths: Paths) -> AsyncIterator[tuple[Scripted, Session, Input]]:
    """A daemon whose turn waits while the block runs, and that is stopped then."""
    async with scripted(paths, [ask(), say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session):
            yield test, session, await question(test)
            await test.daemon.close()


@contextlib.asynccontextmanager
async def again(paths: Paths) -> AsyncIterator[Scripted]:
    """The daemon once more, with a model that says that it is well."""
    async with scripted(paths, [say("ok")]) as test:
        yield test


async def turn_is_over(test: Scripted) -> None:
    await until(lambda: not test.daemon.history.queries.state("turns"))


async def test_a_stop_leaves_the_question_stored_and_says_so(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            await test.daemon.drain()
            last = (await events)[-1]
        assert (last["type"], last["code"]) == ("error", "agent_not_running")
        assert "lactl inputs" in last["suggestion"]
        (state,) = test.daemon.history.queries.state("turns").values()
        assert (state["state"], state["approval"]) == ("waiting", asked.id)
        assert kinds(test) == ["requested"]
        # It can be answered until the very end; the turn takes the answer up at the next start.
        await test.daemon.registry.shared.asked.inputs.answer(asked.id, "sda", uid=ME.uid)
    async with again(paths) as test:
        await turn_is_over(test)
        assert kinds(test) == ["requested", "answered"]
        assert [end["result"] for end in ends(test)] == ["ok"]
        assert len(intents(test)) == 1
        conversation = test.conversation(test.agent.sessions[session.id])
        assert conversation[2].content.endswith("\nsda")
        check_conversation(conversation)


async def test_an_answer_whose_turn_was_cut_off_before_it_read_it_is_not_lost(paths: Paths) -> None:
    async with left_waiting(paths) as (test, session, asked):
        inputs = test.daemon.registry.shared.asked.inputs
        inputs.questions.suspend()
        test.daemon.registry.shared.asked.approvals.questions.suspend()
        turn = session.running
        assert turn is not None
        await inputs.answer(asked.id, "sda", uid=ME.uid)
        await turn.over.wait()
    async with again(paths) as test:
        await turn_is_over(test)
        assert [end["metadata"]["state"] for end in ends(test)] == ["answered"]
        assert test.conversation(test.agent.sessions[session.id])[2].content.endswith("\nsda")


async def test_a_secret_in_the_question_does_not_keep_the_turn_from_going_on(paths: Paths) -> None:
    keys = [SECRET, SECRET.replace("0123", "4567")]
    async with scripted(paths, [ask(f"Is it {SECRET}?", choices=keys)]) as test:
        session = await test.session()
        async with prompted(test, session):
            asked = await question(test)
            await test.daemon.registry.drain()
    async with again(paths) as test:
        found = test.daemon.registry.shared.asked.inputs.questions.get(asked.id)
        assert SECRET not in found.question
        assert len(set(found.choices)) == 2
        assert all(re.fullmatch(r"\[removed: api-key [0-9a-f]{8}\]", each) for each in found.choices)
        await test.daemon.registry.shared.asked.inputs.answer(asked.id, "2", uid=ME.uid)
        await turn_is_over(test)
        assert [end["result"] for end in ends(test)] == ["ok"]


async def test_a_lost_record_of_the_question_ends_the_call_and_not_the_turn(paths: Paths) -> None:
    async with left_waiting(paths) as (test, session, asked):
        await test.daemon.history.append(changes=[Change(state="inputs", key=asked.id, value={"id": 7})])
        await test.daemon.registry.drain()
    async with again(paths) as test:
        await turn_is_over(test)
        conversation = test.conversation(test.agent.sessions[session.id])
        assert conversation[2].content.startswith("Error (input_not_found)")
        assert conversation[3].content == "ok"
        check_conversation(conversation)


async def test_an_emergency_stop_ends_a_turn_whose_agent_does_not_run(paths: Paths) -> None:
    async with left_waiting(paths) as (test, _, asked):
        await test.daemon.registry.drain()
    (paths.config / "agent" / "test" / "AGENT.md").unlink()
    async with Daemon(paths) as daemon:
        assert daemon.registry.shared.asked.inputs.questions.get(asked.id).state == "waiting"
        await daemon.service.safety.panic(ME, "test")
        assert daemon.registry.shared.asked.inputs.questions.get(asked.id).state == "lapsed"
        assert not daemon.history.queries.state("turns")
