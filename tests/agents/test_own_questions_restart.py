"""Questions of own tools that outlive the daemon: their calls go on with the stored state, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import InputClosed
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML
from tests.agents.commits import copied, killed_after
from tests.agents.own_questions import asker, ends, install, lines, saved
from tests.agents.questions import kinds, prompted, question
from tests.agents.scripted import ME, Scripted, check_conversation, scripted, until
from tests.agents.team.rig import Team, by_agent, define_team
from tests.agents.team.rig import ask as ask_agent
from tests.agents.test_inputs_restart import ENDINGS, open_one, process, rpc, settled
from tests.conftest import DaemonProcess, write
from tests.scripted_model import ScriptedModel, call, say

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"


@ENDINGS
async def test_an_approved_call_goes_on_after_a_restart_without_a_second_approval(
    paths: Paths, end: Callable[[DaemonProcess], None]
) -> None:
    out = install(paths)
    write(paths.config / "lightagentd.toml", TOML)
    wanted = call("asker_change", {"out": str(out), "questions": 2})
    async with process(paths, wanted, say("done"), front=FRONT) as (daemon, model):
        approval = await open_one(paths, "Approvals")
        await rpc(paths, "Approvals.Approve", approval=approval["id"])
        first = await open_one(paths)
        await asyncio.to_thread(end, daemon)
        await asyncio.to_thread(daemon.start)
        assert await open_one(paths) == first
        await rpc(paths, "Inputs.Answer", input=first["id"], text="1")
        second = await open_one(paths)
        while second["id"] == first["id"]:
            second = await open_one(paths)
        assert (second["question"], second["call_id"]) == ("And then?", first["call_id"])
        await asyncio.to_thread(end, daemon)
        await asyncio.to_thread(daemon.start)
        await rpc(paths, "Inputs.Answer", input=second["id"], text="stop")
        messages = await settled(paths)
        assert [one["content"] for one in messages[2:]] == ["went on with stop", "done"]
        expecting = "{'line': 'ran'}"
        assert lines(out) == ["ran begins", f"ran sda change {expecting}", f"ran stop change {expecting}"]
        assert len(model.requests) == 2
        assert not await rpc(paths, "Approvals.List")
        dispatched = await rpc(paths, "History.Query", topic="agent.tool_dispatch")
        assert [event["type"] for event in dispatched] == ["intent"]
        assert len(await rpc(paths, "History.Query", topic="tool.asker")) == 1
        assert (await rpc(paths, "History.Verify"))["ok"]


async def test_a_kill_while_it_goes_on_leaves_its_outcome_unknown(paths: Paths) -> None:
    out = install(paths)
    write(paths.config / "lightagentd.toml", TOML)
    write(
        paths.config / "policy.d" / "50-asker.toml",
        '[[rule]]\nname = "asker"\ntool = "asker"\ndecision = "allow"\n',
    )
    wanted = call("asker_change", {"out": str(out)})
    async with process(paths, wanted, say("done"), front=FRONT) as (daemon, model):
        asked = await open_one(paths)
        beside = await asyncio.to_thread(daemon.lactl, "tools", "call", "test", "proc.info", "pid=1")
        assert beside.returncode == 0, "its intent is newer"
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        await rpc(paths, "Inputs.Answer", input=asked["id"], text="sdb")  # with which it takes ten minutes
        await until(lambda: len(lines(out)) == 2)
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        messages = await settled(paths)
        assert "outcome_unknown" in messages[2]["content"]
        assert lines(out) == ["ran begins", "ran sdb change {}"]
        (end,) = await rpc(paths, "History.Query", topic="tool.asker")
        assert (end["data"]["call_id"], end["data"]["result"]) == (asked["call_id"], "outcome_unknown")
        assert len(model.requests) == 1


async def test_what_cannot_go_on_after_a_restart_ends_its_call_and_not_the_turn(paths: Paths) -> None:
    """The tool is gone, its file has changed, or the arguments are not stored."""
    install(paths)
    tool = paths.config / "tools" / "asker.py"
    text = tool.read_text()
    cases = {
        "tool_not_found": ("", {"out": ""}),
        "input_invalid": (text.replace(', resume="looked_on"', ""), {"out": ""}),
        "cancelled": (text, {"out": "", "note": f"token={SECRET}"}),
        "invalid_argument": (text.replace("note: str", "notes: str"), {"out": "", "note": "x"}),
    }
    for number, (code, (changed, args)) in enumerate(cases.items()):
        write(tool, text)
        async with asker(paths, [call("asker_look", args)]) as test:
            session = await test.session()
            async with prompted(test, session):
                asking = await question(test)
                await test.daemon.registry.drain()
        write(tool, changed) if changed else tool.unlink()
        script = [call("human_ask", {"question": "And now?"}), say("pity")]
        async with scripted(paths, script, front=FRONT, toml=TOML) as test:
            with contextlib.suppress(InputClosed):  # some end before anybody can answer
                await answer_in(test.daemon, asking.id)
            later = await question(test, after=asking.id)
            await answer_in(test.daemon, later.id)
            await until(lambda: not test.daemon.history.queries.state("turns"))
            said = test.conversation(test.agent.sessions[session.id])
            assert said[2].content.startswith(f"Error ({code})")
            assert said[5].content == "pity"
            check_conversation(said)
            assert len(ends(test)) == number + 1
            assert saved(test) == [{}] * 2 * (number + 1)
            assert not test.daemon.registry.shared.asked.inputs.questions.open_ones()


async def test_a_kill_after_any_commit_goes_on_once_or_says_that_it_is_not_known(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = install(paths)
    wanted = call("asker_change", {"out": str(out), "questions": 2})
    whole = ["ran begins", "ran sda change {'line': 'ran'}", "ran sda change {'line': 'ran'}"]
    with copied(paths, monkeypatch, lambda: lines(out)) as taken:
        script = [wanted, say("done")]
        async with asker(paths, script) as test, prompted(test, await test.session()) as (_, events):
            await answer_all(test)
            await events
    assert lines(out) == whole
    asked = 0
    for number, then in enumerate(taken):
        write(out, "".join(f"{line}\n" for line in then))
        with killed_after(paths, number) as left:
            async with asker(left, [say("done")]) as test:
                asked += len(test.daemon.registry.shared.asked.inputs.questions.open_ones())
                await answer_all(test)
                stored = test.stored()
                begun = [event for event in stored if event.type == "intent"]
                assert len(ends(test)) == len(begun) <= 1
                assert ends(test) in ([], ["ok"], ["outcome_unknown"])
                assert Counter(lines(out)) <= Counter(whole), "nothing ran twice"
                if ends(test) == ["ok"]:
                    assert lines(out) == whole
                for record in test.daemon.history.queries.state("sessions"):
                    check_conversation(test.conversation(test.agent.sessions[record]))
    assert asked >= 2
    assert len(taken) >= 10


async def answer_all(test: Scripted) -> None:
    """Allow and answer what is asked until no turn is left."""
    asked = test.daemon.registry.shared.asked
    while test.daemon.history.queries.state("turns"):
        for approval in asked.approvals.questions.open_ones():
            if approval.state == "waiting":
                await asked.approvals.answer(approval.id, grant=True, uid=ME.uid)
        for one in asked.inputs.questions.open_ones():
            await asked.inputs.answer(one.id, "sda", uid=ME.uid)
        await asyncio.sleep(0.005)


async def test_a_child_asks_with_its_line_and_goes_on_after_a_stop(paths: Paths) -> None:
    install(paths)
    scripts = {
        "test": [ask_agent("dba"), say("all done")],
        "dba": [call("asker_look", {"out": "", "note": "mine"}), say("dba done")],
    }
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {})
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            turn = await test.agent.prompt(await test.begin(), "go")
            await until(lambda: turn.is_waiting)
            (asking,) = daemon.registry.shared.asked.inputs.questions.open_ones()
            assert asking.question == "test → dba: Which disk?"
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            await until(lambda: daemon.registry.get("dba").turns_waiting == 1)
            await answer_in(daemon, asking.id)
            await until(lambda: not daemon.history.queries.state("turns"))
            assert ends(test) == ["ok"]
            assert kinds(test) == ["requested", "answered", "used"]
            results = [
                event for event in test.stored(topic="agent.message") if "sda, a secret" in str(event.data)
            ]
            assert len(results) == 1


async def answer_in(daemon: Daemon, asked: str) -> None:
    await daemon.registry.shared.asked.inputs.answer(asked, "sda", uid=ME.uid)
