"""One call from the model's words to a stored result: what is refused, what is stored, and when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.agents.tool_calls.calls import parse_call
from lightagentd.agents.tool_calls.results import cap_text
from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
from lightagentd.api import TurnEvent
from lightagentd.errors import InvalidArgument
from lightagentd.events import history as module
from lightagentd.events.model import Event
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import ToolCall
from lightagentd.tool import Effect
from lightagentd.worker.pool import Checked, Pool
from tests.agents.scripted import ME, check_conversation, scripted, types
from tests.conftest import write
from tests.scripted_model import call, calls, say
from tests.worker import running

BARE = '[worker]\nsandbox = "none"\n'

PROBE = """
from pathlib import Path

from lightagentd.tool import Args, Context, Effect, Result, Tool, action


class LookArgs(Args):
    history: str


class EmitArgs(Args):
    topic: str


class Probe(Tool):
    "A tool of this test."

    name = "probe"

    @action(effect=Effect.OBSERVE)
    async def look(self, ctx: Context, args: LookArgs) -> Result:
        "Say whether the intent of this very call is stored."
        stored = Path(args.history).read_bytes()
        known = ctx.call_id.encode() in stored and b'"type":"intent"' in stored
        return Result(output=f"intent stored: {known}")

    @action(effect=Effect.OBSERVE)
    async def emit(self, ctx: Context, args: EmitArgs) -> Result:
        "Emit an event."
        ctx.emit(args.topic, "seen", {"n": 1})
        return Result(output="emitted", metadata={"n": 1})

    @action(effect=Effect.OBSERVE)
    async def fail(self, ctx: Context, args: Args) -> Result:
        "Fail in a way that nobody expected."
        raise RuntimeError("a bug")
"""


async def results(
    paths: Paths, *wanted: tuple[str, Any, str], front: str = "", toml: str = ""
) -> list[TurnEvent]:
    """The results of one answer with these calls."""
    async with scripted(paths, [calls(*wanted), say("ok")], front=front, toml=toml) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["type"] == "done", events[-1]
        check_conversation(test.conversation(session))
        assert test.agent.restarts == 0
        return [event for event in events if event["type"] == "tool_result"]


async def test_bad_calls_come_back_as_errors_and_are_not_run(paths: Paths) -> None:
    wanted: list[tuple[str, Any, str]] = [
        ("proc_info", '{"pid": 1', "c0"),
        ("proc_info", "[1]", "c1"),
        ("proc_info", '{"pid": 1, "colour": "red"}', "c2"),
        ("proc_info", "{}", "c3"),
        ("proc_info", '{"pid": "one"}', "c4"),
        ("proc_info", '{"pid": NaN}', "c5"),
        ("bash_exec", {"command": "true", "effect": "destroy"}, "c6"),
        ("proc_inof", {"pid": 1}, "c7"),
        ("", {}, "c8"),
        ("proc_info", {"pid": 1}, "c9"),
    ]
    async with scripted(paths, [calls(*wanted), say("ok")]) as test:
        session = await test.session()
        events = await test.prompt(session)
        found = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in found] == ["invalid_argument"] * 7 + ["tool_not_found"] * 2 + [
            "ok"
        ]
        assert "'colour'" in found[2]["text"]
        assert "'pid'" in found[3]["text"]
        assert "pid" in found[4]["text"]
        assert "observe, reach or change" in found[6]["text"]
        assert "proc_info" in found[7]["text"]
        told = [message for message in test.model.requests[1].body["messages"] if message["role"] == "tool"]
        assert [message["tool_call_id"] for message in told] == [f"c{number}" for number in range(10)]
        assert all("Error (" in message["content"] for message in told[:9])
        invocations = test.stored(topic="tool.proc")
        assert [event.data["result"] for event in invocations if event.data] == ["ok"]
        refused = [event for event in test.stored() if event.type == "refused"]
        assert len(refused) == 9
        check_conversation(test.conversation(session))


@pytest.mark.usefixtures("sandboxed")
async def test_calls_of_one_answer_run_in_their_order(paths: Paths) -> None:
    wanted = [("bash_exec", {"command": f"sleep 0.{3 - n}; echo n{n}"}, f"c{n}") for n in range(3)]
    found = await results(paths, *wanted)
    assert [event["text"] for event in found] == ["n0\n", "n1\n", "n2\n"]


async def test_the_intent_is_stored_before_the_worker_runs_the_call() -> None:
    # Without a sandbox, which would hide the daemon's state from the tool.
    with running.folders() as paths:
        write(paths.config / "tools" / "probe.py", PROBE)
        _make_history_readable(paths)
        history = str(paths.history / "data.mdb")
        found = await results(paths, ("probe_look", {"history": history}, "c"), toml=BARE)
    assert found[0]["text"] == "intent stored: True"


async def test_only_arguments_with_code_of_their_own_and_wrong_ones_need_a_worker_for_their_check(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    check = Pool.check

    async def noted(self: Pool, agent: str, effect: Effect, tool: str, *given: Any, **more: Any) -> Checked:
        asked.append(f"{tool}.{given[0]}")
        return await check(self, agent, effect, tool, *given, **more)

    monkeypatch.setattr(Pool, "check", noted)
    wanted: list[tuple[str, Any, str]] = [
        ("proc_list", {"limit": "2", "interval_s": 0}, "a"),
        ("proc_list", {"limit": 0}, "b"),
        ("udev_list", {"limit": 1}, "c"),
    ]
    async with scripted(paths, [calls(*wanted), say("ok")]) as test:
        events = await test.prompt(await test.session())
        intents = [event.data for event in test.stored() if event.type == "intent"]
    found = [event["result"] for event in events if event["type"] == "tool_result"]
    assert found[:2] == ["ok", "invalid_argument"]
    assert asked == ["proc.list", "udev.list"]
    assert intents[0] is not None
    whole = {"sort": "cpu", "name": "", "user": "", "state": "", "pid": 0, "limit": 2, "interval_s": 0.0}
    assert intents[0]["args"] == whole


async def test_a_result_shares_the_commit_of_the_next_intent_and_is_told_before_it(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 3600.0)
    commits: list[list[str]] = []
    script = [*(calls(("proc_info", {"pid": 1}, f"c{number}")) for number in range(3)), say("ok")]
    async with scripted(paths, script) as test:
        told = test.daemon.history._on_commit
        assert told is not None

        def take(events: list[Event]) -> None:
            commits.append([event.type for event in events])
            told(events)

        monkeypatch.setattr(test.daemon.history, "_on_commit", take)
        events = await test.prompt(await test.session())
    with_calls = [each for each in commits if {"intent", "invocation"} & {*each}]
    assert [[kind for kind in each if kind in ("invocation", "intent")] for each in with_calls] == [
        ["intent"],
        ["invocation", "intent"],
        ["invocation", "intent"],
        ["invocation"],
    ]
    assert [kind for kind in types(events) if kind.startswith("tool_")] == ["tool_call", "tool_result"] * 3


def _make_history_readable(paths: Paths) -> None:
    """As root the worker is the user nobody, who must be able to read the history for this test."""
    paths.history.mkdir(parents=True, exist_ok=True)
    data = paths.history / "data.mdb"
    data.touch()
    data.chmod(0o644)
    for folder in (paths.history, paths.state):
        folder.chmod(0o755)


async def test_a_tool_may_emit_events_under_its_own_name_only(paths: Paths) -> None:
    write(paths.config / "tools" / "probe.py", PROBE)
    topics = ("tool.probe.deep", "tool.bash", "tool.probe.Not A Topic")
    wanted = [("probe_emit", {"topic": topic}, f"c{number}") for number, topic in enumerate(topics)]
    async with scripted(paths, [calls(*wanted), say("ok")]) as test:
        session = await test.session()
        events = await test.prompt(session)
        found = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in found] == ["ok", "tool_failed", "tool_failed"]
        emitted = [event for event in test.stored() if event.type == "seen"]
        assert [event.topic for event in emitted] == ["tool.probe.deep"]
        assert emitted[0].data == {"call_id": found[0]["call_id"], "n": 1}
        assert emitted[0].session == session.id


async def test_a_tool_with_a_bug_is_a_result(paths: Paths) -> None:
    write(paths.config / "tools" / "probe.py", PROBE)
    found = await results(paths, ("probe_fail", {}, "c"))
    assert found[0]["result"] == "tool_failed"
    assert "a bug" in found[0]["text"]


@pytest.mark.usefixtures("sandboxed")
async def test_a_call_that_takes_too_long_is_a_result(paths: Paths) -> None:
    found = await results(paths, ("bash_exec", {"command": "sleep 4712", "timeout_s": 0.3}, "c"))
    assert found[0]["result"] == "timeout"


async def test_tools_that_are_not_on_the_agents_list_are_neither_offered_nor_run(paths: Paths) -> None:
    script = [calls(("bash_exec", {"command": "true"}, "a"), ("proc_list", {}, "b")), say("ok")]
    async with scripted(paths, script, front="tools: [proc.list, file]") as test:
        session = await test.session()
        events = await test.prompt(session)
        found = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in found] == ["policy_denied", "ok"]
        assert found[0]["tool"] == "bash"
        offered = {tool["function"]["name"] for tool in test.model.requests[0].body["tools"]}
        assert "proc_list" in offered
        assert "file_read" in offered
        assert not offered & {"bash_exec", "proc_info", "file_write"}


@pytest.mark.usefixtures("sandboxed")
async def test_an_effect_that_the_agent_lacks_is_refused_with_a_suggestion(paths: Paths) -> None:
    found = await results(
        paths,
        ("bash_exec", {"command": "true", "effect": "change"}, "a"),
        ("bash_exec", {"command": "true", "effect": "reach"}, "b"),
        ("bash_exec", {"command": "true"}, "c"),
        front="effects: [observe]",
    )
    assert [event["result"] for event in found] == ["policy_denied", "policy_denied", "ok"]
    assert "has only: observe" in found[0]["text"]
    assert "administrator" in found[0]["text"]


async def test_a_change_needs_a_worker_for_it(paths: Paths) -> None:
    found = await results(
        paths,
        ("bash_exec", {"command": "true", "effect": "change"}, "a"),
        front="effects: [observe, change]",
    )
    assert found[0]["result"] == "change_not_enabled"


async def test_skills_that_are_not_on_the_agents_list_are_refused(paths: Paths) -> None:
    wanted = [
        ("skill_run", {"name": "disk-check"}, "a"),
        ("skill_load", {"name": "disk-check"}, "b"),
        ("skill_load", {"name": "memory-check"}, "c"),
        ("skill_list", {}, "d"),
    ]
    async with scripted(paths, [calls(*wanted), say("ok")], front="skills: [memory-check, nosuch]") as test:
        session = await test.session()
        found = [event for event in await test.prompt(session) if event["type"] == "tool_result"]
        assert [event["result"] for event in found] == ["policy_denied", "policy_denied", "ok", "ok"]
        listed = test.conversation(session)[-2].content
        assert [line.partition(":")[0] for line in listed.splitlines() if ": " in line] == ["memory-check"]
        problem = f"The agent {test.agent.name} names skills that do not exist: nosuch."
        assert problem in test.daemon.problems()
        assert (await test.daemon.service.agents.get(ME, name=test.agent.name)).problem == problem


async def test_without_a_sandbox_commands_count_as_change_and_trusted_skills_run(paths: Paths) -> None:
    wanted: list[tuple[str, Any, str]] = [
        ("bash_exec", {"command": "true"}, "a"),
        ("skill_run", {"name": "memory-check"}, "b"),
        ("proc_info", {"pid": 1}, "c"),
    ]
    found = await results(paths, *wanted, toml=BARE)
    assert [event["result"] for event in found] == ["change_not_enabled", "ok", "ok"]
    assert "sandbox" in found[0]["text"]


async def test_without_a_sandbox_a_skill_that_others_can_write_does_not_run(paths: Paths) -> None:
    folder = paths.config / "skills" / "loose"
    write(folder / "SKILL.md", "---\nname: loose\ndescription: A skill.\n---\n")
    write(folder / "runbook.yaml", "script: scripts/run.py\n")
    script = write(folder / "scripts" / "run.py", "print('ran')\n")
    script.chmod(0o666)
    found = await results(paths, ("skill_run", {"name": "loose"}, "a"), toml=BARE)
    assert found[0]["result"] == "change_not_enabled"


async def test_a_refused_call_is_stored_with_the_rule_that_refused_it(paths: Paths) -> None:
    async with scripted(paths, [call("bash_exec", {"command": "id"}), say("ok")], toml=BARE) as test:
        await test.prompt(await test.session())
        refused = next(event for event in test.stored() if event.type == "refused")
        assert refused.data is not None
        assert refused.data["decision"] == "deny"
        assert refused.data["rule"] == "unenforced-shell"
        assert refused.data["args"]["command"] == "id"
        assert refused.data["args"]["cwd"] == "/", "the arguments are stored with their defaults"


@pytest.mark.usefixtures("sandboxed")
async def test_a_long_output_reaches_the_model_with_its_middle_cut(paths: Paths) -> None:
    toml = "[limits]\nresult_bytes = 1000\n"
    found = await results(paths, ("bash_exec", {"command": "seq 1 9999"}, "a"), toml=toml)
    assert len(found[0]["text"].encode()) < 1100
    assert found[0]["text"].startswith("1\n2\n")
    assert "9999\n" in found[0]["text"]
    assert "bytes left out" in found[0]["text"]


def test_text_is_cut_between_characters() -> None:
    text = "äöü" * 1000
    cut = cap_text(text, 301)
    assert "\ufffd" not in cut
    assert len(cut.encode()) < 400
    assert cap_text("short", 256) == "short"


def _toolbox() -> Toolbox:
    schema = {"properties": {"pid": {"type": "integer"}}, "required": ["pid"]}
    action = {
        "name": "info",
        "description": "",
        "effect": "observe",
        "taints": False,
        "timeout_s": 30,
        "schema": schema,
    }
    tool = {"name": "proc", "description": "", "path": "proc.py", "problem": "", "actions": [action]}
    return toolbox_of([tool])


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "null",
        "7",
        '"pid"',
        '{"pid": Infinity}',
        '{"pid": 1e999}',
        '{"pid": ' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"p": 1}',
    ],
)
def test_arguments_that_are_not_what_the_action_takes_are_never_guessed(arguments: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_call(ToolCall(id="c", name="proc_info", arguments=arguments), _toolbox())


def test_arguments_are_taken_as_they_are() -> None:
    action, args = parse_call(
        ToolCall(id="c", name="proc_info", arguments=json.dumps({"pid": 4})), _toolbox()
    )
    assert (action.function, args) == ("proc_info", {"pid": 4})


@pytest.mark.usefixtures("sandboxed")
async def test_a_script_that_misbehaves_is_told_of_and_the_others_answer(paths: Paths) -> None:
    target = paths.config / "skills" / "writes" / "made"
    scripts = {
        "hangs": "while :; do sleep 60 & wait; done",
        "floods": "head -c 20000000 /dev/zero | tr '\\0' x",
        "fails": "echo half; echo no disk here >&2; exit 1",
        "writes": f"echo x > {target} || exit 3",
    }
    for name, script in scripts.items():
        folder = paths.config / "skills" / name
        write(folder / "SKILL.md", f"---\nname: {name}\ndescription: Misbehaves.\n---\n")
        bound_s = 60 if name == "floods" else 1
        write(folder / "runbook.yaml", f"script: run.sh\ntimeout_s: {bound_s}\n")
        write(folder / "run.sh", f"{script}\n")
    wanted: list[tuple[str, Any, str]] = [("skill_run", {"name": name}, name) for name in scripts]
    own = ("skill_run", {"name": "writes", "script": "run.sh"}, "own")
    found = await results(paths, *wanted, own, ("skill_run", {"name": "memory-check"}, "good"))
    assert [event["result"] for event in found] == [
        "timeout",
        "ok",
        "tool_failed",
        "tool_failed",
        "tool_failed",
        "ok",
    ]
    hangs, floods, fails, writes, own_writes, _ = (event["text"] for event in found)
    assert "did not end within 1 s" in hangs
    assert len(floods) < 70_000
    assert "half\nno disk here" in fails
    for text in (writes, own_writes):
        assert "exit status 3" in text
        assert "Read-only file system" in text or "Permission denied" in text
    assert not target.exists()
