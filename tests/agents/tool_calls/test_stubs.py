"""Stubs of an assessment: their calls run nowhere, and what has none changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.choosing import Choice, chosen
from lightagentd.config.stubs import fits
from lightagentd.errors import InvalidArgument, LightagentError, LimitExceeded, ToolNotFound
from lightagentd.host.paths import Paths
from tests.agents.scripted import Scripted, check_calls, scripted, watch
from tests.conftest import write
from tests.scripted_model import Answer, Fault, call, calls, say

RESTARTED = {"tool": "systemd", "action": "restart", "args": {"unit": "nginx"}, "output": "it runs now"}


async def ask(test: Scripted, stubs: list[dict[str, Any]], **choice: Any) -> list[dict[str, Any]]:
    wanted = await chosen(stubs=stubs, **choice)
    session = await test.session()
    events = await watch(await test.agent.prompt(session, "go", choice=wanted))
    check_calls(events)
    return events


def allow_changes(paths: Paths) -> None:
    rule = '[[rule]]\nname = "all"\nagent = "test"\ndecision = "allow"\neven_if_tainted = true\n'
    write(paths.config / "policy.d" / "10-all.toml", rule)


def results(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["result"], one["text"]) for one in events if one["type"] == "tool_result"]


async def test_a_stubbed_change_asks_nobody_and_runs_nowhere(paths: Paths, tmp_path: Path) -> None:
    """There is no worker for change, the session is tainted, and policy asks about every change."""
    victim = write(tmp_path / "victim", "x")
    delete = {"tool": "file", "action": "delete", "output": "gone"}
    script = [
        call("systemd_restart", {"unit": "nginx"}),
        call("file_delete", {"path": str(victim)}),
        say("done"),
    ]
    async with scripted(paths, script) as test:
        assert not test.daemon.pool.has_change("test")
        events = await ask(test, [RESTARTED, delete])
        assert results(events) == [("ok", "it runs now"), ("ok", "gone")]
        assert [one["metadata"] for one in events if one["type"] == "tool_result"] == [{"stub": True}] * 2
        assert events[-1]["text"] == "done"
        assert victim.read_text() == "x"
        assert (
            test.daemon.asked.approvals.questions.waiting() == [] if hasattr(test.daemon, "asked") else True
        )
        offered = {one["function"]["name"] for one in test.model.requests[0].body["tools"]}
        assert {"systemd_restart", "file_delete"} <= offered
        intents = [one.data or {} for one in test.stored(topic="agent.tool_dispatch")]
        assert [(one["decision"], one["rule"]) for one in intents] == [("allow", "stub")] * 2
        ended = [one.data or {} for one in test.stored(topic="tool.file")]
        assert ended[0]["metadata"] == {"stub": True}


async def test_what_no_stub_matches_runs_only_if_it_observes(paths: Paths, tmp_path: Path) -> None:
    """A rule that allows each change, and a worker for it, make no difference."""
    victim = write(tmp_path / "victim", "x")
    allow_changes(paths)
    script = [
        call("file_delete", {"path": str(victim)}),
        call("systemd_restart", {"unit": "apache2"}),
        call("memory_remember", {"text": "a fact"}),
        call("file_read", {"path": "/etc/os-release"}),
        say("done"),
    ]
    async with scripted(paths, script, toml='[worker]\nchange_agents = ["test"]\n') as test:
        assert test.daemon.pool.has_change("test")
        found = results(await ask(test, [RESTARTED]))
        assert [code for code, _ in found] == ["policy_denied", "policy_denied", "policy_denied", "ok"]
        assert all("has no stub" in text for _, text in found[:3])
        assert "NAME=" in found[3][1]
        assert victim.read_text() == "x"
        assert [code for code, _ in results(await ask(test, []))] == []


async def test_an_empty_list_guards_as_well(paths: Paths, tmp_path: Path) -> None:
    victim = write(tmp_path / "victim", "x")
    allow_changes(paths)
    script = [call("file_delete", {"path": str(victim)}), say("done")]
    async with scripted(paths, script, toml='[worker]\nchange_agents = ["test"]\n') as test:
        assert [code for code, _ in results(await ask(test, []))] == ["policy_denied"]
        assert victim.exists()


async def test_a_stub_gives_no_tool_that_the_agent_or_a_rule_does_not(paths: Paths) -> None:
    rule = '[[rule]]\nname = "no-restarts"\ntool = "systemd"\naction = "restart"\ndecision = "deny"\n'
    write(paths.config / "policy.d" / "10-no.toml", rule)
    deleted = {"tool": "file", "action": "delete", "output": "gone"}
    script = [call("systemd_restart", {"unit": "nginx"}), call("file_delete", {"path": "/x"}), say("done")]
    async with scripted(paths, script, front="tools: [systemd]") as test:
        found = results(await ask(test, [RESTARTED, deleted]))
        assert [code for code, _ in found] == ["policy_denied", "policy_denied"]
        assert "no-restarts" in found[0][1]


async def test_the_arguments_of_a_stubbed_change_are_checked(paths: Paths) -> None:
    script = [
        call("systemd_restart", {"unit": 7}),
        call("systemd_restart", {"nit": "nginx"}),
        call("systemd_restart", {"unit": "nginx"}),
        say("done"),
    ]
    any_restart = {"tool": "systemd", "action": "restart", "error": "it does not start"}
    async with scripted(paths, script) as test:
        found = results(await ask(test, [any_restart]))
        assert [code for code, _ in found] == ["invalid_argument", "invalid_argument", "tool_failed"]
        assert "it does not start" in found[2][1]


async def test_stubs_taint_as_the_tool_would(paths: Paths) -> None:
    read = {"tool": "file", "action": "read", "output": "text from outside"}
    async with scripted(paths, [call("file_read", {"path": "/nowhere"}), say("done")]) as test:
        wanted, session = await chosen(stubs=[read]), await test.session()
        await watch(await test.agent.prompt(session, "go", choice=wanted))
        assert session.record.tainted


async def test_stubbed_calls_run_at_once_in_order(paths: Paths) -> None:
    stubs = [
        {"tool": "file", "action": "read", "args": {"path": f"/{n}"}, "output": f"text {n}"} for n in (1, 2)
    ]
    both = calls(("file_read", {"path": "/1"}, "c1"), ("file_read", {"path": "/2"}, "c2"))
    async with scripted(paths, [both, say("done")], front="parallel: true") as test:
        assert [text for _, text in results(await ask(test, stubs))] == ["text 1", "text 2"]


async def test_an_assessment_has_no_fallback(paths: Paths) -> None:
    """Else another model would be judged in place of the one that is down."""

    def answer(body: dict[str, Any]) -> Answer:
        return Fault(status=401) if body["model"] == "x" else say("of another model")

    async with scripted(paths, answer, front="fallback: [openai/y]") as test:
        assert (await test.prompt(await test.session()))[-1]["text"] == "of another model"
        assert (await ask(test, []))[-1]["code"] == "model_key_refused"


@pytest.mark.parametrize(
    ("stubs", "error"),
    [
        ("x", InvalidArgument),
        ([{"tool": "file"}], InvalidArgument),
        ([{"tool": "file", "action": "read"}], InvalidArgument),
        ([{"tool": "file", "action": "read", "output": "", "error": "x"}], InvalidArgument),
        ([{"tool": "file", "action": "read", "output": "", "more": 1}], InvalidArgument),
        ([{"tool": "file", "action": "read", "output": ""}] * 201, LimitExceeded),
    ],
)
async def test_bad_stubs_are_refused(stubs: Any, error: type[LightagentError]) -> None:
    with pytest.raises(error):
        await chosen(stubs=stubs)


async def test_a_stub_for_a_tool_that_does_not_exist_is_refused(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        with pytest.raises(ToolNotFound, match=r"nosuch\.thing"):
            await ask(test, [{"tool": "nosuch", "action": "thing", "output": ""}])


async def test_a_choice_with_stubs_is_stored_and_read_again() -> None:
    choice = await chosen(stubs=[RESTARTED])
    assert Choice.from_dict(choice.to_dict()) == choice
    assert choice.told() == {"stubs": True}
    assert Choice.from_dict((await chosen(stubs=[])).to_dict()).stubs == ()


def test_values_fit_in_part() -> None:
    given = {"a": 1, "b": {"c": [1, {"d": "x"}], "e": True}}
    wanted: Any
    for wanted in ({}, {"a": 1}, {"b": {"c": [1, {}]}}, {"b": {"e": True}}):
        assert fits(wanted, given), wanted
    for wanted in (
        {"a": True},
        {"f": 1},
        {"b": {"c": [1]}},
        {"b": {"e": 1}},
        {"a": "1"},
        [],
        {"a": {"=~": "1"}},
    ):
        assert not fits(wanted, given), wanted
    assert fits({"a": {"=~": "^[0-9]$"}, "b": {"c": [1, {"d": {"=~": "X|x"}}]}}, given, patterns=True)
    assert not fits({"b": {"=~": "."}}, given, patterns=True)
