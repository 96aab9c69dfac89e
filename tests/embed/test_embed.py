"""The agents in a program: each test runs one as a user would write it, in a process of its own. Most are
forked (tests/prepared.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightagentd.events.queries import Filter, StoredHistory
from tests.agents.team.rig import ask, by_agent, results
from tests.conftest import REPOSITORY, write
from tests.prepared import EMBEDDING, prepared
from tests.scripted_model import ScriptedModel, Stream, call, chunk, say

THREE_LINES = """\
from lightagentd.embed import ask
answer = ask("ops", "check disk", state="./agents")
print(answer.text)
"""
LIMIT_S = 120.0
SCHEMA = {"type": "object", "required": ["used"]}


async def run(
    folder: Path, program: str, *, status: int = 0, forked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, as an ordinary process with a clean environment; its interpreter is its own
    unless it is forked.
    """
    write(folder / "program.py", program)

    def wait() -> subprocess.CompletedProcess[bytes]:
        if forked:
            return prepared().run(EMBEDDING, ["program.py"], env=environment(), cwd=folder, timeout_s=LIMIT_S)
        return subprocess.run(
            [sys.executable, "program.py"],
            cwd=folder,
            env=environment(),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )

    done = await asyncio.to_thread(wait)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == status, err
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(REPOSITORY)}


def define(folder: Path, model: ScriptedModel, front: str = "", name: str = "test") -> None:
    text = f"---\nmodel: openai/x\nbase_url: {model.base_url}\n{front}\n---\nBe brief.\n"
    write(folder / "agents" / "config" / "agent" / name / "AGENT.md", text)


def program(asking: str, **given: str) -> str:
    """A program that opens the agents with these arguments, and prints what `asking` gives as JSON."""
    arguments = "".join(f", {name}={value}" for name, value in given.items())
    return f"""
import asyncio, json, sys, time
from lightagentd.embed import *
from lightagentd.errors import LightagentError

told = []

async def main():
    async with Agents("./agents"{arguments}) as agents:
{asking}

asyncio.run(main())
"""


async def printed(folder: Path, asking: str, **given: str) -> Any:
    return json.loads((await run(folder, program(asking, **given))).stdout)


def test_the_three_lines_are_documented() -> None:
    shown = THREE_LINES.splitlines()
    for text in (REPOSITORY / "lightagentd/embed/__init__.py", REPOSITORY / "docs/interfaces.md"):
        assert all(line in text.read_text() for line in shown), text


async def test_three_lines_have_an_answer_and_say_what_is_weaker(tmp_path: Path) -> None:
    """Without a model, a network, a daemon and any configuration."""
    done = await run(tmp_path, THREE_LINES, forked=False)
    assert "file system" in done.stdout
    for said in ("can do all that they can", "Nobody can be asked", "nobody signs"):
        assert said in done.stderr
    assert (tmp_path / "agents").stat().st_mode & 0o777 == 0o700
    stored = StoredHistory(tmp_path / "agents" / "history")
    try:
        found = [event.type for event in stored.queries.select(Filter(), limit=1000)]
    finally:
        stored.close()
    assert found[-1] == "stopped"
    assert {"prompt", "intent", "invocation", "done"} <= {*found}


async def test_choices_sessions_and_sinks(tmp_path: Path) -> None:
    async with ScriptedModel([say('{"used": 1}'), say("two")]) as model:
        define(tmp_path, model)
        asking = f"""
        one = await agents.ask("test", "first", schema={SCHEMA!r}, tools=[])
        two = await agents.ask("test", "second", session=one.session)
    print(json.dumps([one.data, one.usage["total_tokens"], two.text, one.session == two.session, told]))"""
        sinks = "[lambda event: told.append(event['type']), 'events.jsonl']"
        data, tokens, text, same, types = await printed(tmp_path, asking, sinks=sinks)
        assert (data, tokens, text, same) == ({"used": 1}, 15, "two", True)
        lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
        assert [one["type"] for one in lines] == types
        assert types.count("done") == 2
        assert [one["role"] for one in model.requests[1].body["messages"]] == [
            "system", "user", "assistant", "user",
        ]  # fmt: skip


async def test_an_agent_asks_another_one(tmp_path: Path) -> None:
    """What the first one may not do in this turn, the other one does not either."""
    wanted = call("bash_exec", {"command": "true", "effect": "observe"}, call_id="b")
    scripts = {"test": [ask("other"), say("over")], "other": [wanted, say("tried")]}
    async with ScriptedModel(by_agent(scripts)) as model:
        define(tmp_path, model)
        define(tmp_path, model, name="other")
        asking = """
        answer = await agents.ask("test", "go", tools=["agent"])
        print(json.dumps([answer.text, [one["action"] for one in answer.calls]]))"""
        assert await printed(tmp_path, asking) == ["over", ["ask"]]
        (refused,) = [results(one.body)[0] for one in model.requests[2:3]]
        assert "The agent test may not use bash.exec" in refused


async def test_the_callbacks_are_told_and_heard(tmp_path: Path) -> None:
    async with ScriptedModel([call("plan_show", {}), say("done")]) as model:
        define(tmp_path, model)
        asking = """
        answer = await agents.ask("test", "go")
        print(json.dumps([answer.text, told]))"""
        given = {
            "system_prompt": "lambda ctx: f'You serve {ctx.agent}, who asks: {ctx.prompt}'",
            "on_step": "lambda step: told.append([step.number, step.final])",
        }
        text, steps = await printed(tmp_path, asking, **given)
        assert (text, steps) == ("done", [[1, False], [2, True]])
        assert "You serve test, who asks: go" in model.requests[0].body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("given", "words", "requests"),
    [
        ({"system_prompt": "lambda ctx: 1 / 0"}, "system_prompt of the program raised ZeroDivisionError", 0),
        ({"system_prompt": "lambda ctx: 7"}, "system_prompt gave int, and not text", 0),
        ({"on_step": "lambda step: 1 / 0"}, "on_step of the program raised ZeroDivisionError", 1),
    ],
)
async def test_a_callback_that_raises_ends_its_turn_and_nothing_else(
    tmp_path: Path, given: dict[str, str], words: str, requests: int
) -> None:
    async with ScriptedModel([call("plan_show", {}), say("done")]) as model:
        define(tmp_path, model)
        asking = """
        codes = []
        for _ in range(2):
            try:
                await agents.ask("test", "go")
            except LightagentError as err:
                codes.append([err.code, err.message])
        print(json.dumps([codes, told, (await agents.ask("ops", "check memory")).finish_reason
                          if not agents._on_step and not agents._system_prompt else ""]))"""
        handler = "lambda err: told.append(err.code)"
        codes, told, _ = await printed(tmp_path, asking, on_error=handler, **given)
        assert [code for code, _ in codes] == told == ["callback_failed"] * 2
        assert all(words in message for _, message in codes)
        assert len(model.requests) == (2 if requests else 0)


async def test_an_on_error_that_raises_hides_no_error(tmp_path: Path) -> None:
    asking = """
        try:
            await agents.ask("nosuch", "go")
        except LightagentError as err:
            print(json.dumps(err.code))"""
    done = await run(tmp_path, program(asking, on_error="lambda err: 1 / 0"))
    assert json.loads(done.stdout) == "agent_not_found"
    assert "on_error of the program raised ZeroDivisionError" in done.stderr


async def test_a_sink_that_blocks_keeps_neither_the_turn_nor_the_program(tmp_path: Path) -> None:
    many = Stream(pieces=[chunk({"content": "x" * 50}) for _ in range(20)] + [chunk({}, "stop")])
    async with ScriptedModel([many]) as model:
        define(tmp_path, model)
        asking = """
        print(json.dumps((await agents.ask("test", "go")).text))"""
        blocks = program(asking, sinks="[lambda event: time.sleep(3600)]")
        done = await run(tmp_path, blocks, forked=False)
        assert len(json.loads(done.stdout)) == 1000


async def test_nobody_is_asked_so_a_change_is_refused(tmp_path: Path) -> None:
    wanted = {"command": "touch made", "effect": "change"}
    async with ScriptedModel([call("bash_exec", wanted), say("it is refused")]) as model:
        define(tmp_path, model)
        write(tmp_path / "agents/config/lightagentd.toml", '[worker]\nchange_agents = ["test"]\n')
        asking = """
        print(json.dumps((await agents.ask("test", "go")).calls))"""
        (call_,) = await printed(tmp_path, asking)
        assert call_["result"] in ("approval_required", "policy_denied")


async def test_a_time_limit_ends_the_turn(tmp_path: Path) -> None:
    async with ScriptedModel([Stream(pieces=[], hang=True), say("next")]) as model:
        define(tmp_path, model)
        asking = """
        try:
            await agents.ask("test", "go", timeout_s=2)
        except LightagentError as err:
            session = next(iter(agents._assembly.registry.get("test").sessions))
            print(json.dumps([err.code, (await agents.ask("test", "go", session=session)).text]))"""
        assert await printed(tmp_path, asking) == ["timeout", "next"]


async def test_two_programs_cannot_have_one_folder(tmp_path: Path) -> None:
    asking = """
        try:
            async with Agents("./agents"):
                pass
        except LightagentError as err:
            print(json.dumps([err.code, (await agents.ask("ops", "check disk")).finish_reason]))"""
    assert await printed(tmp_path, asking) == ["conflict", "stop"]


async def test_a_program_that_was_killed_finds_its_turn_again(tmp_path: Path) -> None:
    async with ScriptedModel([Stream(pieces=[], hang=True)]) as model:
        define(tmp_path, model)
        write(tmp_path / "first.py", program('        await agents.ask("test", "go")'))
        first = await asyncio.create_subprocess_exec(
            sys.executable, "first.py", cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL
        )
        async with asyncio.timeout(60):
            while not model.requests:
                await asyncio.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        model.script = [say("again")]
        asking = """
        session = next(iter(agents._assembly.registry.get("test").sessions.values()))
        before = session.record.interrupted
        answer = await agents.ask("test", "go on", session=session.id)
        print(json.dumps([before, answer.text]))"""
        told, text = await printed(tmp_path, asking)
        assert "stopped in the middle of the turn" in told
        assert text == "again"
