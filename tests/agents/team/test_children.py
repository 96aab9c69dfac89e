"""Child sessions: what they may do, what they cost, how they end, and what their parents get."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.errors import Conflict
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.scripted import ME, check_conversation, until, watch
from tests.agents.team.rig import ask, functions, results, team
from tests.conftest import write
from tests.scripted_model import Answer, Stream, call, calls, chunk, say

HANG = Stream(pieces=[chunk({"role": "assistant", "content": "wait"})], hang=True)
CHANGE_BOTH = '[worker]\nchange_agents = ["test", "dba"]\n'


def answers(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The results of a turn's calls: code and text."""
    return [(one["result"], one["text"]) for one in events if one["type"] == "tool_result"]


async def test_another_agent_answers_in_a_session_below_the_turn(paths: Paths) -> None:
    async with team(paths, {"test": [ask("dba", "count rows"), say("it is 7")], "dba": [say("7")]}) as test:
        session = await test.begin()
        events = await test.prompt(session)
        assert answers(events) == [("ok", "7")]
        assert events[-1]["text"] == "it is 7"
        (record,) = test.records("dba")
        trace_id = events[-1]["trace_id"]
        assert (record.parent, record.of_turn, record.owner) == (session.id, trace_id, ME.uid)
        assert not record.tainted
        check_conversation(test.conversation(session))
        said = test.daemon.history.queries.messages(record.id)
        assert [(event.data or {})["content"] for event in said] == ["count rows", "7"]
        assert test.ends(record.id) == ["done"]
        assert record.id not in test.daemon.registry.get("dba").sessions
        assert test.daemon.registry.session(record.id)[1].record == record
        assert [one.id for one in await test.daemon.service.sessions.listed(ME)] == [session.id]
        (child,) = await test.daemon.service.sessions.listed(ME, parent=session.id)
        assert (child.id, child.parent, child.agent) == (record.id, session.id, "dba")


async def test_the_tool_and_the_others_are_offered_where_there_are_others(paths: Paths) -> None:
    fronts = {"dba": "description: Knows the database.", "web": "agents: []"}
    scripts: dict[str, list[Answer]] = {"test": [say("hi")], "dba": [say("x")], "web": [say("x")]}
    async with team(paths, scripts, fronts=fronts) as test:
        await test.prompt(await test.begin())
        body = test.model.requests[-1].body
        offered = {"agent_ask", "agent_start", "agent_wait", "agent_message", "agent_stop"}
        assert offered <= {*functions(body)}
        assert "- dba: Knows the database.\n- ops: " in body["messages"][0]["content"]
        made = await test.daemon.service.sessions.create(ME, "web", "")
        web = test.daemon.registry.get("web")
        await watch(await web.prompt(web.sessions[made.id], "go"))
        body = test.model.requests[-1].body
        assert not offered & {*functions(body)}
        assert "# Other agents" not in body["messages"][0]["content"]


async def test_who_cannot_be_asked_is_told_with_the_reason(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [
            ask("nosuch", call_id="a"),
            ask("test", call_id="b"),
            ask("web", call_id="c"),
            ask("dba", call_id="d"),
            say("ok"),
        ],
        "dba": [ask("test", call_id="e"), call("agent_ask", {"agent": "dba", "text": "x"}), say("no")],
        "web": [say("x")],
    }
    async with team(paths, scripts, fronts={"test": "agents: [dba, test]"}) as test:
        events = await test.prompt(await test.begin())
        found = answers(events)
        assert [code for code, _ in found] == ["agent_not_found", "child_refused", "agent_not_found", "ok"]
        assert "It may ask: dba." in found[0][1]
        assert "test → test" in found[1][1]
        child = test.model.requests[-2].body
        assert ["Error (child_refused)" in one for one in results(child)] == [True, True]
        assert "test → dba → test" in results(child)[0]
        assert len(test.records("dba")) == 1


async def test_the_line_and_the_number_of_children_are_limited(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [ask("a", call_id=f"n{number}") for number in range(4)] + [say("ok")],
        "a": [ask("b"), say("from a")],
        "b": [ask("c"), say("from b")],
        "c": [say("from c")],
    }
    toml = "[limits]\nchild_depth = 2\nchildren = 3\n"
    async with team(paths, scripts, toml=toml) as test:
        found = answers(await test.prompt(await test.begin()))
        assert [code for code, _ in found] == ["ok", "ok", "ok", "limit_exceeded"]
        assert "limits.children" in found[-1][1]
        assert (len(test.records("a")), len(test.records("b")), test.records("c")) == (3, 3, [])
        told = [body for body in test.model.requests if "agent b on" in body.body["messages"][0]["content"]]
        assert "test → a → b" in results(told[1].body)[0]


@pytest.mark.parametrize(
    ("front", "wanted", "code"),
    [
        ("effects: [observe]", "probe_add", "policy_denied"),
        ("effects: [observe]", "probe_reach", "policy_denied"),
        ("tools: [agent]", "probe_read", "policy_denied"),
        (FRONT, "probe_read", "ok"),
    ],
)
async def test_a_child_gets_no_more_than_its_parent_has(
    paths: Paths, front: str, wanted: str, code: str
) -> None:
    out = prepare(paths)
    args = add(out) if wanted == "probe_add" else {"url": "http://example.org/"}
    scripts = {"test": [ask("dba"), say("ok")], "dba": [call(wanted, args), say("tried")]}
    async with team(paths, scripts, fronts={"test": front, "dba": FRONT}, toml=CHANGE_BOTH) as test:
        await test.prompt(await test.begin())
        (body,) = [
            one.body for one in test.model.requests if results(one.body) and "agent dba on" in str(one)
        ]
        (text,) = results(body)
        assert (f"Error ({code})" in text) is (code != "ok")
        if code != "ok":
            assert "agent test" in text
        assert lines(out) == []


async def test_a_parent_without_a_worker_for_change_keeps_its_child_from_it(paths: Paths) -> None:
    out = prepare(paths)
    scripts = {"test": [ask("dba"), say("ok")], "dba": [call("probe_add", add(out)), say("tried")]}
    toml = '[worker]\nchange_agents = ["dba"]\n'
    async with team(paths, scripts, fronts={"test": FRONT, "dba": FRONT}, toml=toml) as test:
        await test.prompt(await test.begin())
        refused = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        assert [one.get("result") for one in refused if one["tool"] == "probe"] == ["change_not_enabled"]
        assert lines(out) == []


async def test_rules_for_the_parent_hold_for_its_child(paths: Paths) -> None:
    prepare(paths)
    rule = '[[rule]]\nname = "no-reading"\nagent = "test"\ntool = "probe"\ndecision = "deny"\n'
    write(paths.config / "policy.d" / "10-x.toml", rule)
    scripts = {"test": [ask("dba"), say("ok")], "dba": [call("probe_read", {"url": "x"}), say("tried")]}
    async with team(paths, scripts) as test:
        await test.prompt(await test.begin())
        refused = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        (one,) = [one for one in refused if one["tool"] == "probe"]
        assert (one["result"], one["rule"]) == ("policy_denied", "no-reading (10-x.toml)")


async def test_taint_goes_down_with_the_text_and_up_with_the_answer(paths: Paths) -> None:
    prepare(paths)
    read = call("probe_read", {"url": "from outside"}, call_id="r")
    scripts: dict[str, Any] = {
        "test": [ask("clean", call_id="a"), ask("reads", call_id="b"), ask("clean", call_id="c"), say("ok")],
        "clean": [say("x")],
        "reads": [read, say("it says: from outside")],
    }
    async with team(paths, scripts) as test:
        session = await test.begin()
        await test.prompt(session)
        first, last = test.records("clean")
        assert (first.tainted, last.tainted) == (False, True)
        assert session.record.tainted
        assert test.daemon.history.queries.state_of("sessions", session.id)["tainted"]
        ends = [event.data or {} for event in test.stored(topic="tool.agent")]
        assert session.record.tainted_by == ends[1]["call_id"]


async def test_a_tainted_parent_makes_every_change_of_its_child_a_question(paths: Paths) -> None:
    out = prepare(paths)
    rule = '[[rule]]\nname = "add"\ntool = "probe"\naction = "add"\ndecision = "allow"\n'
    write(paths.config / "policy.d" / "10-x.toml", rule)
    read = call("probe_read", {"url": "x"}, call_id="r")
    scripts: dict[str, Any] = {
        "test": [ask("dba", call_id="a"), read, ask("dba", call_id="b"), say("ok")],
        "dba": [call("probe_add", add(out)), say("done")],
    }
    async with team(paths, scripts, fronts={"test": FRONT, "dba": FRONT}, toml=CHANGE_BOTH) as test:
        session = await test.begin()
        turn = await test.agent.prompt(session, "go", unattended=True)
        events = await watch(turn)
        assert events[-1]["type"] == "done"
        assert lines(out) == ["ran"]
        decided = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        told = [
            (one["trigger"], one["rule"]) for one in decided if one["tool"] == "probe" and "result" in one
        ]
        assert told == [("unattended", "tainted-change")]


async def test_a_host_is_known_only_if_all_of_the_line_know_it(paths: Paths) -> None:
    prepare(paths)
    read = call("probe_read", {"url": "x"}, call_id="r")
    scripts: dict[str, Any] = {
        "test": [ask("dba", call_id="a"), read, ask("dba", call_id="b"), ask("web", call_id="c"), say("ok")],
        "dba": [call("probe_reach", {"url": "https://known.example/"}), say("x")],
        "web": [call("probe_reach", {"url": "https://new.example/"}), say("x")],
    }
    async with team(paths, scripts) as test:
        session = await test.begin()
        await watch(await test.agent.prompt(session, "go", unattended=True))
        assert session.record.hosts == ("known.example",)
        decided = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        reached = [(one["args"]["url"], one["decision"]) for one in decided if one["action"] == "reach"]
        known, new = "https://known.example/", "https://new.example/"
        assert reached == [(known, "allow"), (known, "allow"), (new, "deny")]
        assert all(one.hosts == ("known.example",) for one in (*test.records("dba"), *test.records("web")))


async def test_while_the_parent_drafts_a_plan_its_child_changes_nothing(paths: Paths) -> None:
    out = prepare(paths)
    scripts = {"test": [ask("dba"), say("ok")], "dba": [call("probe_add", add(out)), say("tried")]}
    async with team(paths, scripts, fronts={"test": FRONT, "dba": FRONT}, toml=CHANGE_BOTH) as test:
        session = await test.begin()
        await test.daemon.service.plans.begin(ME, session.id)
        await test.prompt(session)
        refused = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        assert [one.get("result") for one in refused if one["tool"] == "probe"] == ["plan_mode_blocked"]
        assert lines(out) == []


async def test_a_parent_that_gets_tainted_meanwhile_limits_its_child_at_once(paths: Paths) -> None:
    prepare(paths)
    gate = asyncio.Event()
    reach = call("probe_reach", {"url": "https://new.example/"})
    read = call("probe_read", {"url": "x"}, call_id="r")

    def test_says(body: dict[str, Any]) -> Answer:
        done = len(results(body))
        if done == 2:
            gate.set()
        start = call("agent_start", {"agent": "dba", "text": "x"}, call_id="s")
        return (start, read, call("agent_wait", {}, call_id="w"), say("ok"))[done]

    gated = Stream(pieces=reach.pieces, gate=(0, gate))
    scripts: dict[str, Any] = {"test": test_says, "dba": [gated, say("x")]}
    async with team(paths, scripts) as test:
        turn = await test.agent.prompt(await test.begin(), "go", unattended=True)
        await watch(turn)
        decided = [event.data or {} for event in test.stored(topic="agent.tool_dispatch")]
        told = [(one["decision"], one["rule"]) for one in decided if one["action"] == "reach"]
        assert told == [("deny", "tainted-reach")]


async def test_the_clocks_of_all_above_stop_while_a_child_asks_a_person(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [ask("dba"), say("ok")],
        "dba": [ask("web"), say("x")],
        "web": [call("human_ask", {"question": "Which?"}, call_id="h"), say("y")],
    }
    async with team(paths, scripts) as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        inputs = test.daemon.registry.shared.asked.inputs
        await until(lambda: turn.is_waiting)
        (asked,) = inputs.questions.open_ones()
        assert asked.question == "test → dba → web: Which?"
        line = [turn, *turn.children["".join(turn.children)].turns]
        line += line[1].children["".join(line[1].children)].turns
        assert [one.waits_for for one in line] == [asked.id] * 3
        for one in line:
            assert one.timer is not None
            assert one.meter is not None
            assert one.timer.when() is None
            before = one.meter.wall_ms, one.left_s()
            await asyncio.sleep(0.02)
            assert (one.meter.wall_ms, one.left_s()) == before
        await inputs.answer(asked.id, "this", uid=ME.uid)
        assert (await watch(turn))[-1]["text"] == "ok"


async def test_what_a_child_uses_counts_for_all_above_it(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [ask("dba"), say("ok")],
        "dba": [ask("web"), say("x")],
        "web": [say("y")],
    }
    async with team(paths, scripts) as test:
        session = await test.begin()
        events = await test.prompt(session)
        ledger = test.daemon.registry.shared.ledger
        whose = Whose(agent="test", owner=ME.uid, session=session.id, trace_id=events[-1]["trace_id"])
        keys = whose.keys("2020-01-01")
        for scope in ("turn", "session", "agent", "owner", "all"):
            counted = ledger.row(keys[scope]).counters
            assert (counted.steps, counted.calls, counted.total_tokens) == (5, 2, 75), scope
        assert ledger.row(keys["session"]).counters.turns == 1
        (dba,) = test.records("dba")
        assert ledger.row(f"session/{dba.id}").counters.steps == 3
        stored = test.daemon.history.queries.state_of("usage", keys["turn"])
        assert stored["steps"] == 5
        assert events[-1]["steps"] == 2


async def test_a_budget_that_children_use_up_ends_them_and_then_the_turn(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [ask("dba", call_id=f"c{number}") for number in range(64)],
        "dba": [say("x")],
    }
    toml = "[limits]\nchildren = 64\nmax_steps = 100\n[budgets.turn]\nsteps = 9\n"
    async with team(paths, scripts, toml=toml) as test:
        session = await test.begin()
        events = await test.prompt(session)
        assert events[-1]["code"] == "budget_exceeded"
        assert len(test.model.requests) == 9
        codes = [code for code, _ in answers(events)]
        assert codes in (["ok"] * 4, ["ok"] * 4 + ["child_failed"])
        assert all(len(test.ends(one.id)) == 1 for one in test.records("dba"))


async def test_a_child_has_at_most_the_time_that_is_left(paths: Paths) -> None:
    scripts: dict[str, Any] = {"test": [ask("dba"), say("ok")], "dba": [HANG]}
    async with team(paths, scripts, fronts={"test": "limits: {turn_timeout_s: 2}"}) as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        await until(lambda: test.model.open_requests == 1)
        (child,) = turn.children.values()
        left_s, of_child_s = turn.left_s(), child.turns[0].left_s()
        assert left_s is not None
        assert of_child_s is not None
        assert 0 < of_child_s <= left_s + 0.1
        events = await watch(turn)
        assert events[-1]["code"] == "timeout"
        (record,) = test.records("dba")
        assert test.ends(record.id) in (["timeout"], ["cancelled"])
        assert test.daemon.history.queries.state("turns") == {}


async def test_the_parent_goes_on_after_a_child_that_failed(paths: Paths) -> None:
    scripts: dict[str, Any] = {"test": [ask("dba"), say("went on")], "dba": [HANG]}
    async with team(paths, scripts, fronts={"dba": "limits: {turn_timeout_s: 0.5}"}) as test:
        events = await test.prompt(await test.begin())
        ((code, text),) = answers(events)
        assert code == "child_failed"
        assert "dba did not answer (timeout)" in text
        assert events[-1]["text"] == "went on"


@pytest.mark.parametrize("how", ["cancel", "delete", "stop", "panic"])
async def test_what_ends_a_turn_ends_the_tree_below_it(paths: Paths, how: str) -> None:
    scripts: dict[str, Any] = {
        "test": [call("agent_start", {"agent": "web", "text": "x"}, call_id="s"), ask("dba"), say("ok")],
        "dba": [ask("low"), say("x")],
        "web": [HANG],
        "low": [HANG],
    }
    async with team(paths, scripts) as test:
        session = await test.begin()
        turn = await test.agent.prompt(session, "go")
        await until(lambda: test.model.open_requests == 2)
        children = [one.id for name in ("web", "dba", "low") for one in test.records(name)]
        assert len(children) == 3
        if how == "cancel":
            test.agent.cancel(session)
        elif how == "delete":
            await test.daemon.service.sessions.delete(ME, session.id, confirmed=True)
        elif how == "stop":
            await test.agent.stop()
        else:
            await test.daemon.service.safety.panic(ME, "enough")
        await turn.over.wait()
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        await until(lambda: not any(test.daemon.registry.get(name).turns_running for name in scripts))
        assert not test.daemon.registry.shared.ledger.meters, "no clock runs on"
        if how == "delete":
            assert test.daemon.history.queries.state("sessions") == {}
        else:
            code = "panicked" if how == "panic" else "cancelled"
            ended = [kind for one in [session.id, *children] for kind in test.ends(one)]
            assert len(ended) == 4
            assert {*ended} <= {code, "cancelled"}


async def test_started_children_work_at_once_get_messages_and_are_stopped(paths: Paths) -> None:
    gate = asyncio.Event()
    started = [("agent_start", {"agent": name, "text": "x"}, name) for name in ("dba", "web", "low")]

    def test_says(body: dict[str, Any]) -> Answer:
        found = results(body)
        ids = re.findall("ses_[0-9a-f]{16}", "".join(found[:3]))
        if not found:
            return calls(*started)
        if len(found) == 3:
            return calls(
                ("agent_message", {"id": ids[0], "text": "and more"}, "m"),
                ("agent_stop", {"id": ids[2]}, "s"),
                ("agent_message", {"id": "ses_0000000000000000", "text": "x"}, "u"),
            )
        if len(found) == 6:
            gate.set()
            return call("agent_wait", {}, call_id="w")
        return say("ok")

    gated = Stream(pieces=say("one").pieces, gate=(0, gate))
    scripts: dict[str, Any] = {
        "test": test_says,
        "dba": lambda body: say("two") if "and more" in str(body) else gated,
        "web": [Stream(pieces=say("three").pieces, gate=(0, gate))],
        "low": [HANG],
    }
    async with team(paths, scripts) as test:
        events = await test.prompt(await test.begin())
        found = answers(events)
        assert [code for code, _ in found] == ["ok"] * 5 + ["session_not_found", "ok"]
        told = found[-1][1]
        dba, web, low = (test.records(name)[0].id for name in ("dba", "web", "low"))
        assert f"{dba} (dba) answered:\ntwo" in told
        assert f"{web} (web) answered:\nthree" in told
        assert f"{low} (low): The agent low did not answer (cancelled)" in told
        assert test.ends(dba) == ["done", "done"]


async def test_no_more_than_the_limit_work_at_once(paths: Paths) -> None:
    gate = asyncio.Event()
    wanted = [("agent_start", {"agent": "dba", "text": "x"}, f"c{number}") for number in range(3)]
    scripts: dict[str, Any] = {
        "test": lambda body: say("ok") if results(body) else calls(*wanted),
        "dba": [Stream(pieces=say("x").pieces, gate=(0, gate))],
    }
    async with team(paths, scripts, toml="[limits]\nchildren_at_once = 2\n") as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        await until(lambda: test.model.open_requests == 2)
        await asyncio.sleep(0.05)
        assert len(test.records("dba")) == 2
        gate.set()
        assert (await watch(turn))[-1]["type"] == "done"
        assert len(test.records("dba")) == 3


async def test_a_forked_child_has_the_conversation(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [ask("dba", "so?", context="forked"), say("ok")],
        "dba": [say("x")],
    }
    async with team(paths, scripts) as test:
        session = await test.begin()
        await test.prompt(session, "the secret word is plum")
        (body,) = [one.body for one in test.model.requests if "agent dba on" in str(one.body)]
        said = [(one["role"], one["content"]) for one in body["messages"][1:]]
        assert said == [
            ("user", "the secret word is plum"),
            ("assistant", "(There was no answer.)"),
            ("user", "so?"),
        ]


async def test_a_person_cannot_prompt_a_child_but_copy_it(paths: Paths) -> None:
    async with team(paths, {"test": [ask("dba"), say("ok")], "dba": [say("x")]}) as test:
        session = await test.begin()
        await test.prompt(session)
        (record,) = test.records("dba")
        dba, child = test.daemon.registry.session(record.id)
        with pytest.raises(Conflict, match=session.id):
            await dba.prompt(child, "go")
        assert dba.current_of(ME.uid) is None
        copied = await test.daemon.service.sessions.fork(ME, record.id)
        assert copied.agent == "dba"
        assert copied.parent == ""


async def test_a_child_of_an_agent_that_is_gone_is_deleted_with_its_parent(paths: Paths) -> None:
    async with team(paths, {"test": [ask("dba"), say("ok")], "dba": [say("x")]}) as test:
        session = await test.begin()
        await test.prompt(session)
        (record,) = test.records("dba")
        await test.daemon.registry.get("dba").stop()
        del test.daemon.registry.agents["dba"]
        await test.daemon.service.sessions.delete(ME, session.id, confirmed=True)
        assert test.daemon.history.queries.state("sessions") == {}
        assert [event.data for event in test.daemon.history.queries.messages(record.id) if event.data] == []


async def test_a_call_without_a_turn_asks_nobody(paths: Paths) -> None:
    async with team(paths, {"test": [say("x")], "dba": [say("x")]}) as test:
        args = {"agent": "dba", "text": "x"}
        service = test.daemon.service.tools
        called = service.call(ME, agent="test", tool="agent", action="ask", args=args)
        events = [event async for event in called]
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "refused")
        assert test.records("dba") == []
