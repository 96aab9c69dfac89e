"""What a model can write that is not what it seems: none of it stops an agent, or gets other things run."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.model_calls.storable import storable
from lightagentd.agents.tool_calls.calls import parse_call
from lightagentd.api import TurnEvent
from lightagentd.errors import InvalidArgument
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.redaction import Redactor
from tests.agents.asking import FRONT, TOML, Watched, add, approvals, asked, asking, lines, prepare, result
from tests.agents.scripted import ME, Scripted, check_conversation, scripted, until
from tests.agents.tool_calls.test_run import _toolbox
from tests.conftest import write
from tests.scripted_model import call, calls, say

EDGES = """
from typing import Any

from lightagentd.errors import Conflict
from lightagentd.tool import Args, Context, Effect, Preview, Result, Tool, ToolError, action


class AnyArgs(Args):
    seconds: float = 1.0
    timeout_s: int = 1
    value: Any = None


class Edge(Tool):
    "A tool of this test."

    name = "edge"

    async def preview(self, ctx: Context, action: str, args: AnyArgs) -> Preview | None:
        if action == "refuse":
            raise Conflict("the old text is not there")
        if args.value == "long preview":
            return Preview(text="x" * 1_000_000)
        return None

    @action(effect=Effect.CHANGE)
    async def change(self, ctx: Context, args: AnyArgs) -> Result:
        "Do nothing."
        return Result(output=f"{args.seconds}")

    @action(effect=Effect.CHANGE)
    async def refuse(self, ctx: Context, args: AnyArgs) -> Result:
        "Do what its preview refuses."
        return Result(output="never")

    @action(effect=Effect.OBSERVE)
    async def look(self, ctx: Context, args: AnyArgs) -> Result:
        "Look."
        return Result(output="seen")

    @action(effect=Effect.OBSERVE)
    async def fail(self, ctx: Context, args: AnyArgs) -> Result:
        "Fail with a long text."
        raise ToolError("outside " * 100_000)

    @action(effect=Effect.OBSERVE)
    async def forge(self, ctx: Context, args: AnyArgs) -> Result:
        "Emit what only the daemon says."
        ctx.emit("tool.edge", args.value, {"call_id": "call_of_another"})
        return Result(output="emitted")
"""


def edges(paths: Paths) -> None:
    write(paths.config / "tools" / "edge.py", EDGES)


async def ended(test: Scripted) -> list[TurnEvent]:
    """The events of a turn, after which the agent must still run as it did."""
    session = await test.session()
    events = await test.prompt(session)
    assert events[-1]["type"] == "done", events[-1]
    check_conversation(test.conversation(session))
    assert (test.agent.state, test.agent.restarts) == ("running", 0)
    return events


NESTED = "[" * 150 + "]" * 150


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("edge_change", '{"seconds": "NaN"}'),
        ("edge_change", '{"seconds": "Infinity"}'),
        ("edge_look", '{"seconds": "-inf"}'),
        ("edge_change", '{"value": ' + NESTED + "}"),
        ("edge_look", '{"value": ' + NESTED + "}"),
        ("bash_exec", '{"command": "id", "effect": ' + NESTED + "}"),
        ("bash_exec", '{"command": "id", "effect": ["observe"]}'),
    ],
)
async def test_what_json_cannot_hold_or_readers_cannot_is_an_invalid_argument(
    paths: Paths, function: str, arguments: str
) -> None:
    edges(paths)
    async with asking(paths, [call(function, arguments), say("ok")]) as test:
        told = result(await ended(test))
        assert told["result"] == "invalid_argument", told
        assert approvals(test) == []


async def test_a_time_beyond_every_float_is_the_longest_there_is(paths: Paths) -> None:
    edges(paths)
    async with asking(paths, [call("edge_look", '{"timeout_s": ' + "9" * 400 + "}"), say("ok")]) as test:
        assert result(await ended(test))["result"] == "ok"


def test_a_key_that_stands_twice_is_refused() -> None:
    for arguments in ('{"pid": 1, "pid": 2}', '{"pid": {"a": 1, "a": 2}}'):
        with pytest.raises(InvalidArgument, match="twice"):
            parse_call(ToolCall(id="c", name="proc_info", arguments=arguments), _toolbox())


async def test_an_error_is_no_longer_than_an_output_may_be(paths: Paths) -> None:
    edges(paths)
    long = {"command": "id", "effect": "x" * 300_000}
    script = [calls(("edge_fail", {}, "c1"), ("bash_exec", long, "c2")), say("ok")]
    async with scripted(paths, script, toml="[limits]\nresult_bytes = 4096\n") as test:
        told = [event for event in await ended(test) if event["type"] == "tool_result"]
        assert [event["result"] for event in told] == ["tool_failed", "invalid_argument"]
        assert all(len(event["text"]) < 5000 for event in told)
        refused = next(event for event in test.stored(topic="agent.tool_dispatch") if event.type == "refused")
        assert len(str((refused.data or {})["message"])) < 5000


async def test_the_text_of_a_tools_failure_taints_whatever_the_action_says(paths: Paths) -> None:
    edges(paths)
    async with asking(paths, [calls(("edge_look", {}, "c1"), ("edge_fail", {}, "c2")), say("ok")]) as test:
        session = await test.session()
        events = await test.prompt(session)
        failed = [event for event in events if event["type"] == "tool_result"][-1]
        assert (session.record.tainted, session.record.tainted_by) == (True, failed["call_id"])


async def test_a_worker_cannot_tell_the_end_of_a_call_that_it_does_not_run(paths: Paths) -> None:
    edges(paths)
    wanted = [("edge_forge", {"value": kind}, f"c{kind}") for kind in ("invocation", "seen")]
    async with asking(paths, [calls(*wanted), say("ok")]) as test:
        told = [event["result"] for event in await ended(test) if event["type"] == "tool_result"]
        assert told == ["tool_failed", "ok"]
        found = test.stored(topic="tool.edge")
        assert "call_of_another" not in [(event.data or {})["call_id"] for event in found]


# Previews


async def test_a_preview_that_says_that_it_cannot_be_done_costs_no_question(paths: Paths) -> None:
    edges(paths)
    async with asking(paths, [call("edge_refuse", {}), say("ok")]) as test:
        told = result(await ended(test))
        assert told["result"] == "conflict"
        assert "the old text is not there" in told["text"]
        assert approvals(test) == []
        refused = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        assert [(data["decision"], data["result"]) for data in refused] == [("ask", "conflict")]


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A file that the worker for observe can read, too."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "note")
        file.write_text("one\n")
        file.chmod(0o644)
        yield file


async def test_an_edit_whose_text_is_not_there_costs_no_question(paths: Paths, everybodys: Path) -> None:
    args = {"path": str(everybodys), "old": "two", "new": "three"}
    async with asking(paths, [call("file_edit", args), say("ok")]) as test:
        assert result(await ended(test))["result"] in ("not_found", "conflict", "invalid_argument")
        assert approvals(test) == []


async def test_a_long_preview_is_cut_and_says_so(paths: Paths) -> None:
    edges(paths)
    async with (
        asking(paths, [call("edge_change", {"value": "long preview"}), say("ok")]) as test,
        Watched(test, await test.session()) as turn,
    ):
        question = await asked(test)
        assert len(question.preview) < 200_000
        assert "characters of this preview are left out" in question.preview
        await test.daemon.service.approvals.deny(ME, question.id, "")
        await turn.end()


async def test_a_call_that_is_too_large_to_be_read_is_not_asked_about(paths: Paths) -> None:
    out = prepare(paths)
    wide = '[models.providers.openai]\nbase_url = "http://127.0.0.1:9"\ncontext_tokens = 1_000_000\n'
    script = [call("probe_add", add(out, line="x" * 1_000_000)), say("ok")]
    async with asking(paths, script, toml=wide) as test:
        told = result(await ended(test))
        assert told["result"] == "limit_exceeded", told
        assert approvals(test) == []
        called = test.daemon.service.tools.call(
            ME, agent="test", tool="probe", action="add", args=add(out, line="y" * 1_000_000)
        )
        assert [event async for event in called][-1]["type"] == "done", "nobody has to read his own call"
        (kept,) = test.daemon.history.queries.state("approvals").values()
        assert len(json.dumps(kept)) < 100_000
        assert [len(line) for line in lines(out)] == [1_000_000]


async def test_without_a_sandbox_the_question_says_that_observe_holds_nobody(paths: Paths) -> None:
    script = [call("bash_exec", {"command": "id"}), say("ok")]
    toml = f'{TOML}sandbox = "none"\n'
    async with (
        scripted(paths, script, front=FRONT, toml=toml) as test,
        Watched(test, await test.session()) as turn,
    ):
        question = await asked(test)
        assert question.effect == "observe"
        assert "No sandbox enforces observe" in question.reason
        await test.daemon.service.approvals.deny(ME, question.id, "")
        await turn.end()


# What is stored of a call


def _hidden_toolbox() -> Any:
    toolbox = _toolbox()
    toolbox.functions["proc_info"].schema["properties"]["key"] = {"type": "string", "writeOnly": True}
    return toolbox


@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```"])
def test_a_call_written_as_text_is_stored_without_what_is_for_the_tool_alone(fence: str) -> None:
    body = {"tool": "proc", "action": "info", "args": {"pid": 1, "key": "my own password"}}
    made = ToolCall(id="c", name="proc_info", arguments=json.dumps(body["args"]))
    message = Message(role="assistant", content=fence.format(json.dumps(body)), tool_calls=(made,))
    kept = storable(message, _hidden_toolbox(), Redactor())
    assert "my own password" not in str(kept)
    assert '"pid": 1' in kept.content


async def test_after_a_restart_no_call_runs_with_arguments_that_lost_a_secret(paths: Paths) -> None:
    out = prepare(paths)
    secret = "ghp_" + "a" * 40
    wanted = [
        ("probe_add", add(out), "c1"),
        ("probe_add", add(out, line=secret), "c2"),
        ("probe_add", add(out, code="password"), "c3"),
        ("probe_add", add(out, line="plain"), "c4"),
    ]
    async with asking(paths, [calls(*wanted)]) as test, Watched(test, await test.session()):
        await asked(test)
        await test.daemon.drain()
    async with asking(paths, [say("ok")]) as test:
        for _ in range(2):
            question = await asked(test)
            assert "[removed" not in str(question.args)
            await test.daemon.service.approvals.approve(ME, question.id, "")
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert lines(out) == ["ran", "plain"]
        (session,) = test.agent.sessions.values()
        check_conversation(test.conversation(session))
        told = [message.content for message in test.conversation(session) if message.role == "tool"]
        assert ["secret" in text for text in told] == [False, True, True, False]


# What replay needs to know


async def test_the_stored_decision_says_what_it_rested_on(paths: Paths) -> None:
    prepare(paths)
    script = [
        calls(
            ("probe_reach", {"url": "https://a.example"}, "c1"),
            ("probe_read", {"url": "x"}, "c2"),
            ("probe_reach", {"url": "https://a.example"}, "c3"),
            ("probe_reach", {"url": "https://b.example"}, "c4"),
        ),
        say("ok"),
    ]
    async with asking(paths, script) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go", unattended=True)
        async with asyncio.timeout(60):
            await turn.over.wait()
        data = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
    assert [one.get("trigger") for one in data] == ["unattended"] * 4
    assert [one.get("tainted", False) for one in data] == [False, False, True, True]
    assert [one.get("host", "") for one in data] == ["a.example", "", "a.example", "b.example"]
    assert [one.get("known_host", False) for one in data] == [False, False, True, False]
    assert [one["decision"] for one in data] == ["allow", "allow", "allow", "deny"]
