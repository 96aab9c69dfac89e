"""MCP servers as tools of agents: approvals, policy, taint, who has them, and what they ask of people."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import Conflict
from lightagentd.host.paths import Paths
from lightagentd.toolkit.mcp.server_file import approved_path
from tests.agents.asking import asked
from tests.agents.own_questions import answer
from tests.agents.questions import prompted, question
from tests.agents.scripted import ME, Scripted, check_conversation, scripted
from tests.conftest import write
from tests.scripted_model import call, say
from tests.toolkit.mcp.servers import install
from tests.toolkit.mcp.small_server import TOOLS

pytestmark = pytest.mark.describes_tools
FRONT = "effects: [observe, reach, change]"
TOML = '[worker]\nchange_agents = ["test"]\n'


def _results(events: list[Any]) -> list[tuple[str, str]]:
    return [(event["result"], event["text"]) for event in events if event["type"] == "tool_result"]


async def _a_taken_name_is_refused(paths: Paths, test: Scripted) -> None:
    install(paths, "modern", name="file")  # as a built-in tool
    await test.daemon.reload()
    with pytest.raises(Conflict, match="There is another tool 'file'"):
        await test.daemon.service.mcp.look(ME, "file")
    (paths.config / "mcp.d/file.toml").unlink()


def _install_in_kit(paths: Paths) -> None:
    kit = paths.config / "agent/test/mcp"
    own = install(paths, "legacy", name="own", tools='only = ["echo"]\n[tools]\necho = "observe"\n')
    write(kit / "own.toml", own.read_text())
    own.unlink()
    write(kit / "own.approved", json.dumps({"tools": [{"name": "echo", **TOOLS["echo"]}]}))


async def test_the_tools_of_a_server_are_functions_once_they_are_approved(paths: Paths) -> None:
    undo = 'undo.sample = { tool = "echo", arguments = { text = "not so" } }\n'
    install(paths, "modern", more=f'agents = ["test"]\n{undo}')
    write(paths.config / "mcp.d" / "broken.toml", 'command = ["x"]\nurl = "https://x.example"\n')
    write(
        paths.config / "policy.d" / "10.toml",
        '[[rule]]\nname = "no"\ntool = "small"\naction = "fail"\ndecision = "deny"\n',
    )
    _install_in_kit(paths)
    script = [
        call("small_echo", {"text": "hello"}),
        call("small_fail", {}, call_id="c2"),
        call("small_sample", {}, call_id="c3"),
        call("own_echo", {"text": "of the kit"}, call_id="c4"),
        say("done"),
        call("small_ask", {}),
        say("so be it"),
    ]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        service = test.daemon.service.mcp
        problems = " ".join(test.daemon.registry.problems())
        assert "small.toml: nobody has looked at its tools" in problems
        assert "broken.toml: it needs either a command or a url" in problems
        assert {one.name: one.functions for one in await service.listed(ME)} == {
            "broken": 0,
            "small": 0,
            "own": 1,
        }
        await _a_taken_name_is_refused(paths, test)
        offers = await service.look(ME, "small")
        assert {one.state for one in offers.tools} == {"new"}
        assert not offers.in_force
        states = {one.name: one.state for one in (await service.look(ME, "own", agent="test")).tools}
        assert (states.pop("echo"), {*states.values()}) == ("approved", {"unwanted"})
        approved_path(paths.config / "mcp.d/small.toml").write_text(json.dumps(offers.approval))
        await test.daemon.reload()
        (_, listed, _) = await service.listed(ME)
        assert (listed.functions, listed.problem) == (len(offers.tools) + 4, "")
        functions = test.agent.running_parts().toolbox.functions
        assert functions["small_odd_name_2"].schema["properties"]["arg_copy"]["enum"] == ["p", "q"]
        assert str(functions["small_count"].effect) == "observe", "its hint says nothing else"
        assert "small_echo" not in test.daemon.registry.get("ops").running_parts().toolbox.functions
        session = await test.session()
        async with prompted(test, session) as (_, events):
            wanted = await asked(test)
            assert (wanted.tool, wanted.action, wanted.effect) == ("small", "sample", "change")
            assert wanted.preview == "Undone by: lactl tools call test small.echo 'text=not so'\n"
            await test.daemon.service.approvals.approve(ME, wanted.id, "", wanted.digest, "1h")
            found = _results(await events)
        waiting = test.daemon.registry.shared.confirmations.get(wanted.call_id)
        assert waiting.back == {"tool": "small", "action": "echo", "args": {"text": "not so"}}
        assert found[0] == ("ok", "hello")
        assert [result for result, _ in found[1:]] == ["policy_denied", "ok", "ok"]
        assert found[3][1] == "of the kit"
        assert "No server gets the model of an agent" in found[2][1]
        assert session.record.tainted
        assert [one.topic for one in test.stored() if one.topic.startswith("tool.")][:1] == ["tool.small"]
        check_conversation(test.conversation(session))
        async with AsyncClient(paths.socket) as client:
            with pytest.raises(Conflict) as caught:
                await anext(client.stream("Undo.Run", call_id=wanted.call_id))
        assert caught.value.suggestion.endswith(": lactl tools call test small.echo 'text=not so'")
        await _asked(test)


async def _asked(test: Scripted) -> None:
    """What a server asks goes to a person, one value at a time."""
    async with prompted(test, await test.session()) as (_, events):
        first = await question(test)
        assert first.question.startswith("The MCP server small asks: Which one?\n\nsize: How large.")
        assert first.choices == ()
        await answer(test, "7")
        second = await question(test, after=first.id)
        assert second.choices == ("red", "blue", "decline")
        await answer(test, "blue")
        ((result, text),) = _results(await events)
    content = {"action": "accept", "content": {"size": 7, "colour": "blue"}}
    assert (result, json.loads(text)) == ("ok", ["opaque", {"first": content}])
