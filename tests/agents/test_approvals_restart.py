"""Questions that outlive the daemon: ended in order or killed, the call runs once, or never."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import BudgetExceeded, DaemonUnreachable, LightagentError
from lightagentd.events.queries import StoredHistory
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, Watched, add, approvals, asked, asking, kinds, lines, prepare
from tests.agents.scripted import ME, define, until
from tests.conftest import DaemonProcess, write
from tests.scripted_model import Answer, ScriptedModel, call, calls, say

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"


@contextlib.asynccontextmanager
async def process(paths: Paths, model: ScriptedModel, toml: str = "") -> AsyncIterator[DaemonProcess]:
    """A daemon process whose agent is `test`, not started yet."""
    define(paths, model, front=FRONT)
    write(paths.config / "lightagentd.toml", TOML + toml)
    daemon = DaemonProcess(paths)
    try:
        yield daemon
    finally:
        await asyncio.to_thread(daemon.close)


async def ask(paths: Paths, method: str, **parameters: Any) -> Any:
    """One call on a connection of its own."""
    async with AsyncClient(paths.socket, timeout_s=30) as client:
        reply = await client.call(method, **parameters)
    return next(iter(reply.values()), None)


@contextlib.asynccontextmanager
async def prompted(paths: Paths, token: str = "") -> AsyncIterator[str]:
    """A prompt that somebody waits for, with a token; gives the approval that its turn waits for."""
    async with AsyncClient(paths.socket) as client:
        if token:
            await client.call("Manager.Authenticate", token=token)

        task = asyncio.create_task(client.call("Manager.Ask", agent="test", text="go"))
        opened = asyncio.create_task(open_question(paths))
        try:
            await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
            if not opened.done():
                raise AssertionError(f"the turn is over, and asked nothing: {await task}")
            yield (await opened)["id"]
        finally:
            task.cancel()
            opened.cancel()
            await asyncio.gather(task, opened, return_exceptions=True)


async def open_question(paths: Paths) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not (found := await ask(paths, "Approvals.List")):
            await asyncio.sleep(0.02)
    return dict(found[0])


async def resumed(paths: Paths) -> dict[str, Any]:
    """The session, once its turn has gone on after a start: that is a moment after the daemon serves."""
    async with asyncio.timeout(30):
        while (session := (await ask(paths, "Sessions.List"))[0])["state"] != "waiting":
            await asyncio.sleep(0.02)
    return dict(session)


async def settled(paths: Paths) -> dict[str, Any]:
    """Wait until no turn is unfinished; gives the session, with its messages."""
    async with asyncio.timeout(30):
        while True:
            (session,) = await ask(paths, "Sessions.List")
            if session["state"] == "idle" and not session["queued"]:
                break
            await asyncio.sleep(0.02)
    messages = await ask(paths, "Sessions.Messages", session=session["id"])
    return {**session, "messages": messages}


def stop(daemon: DaemonProcess) -> None:
    assert daemon.stop() == 0


def kill(daemon: DaemonProcess) -> None:
    daemon.kill()


ENDINGS = pytest.mark.parametrize("end", [stop, kill], ids=["SIGTERM", "kill -9"])


@ENDINGS
async def test_a_turn_that_waits_goes_on_waiting_after_a_restart(
    paths: Paths, end: Callable[[DaemonProcess], None]
) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out), call_id="c1", text="I will."), say("it is done")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        limits = {"tokens_per_day": 30}
        made = await ask(paths, "Tokens.Create", name="chat", scopes=["inspect", "prompt"], limits=limits)
        async with prompted(paths, made["secret"]) as question:
            await asyncio.to_thread(end, daemon)
        await asyncio.to_thread(daemon.start)
        assert (await ask(paths, "Tokens.List"))[0]["tokens_today"] == 15
        found = await ask(paths, "Approvals.Get", approval=question)
        assert (found["state"], found["preview"]) == ("waiting", "+ran")
        assert (await resumed(paths))["state"] == "waiting"
        assert lines(out) == []
        await ask(paths, "Approvals.Approve", approval=question, note="go on")
        session = await settled(paths)
        assert lines(out) == ["ran"]
        roles = [message["role"] for message in session["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert session["messages"][2]["content"].startswith("added as uid")
        assert session["messages"][3]["content"] == "it is done"
        assert len(model.requests) == 2
        assert (await ask(paths, "Tokens.List"))[0]["tokens_today"] == 30, "of the turn that went on, too"
        assert (await ask(paths, "Approvals.Get", approval=question))["state"] == "used"
        await asyncio.to_thread(end, daemon)
        await asyncio.to_thread(daemon.start)
        assert lines(out) == ["ran"]
        assert (await ask(paths, "Approvals.Get", approval=question))["state"] == "used"
        async with AsyncClient(paths.socket) as client:
            await client.call("Manager.Authenticate", token=made["secret"])
            with pytest.raises(BudgetExceeded, match="chat has used 30 tokens of models today, of 30"):
                await client.call("Manager.Ask", agent="test", text="go")
        assert (await ask(paths, "History.Verify"))["ok"]


async def test_a_second_restart_and_a_denial(paths: Paths) -> None:
    out = prepare(paths)
    wanted = [("probe_add", add(out, line=f"n{number}"), f"c{number}") for number in range(2)]
    async with ScriptedModel([calls(*wanted), say("pity")]) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        async with prompted(paths) as question:
            await asyncio.to_thread(daemon.kill)
        for end in (stop, kill):
            await asyncio.to_thread(daemon.start)
            assert (await open_question(paths))["id"] == question
            await asyncio.to_thread(end, daemon)
        await asyncio.to_thread(daemon.start)
        await ask(paths, "Approvals.Deny", approval=question)
        second = await open_question(paths)
        assert second["args"]["line"] == "n1", "the rest of the step is asked for, too"
        await ask(paths, "Approvals.Approve", approval=second["id"])
        session = await settled(paths)
        assert lines(out) == ["n1"]
        assert [message["role"] for message in session["messages"]][-3:] == ["tool", "tool", "assistant"]
        assert session["messages"][2]["content"].startswith("Error (approval_denied)")


async def test_prompts_that_were_queued_behind_it_come_after_it(paths: Paths) -> None:
    out = prepare(paths)

    def script(body: dict[str, Any]) -> Answer:
        last = body["messages"][-1]
        if last["role"] == "user" and last["content"] == "go":
            return call("probe_add", add(out))
        return say(f"after {last['role']}")

    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        async with prompted(paths) as question, AsyncClient(paths.socket) as client:
            events = client.stream("Sessions.Prompt", agent="test", text="second")
            assert (await anext(events))["event"]["type"] == "queued"
            await asyncio.to_thread(daemon.kill)
            with contextlib.suppress(DaemonUnreachable):
                await anext(events)
            await events.aclose()
        await asyncio.to_thread(daemon.start)
        await ask(paths, "Approvals.Approve", approval=question)
        session = await settled(paths)
        contents = [message["content"] for message in session["messages"] if message["role"] != "tool"]
        assert contents == ["go", "", "after tool", "second", "after user"]
        assert lines(out) == ["ran"]


@pytest.mark.parametrize("round_", [0, 1, 2, 4])
async def test_a_kill_right_after_the_grant_never_runs_it_twice(paths: Paths, round_: int) -> None:
    """Whatever was stored when the daemon died: the call ran at most once, and history says what is known."""
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("done")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        async with prompted(paths) as question:
            granting = asyncio.create_task(ask(paths, "Approvals.Approve", approval=question))
            if round_ % 2:
                await granting
            else:
                await asyncio.sleep(0.001 * round_)
            await asyncio.to_thread(daemon.kill)
            await asyncio.gather(granting, return_exceptions=True)
        with contextlib.closing(StoredHistory(paths.history)) as stored:
            state = stored.queries.state_of("approvals", question)["state"]
        await asyncio.to_thread(daemon.start)
        if state == "waiting":
            await ask(paths, "Approvals.Deny", approval=question)
        await settled(paths)
        if state == "used":
            # The one call may have come to its line just after the kill; a second one would have an intent.
            assert lines(out) in ([], ["ran"])
            dispatched = await ask(paths, "History.Query", topic="agent.tool_dispatch")
            assert [event["type"] for event in dispatched] == ["intent"]
        elif state == "granted":
            assert lines(out) == ["ran"], "its use was not stored, so it had not begun"
        else:
            assert lines(out) == []
        assert (await ask(paths, "Approvals.Get", approval=question))["state"] in ("used", "denied")
        refused = []
        for answer in ("Approvals.Approve", "Approvals.Deny"):
            with pytest.raises(LightagentError) as caught:
                await ask(paths, answer, approval=question)
            refused.append(caught.value.code)
        assert refused == ["approval_closed"] * 2
        assert (await ask(paths, "History.Verify"))["ok"]


async def test_a_grant_that_was_stored_and_not_used_runs_after_the_restart(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("done")]
    async with asking(paths, script) as test, Watched(test, await test.session()):
        question = await asked(test)
        test.daemon.registry.shared.asked.approvals.questions.suspend()
        await until(lambda: not test.agent.turns_running)
        await test.daemon.service.approvals.approve(  # nobody waits for it any more
            ME, question.id, ""
        )
    assert lines(out) == []
    async with asking(paths, [say("done")]) as test:
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert lines(out) == ["ran"]
        assert approvals(test)[0].state == "used"


# Secrets


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize(
    "secret",
    [{"line": f"token={SECRET}"}, {"code": "hidden by its name"}, {"key": "as a key of hmac is"}],
    ids=["by pattern", "write-only", "as a secret string"],
)
async def test_a_call_with_a_secret_is_approved_without_storing_it(
    paths: Paths, secret: dict[str, str]
) -> None:
    out = prepare(paths)
    value = next(iter(secret.values()))
    async with asking(paths, [call("probe_add", add(out, **secret)), say("done")]) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            assert question.volatile
            shown = await test.daemon.service.approvals.get(ME, question.id)
            assert shown.volatile
            if "line" in secret:
                assert SECRET in str(shown.args), "who decides sees what would run"
            else:
                assert value not in str(shown.args)
            assert next(event for event in turn.events or await _so_far(turn) if event["volatile"])
            await test.daemon.service.approvals.approve(ME, question.id, "")
            await turn.end()
        written = lines(out)
        assert len(written) == 1
        if "key" not in secret:
            assert value in written[0], "what ran had the secret"
        intents = [event.data for event in test.stored() if event.type == "intent"]
        assert value not in str(intents)
    for needle in (SECRET, value):
        assert needle.encode() not in everything(paths.state)


async def _so_far(turn: Watched) -> list[Any]:
    late = turn.turn.stream.watch().events()
    event = await anext(late)
    await late.aclose()
    return [event]


async def test_a_question_with_a_secret_lapses_with_the_daemon(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out, line=f"token={SECRET}")), say("then not")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        async with prompted(paths) as question:
            assert (await open_question(paths))["volatile"]
            await asyncio.to_thread(daemon.kill)
        assert SECRET.encode() not in everything(paths.state)
        await asyncio.to_thread(daemon.start)
        session = await settled(paths)
        found = await ask(paths, "Approvals.Get", approval=question)
        assert found["state"] == "lapsed"
        assert "secret" in found["note"]
        with pytest.raises(LightagentError):
            await ask(paths, "Approvals.Approve", approval=question)
        assert session["messages"][2]["content"].startswith("Error (approval_required)")
        assert session["messages"][3]["content"] == "then not"
        assert lines(out) == []
        events = await ask(paths, "History.Query", topic="approval")
        assert [event["type"] for event in events] == ["requested", "lapsed"]


# Drain, stop, fail


async def test_a_turn_that_waits_does_not_keep_the_daemon_from_stopping(paths: Paths) -> None:
    out = prepare(paths)
    toml = "[daemon]\ndrain_timeout_s = 300\n"
    async with asking(paths, [call("probe_add", add(out))], toml=toml) as test:
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            async with asyncio.timeout(60):
                await test.daemon.drain()
            last = (await turn.end())[-1]
        assert (last["type"], last["code"]) == ("error", "agent_not_running")
        assert "waits for an approval" in last["message"]
        assert test.daemon.registry.shared.asked.approvals.questions.get(question.id).state == "waiting"
        assert kinds(test) == ["requested"]
        (state,) = test.daemon.history.queries.state("turns").values()
        assert (state["state"], state["approval"]) == ("waiting", question.id)


async def test_what_begins_to_wait_while_the_daemon_drains_stays_too(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out))]) as test:
        test.daemon.registry.shared.asked.approvals.questions.suspended = True
        async with Watched(test, await test.session()) as turn:
            assert (await turn.end())[-1]["code"] == "agent_not_running"
        assert [state["state"] for state in test.daemon.history.queries.state("turns").values()] == [
            "waiting"
        ]
    async with asking(paths, [say("pity")]) as test:
        question = await asked(test)
        await test.daemon.service.approvals.deny(ME, question.id, "")
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert lines(out) == []


async def test_stopping_the_agent_lapses_its_questions(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("back")]) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            await test.daemon.service.agents.stop(ME, "test")
            assert (await turn.end())[-1]["code"] == "cancelled"
        assert kinds(test) == ["requested", "lapsed"]
        with pytest.raises(LightagentError):
            await test.daemon.service.approvals.approve(ME, question.id, "")
        await test.daemon.service.agents.start(ME, "test")
        assert (await test.prompt(test.agent.sessions[session.id]))[-1]["text"] == "back"
        assert lines(out) == []


async def test_deleting_the_agent_lapses_its_questions(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out))]) as test:
        front = test.agent.running_parts().definition.front
        made = await test.daemon.registry.create("made", front, "Be.")
        test.daemon.pool._settings.change_agents.append("made")
        created = await test.daemon.service.sessions.create(ME, "made", "")
        turn = await made.prompt(made.sessions[created.id], "go")
        await asked(test)
        await test.daemon.service.agents.delete(ME, "made")
        assert turn.over.is_set()
        assert kinds(test) == ["requested", "lapsed"]
        assert await test.daemon.service.approvals.listed(ME, all_=False) == []


async def test_an_agent_that_failed_takes_its_waiting_turns_up_again(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        async with Watched(test, await test.session()):
            question = await asked(test)
            test.agent.supervision.fail(RuntimeError("a bug"))
            await until(lambda: test.agent.restarts == 1)
            await until(lambda: test.agent.turns_waiting == 1)
            await test.daemon.service.approvals.approve(ME, question.id, "")
            await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert lines(out) == ["ran"]
        assert kinds(test) == ["requested", "granted", "used"]


async def test_a_turn_that_python_drives_does_not_outlive_the_daemon(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out))]) as test:
        session = await test.session()

        async def drive() -> None:
            async for _ in session.run("go"):
                pass

        task = asyncio.create_task(drive())
        await asked(test)
        await test.daemon.drain()
        with pytest.raises(LightagentError):
            await task
        assert kinds(test) == ["requested", "lapsed"]
        assert test.daemon.history.queries.state("turns") == {}
