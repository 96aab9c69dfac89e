"""What turns use, counted in every scope, across crashes; and budgets, which end a turn in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.agents.model_calls.metering import ledger as usage_module
from lightagentd.agents.model_calls.metering.ledger import (
    Counters,
    Ledger,
    Row,
    Whose,
    day_of,
    today,
)
from lightagentd.agents.sessions.session import Session
from lightagentd.config.configuration import Budgets
from lightagentd.events.history import History
from lightagentd.host.paths import Paths
from lightagentd.llm.metadata.price import Price
from lightagentd.llm.protocol import Usage
from tests.agents.asking import add, asked, asking, lines, prepare
from tests.agents.endpoints import NOWHERE, asking_providers
from tests.agents.scripted import ME as CALLER
from tests.agents.scripted import Scripted, check_conversation, define, scripted, until, watch
from tests.conftest import DaemonProcess, write
from tests.scripted_model import DONE, Answer, Fault, ScriptedModel, Stream, call, calls, chunk, say, usage

ME = os.getuid()
PRICED = """
[models.prices."openai/x"]
prompt = 100.0
completion = 1000.0
cached = 10.0
"""
INFO = ("proc_info", {"pid": 1})


def counters(test: Scripted, key: str) -> Counters:
    return test.daemon.registry.shared.ledger.row(key).counters


def stored(test: Scripted, key: str) -> dict[str, Any]:
    """The row on disk."""
    return test.daemon.history.queries.state_of("usage", key)


def told(prompt: int, completion: int, cached: int) -> bytes:
    """The last chunk of an answer, with cached tokens."""
    figures = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return b"data: " + json.dumps({"choices": [], "usage": figures}).encode() + b"\n\n"


async def test_a_turn_counts_in_every_scope_and_says_so_at_its_end(paths: Paths) -> None:
    async with scripted(paths, [call(*INFO), say("done")], toml=PRICED) as test:
        session = await test.session()
        events = await test.prompt(session)
        trace = events[0]["trace_id"]
        keys = [
            f"turn/{trace}",
            f"session/{session.id}",
            "agent/test",
            f"owner/{ME}",
            f"owner_day/{today()}/{ME}",
            f"day/{today()}",
            "all/all",
        ]
        for key in keys:
            row = stored(test, key)
            wall_ms, updated_us = row.pop("wall_ms", 0), row.pop("updated_us")
            assert wall_ms >= 0
            assert updated_us > 0
            row.pop("whose", None)
            assert row.pop("cost") == pytest.approx(0.012)
            assert row == {
                "turns": 1,
                "steps": 2,
                "calls": 1,
                "prompt_tokens": 20,
                "completion_tokens": 10,
            }, key
        used = [event for event in events if event["type"] == "usage"]
        assert [event["total_tokens"] for event in used] == [15, 15]
        assert [event["cost"] for event in used] == [pytest.approx(0.006)] * 2
        [done] = test.stored(trace, "session.turn")[-1:]
        assert done.data is not None
        assert (done.data["total_tokens"], done.data["calls"], done.data["steps"]) == (30, 1, 2)
        assert done.data["cost"] == pytest.approx(0.012)


async def test_cached_tokens_have_their_price_and_no_price_is_no_cost(paths: Paths) -> None:
    answer = Stream(pieces=[chunk({"content": "hi"}, "stop"), told(100, 10, 40), DONE])
    async with scripted(paths, [answer], toml=PRICED) as test:
        session = await test.session()
        await test.prompt(session)
        row = counters(test, f"session/{session.id}")
        assert row.cached_tokens == 40
        assert row.cost == pytest.approx((60 * 100 + 40 * 10 + 10 * 1000) / 1e6)
        assert row.steps_without_price == 0


async def test_a_step_without_a_price_or_without_figures_is_counted_as_such(paths: Paths) -> None:
    uncounted = Stream(pieces=[chunk({"content": "hi"}, "stop"), usage(0, 0), DONE])
    async with scripted(paths, [uncounted, say("again")]) as test:
        session = await test.session()
        assert "usage" not in [event["type"] for event in await test.prompt(session)]
        row = counters(test, f"session/{session.id}")
        assert (row.steps, row.steps_without_usage, row.steps_without_price) == (1, 1, 0)
        assert row.prompt_tokens > 100, "an estimate: a budget is none otherwise"
        assert row.completion_tokens > 0
        [event] = [one for one in await test.prompt(session) if one["type"] == "usage"]
        assert event["cost"] is None
        assert (row.steps, row.steps_without_usage, row.steps_without_price) == (2, 1, 1)


async def test_the_runbook_counts_steps_that_cost_nothing(paths: Paths) -> None:
    write(paths.config / "agent" / "test" / "AGENT.md", "---\nmodel: runbook\n---\nBe brief.\n")
    async with scripted_runbook(paths) as (test, session):
        await test.prompt(session, "check memory")
        row = counters(test, f"session/{session.id}")
        assert row.steps >= 1
        assert (row.steps_without_usage, row.steps_without_price, row.total_tokens) == (0, 0, 0)


@contextlib.asynccontextmanager
async def scripted_runbook(paths: Paths) -> AsyncIterator[tuple[Scripted, Session]]:
    from lightagentd.daemon.daemon import Daemon

    async with ScriptedModel([say("never")]) as model, Daemon(paths) as daemon:
        test = Scripted(daemon=daemon, model=model)
        yield test, await test.session()


def one_call(body: dict[str, Any]) -> Answer:
    return call(*INFO) if body["messages"][-1]["role"] == "user" else say("done")


async def test_two_sessions_at_once_add_up(paths: Paths) -> None:
    async with scripted(paths, one_call, toml=PRICED) as test:
        sessions = [await test.session() for _ in range(4)]
        await asyncio.gather(*(test.prompt(one, f"go {n}") for one in sessions for n in range(5)))
        for one in sessions:
            assert stored(test, f"session/{one.id}")["steps"] == 10
        for key in ("agent/test", f"owner/{ME}", "all/all"):
            row = stored(test, key)
            assert (row["turns"], row["steps"], row["calls"]) == (20, 40, 20)
            assert (row["prompt_tokens"], row["completion_tokens"]) == (400, 200)
            assert row["cost"] == pytest.approx(0.24)


@pytest.mark.parametrize("seen", [False, True])
async def test_a_call_that_is_cancelled_counts_with_what_was_seen(paths: Paths, seen: bool) -> None:
    pieces = [chunk({"content": "hm"}), *([usage(30, 7)] if seen else [])]
    async with scripted(paths, [Stream(pieces=pieces, hang=True)], toml=PRICED) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        watcher = turn.stream.watch()
        async for event in watcher.events():
            if event["type"] == "text_delta":
                test.agent.cancel(session)
        row = stored(test, f"session/{session.id}")
        assert row["steps"] == 1
        assert row["prompt_tokens"] == 30 if seen else row["prompt_tokens"] > 100, "an estimate"
        assert row.get("steps_without_usage", 0) == (0 if seen else 1)
        [event_stored] = test.stored(turn.trace_id, "agent.llm_response")
        assert event_stored.type == "failed"
        [ended] = test.stored(turn.trace_id, "agent.error")
        assert ended.data is not None
        assert ended.data["total_tokens"] == 37 if seen else ended.data["total_tokens"] > 100


async def test_a_call_that_fails_counts_when_the_endpoint_had_it(paths: Paths) -> None:
    cut = Fault(status=200, body=chunk({"content": "hm"}) + usage(11, 3), cut=True)
    async with scripted(paths, [Fault(status=400), Fault(), cut]) as test:
        session = await test.session()
        await test.prompt(session)
        row = counters(test, f"session/{session.id}")
        assert (row.steps, row.steps_without_usage) == (1, 1), "what was refused is a call, too"
        turn = await test.agent.prompt(session, "again")
        await watch(turn)
        row = counters(test, f"session/{session.id}")
        assert (row.steps, row.steps_without_usage, row.total_tokens) == (3, 2, 14)
        assert [event.type for event in test.stored(turn.trace_id, "agent.llm_response")] == 2 * ["failed"]


@pytest.mark.parametrize("prompt_tokens", [-5, 10**30])
async def test_what_an_endpoint_says_of_tokens_stays_within_bounds(paths: Paths, prompt_tokens: int) -> None:
    answer = Stream(pieces=[chunk({"content": "hi"}, "stop"), told(prompt_tokens, -1, -1), DONE])
    async with scripted(paths, [answer]) as test:
        session = await test.session()
        await test.prompt(session)
        row = stored(test, f"session/{session.id}")
        assert 0 <= row.get("prompt_tokens", 0) <= 10**9
        assert row.get("completion_tokens", 0) < 10
        assert row.get("cached_tokens", 0) == 0


async def test_after_kill_9_the_figures_are_those_of_the_stored_events(
    paths: Paths, daemon_process: DaemonProcess
) -> None:
    hang = Stream(pieces=[chunk({"content": "hm"})], hang=True)
    async with ScriptedModel([call(*INFO), say("done"), call(*INFO), hang, say("after")]) as model:
        define(paths, model)
        await asyncio.to_thread(daemon_process.start)
        await asyncio.to_thread(daemon_process.lactl, "prompt", "test", "one")
        await asyncio.to_thread(daemon_process.lactl, "prompt", "--no-wait", "test", "two")
        await until(lambda: len(model.requests) == 4)
        before = await _usage(daemon_process)
        daemon_process.kill()
        await asyncio.to_thread(daemon_process.start)
        after = await _usage(daemon_process)
        assert after == before
        assert (after["steps"], after["calls"], after["total_tokens"]) == (3, 2, 45)
        await asyncio.to_thread(daemon_process.lactl, "prompt", "test", "three")
        final = await _usage(daemon_process)
        assert (final["steps"], final["turns"]) == (4, 3)


async def _usage(process: DaemonProcess) -> dict[str, Any]:
    done = await asyncio.to_thread(process.lactl, "--json", "usage", "--by", "owner")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert isinstance(row, dict)
    return row


async def test_a_budget_that_is_used_up_ends_the_turn_before_the_next_model_call(paths: Paths) -> None:
    script = [call(*INFO), call(*INFO, call_id="call_2"), say("never")]
    toml = "[budgets.turn]\ntokens = 30\n"
    async with scripted(paths, script, front="fallback: [openai/y]", toml=toml) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["type"] == "error"
        assert events[-1]["code"] == "budget_exceeded"
        assert "30 of 30 tokens" in events[-1]["message"]
        assert "budgets.turn.tokens" in events[-1]["suggestion"]
        assert "notice" not in [event["type"] for event in events], "no other model is asked"
        assert len(test.model.requests) == 2
        [exceeded] = test.stored(topic="budget")
        assert exceeded.trace_id == events[0]["trace_id"]
        assert exceeded.data == {
            "scope": "turn",
            "name": events[0]["trace_id"],
            "what": "tokens",
            "used": 30.0,
            "limit": 30.0,
            "message": "The budget of one turn is used up: 30 of 30 tokens.",
        }
        assert len(test.conversation(session)) == 6, "what was done stays, with its results"
        test.model.script = [say("fresh")]
        assert (await test.prompt(session))[-1]["type"] == "done", "another turn has its own budget"


@pytest.mark.parametrize(
    ("scope", "what", "limit"),
    [
        ("session", "steps", "1"),
        ("owner", "cost", "0.001"),
        ("owner_day", "tokens", "10"),
        ("day", "tokens", "10"),
        ("session", "wall_s", "0.000001"),
    ],
)
async def test_a_budget_holds_after_a_restart(paths: Paths, scope: str, what: str, limit: str) -> None:
    toml = f"{PRICED}[budgets.{scope}]\n{what} = {limit}\n"
    async with scripted(paths, [say("one")], toml=toml.replace(limit, "1000000")) as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["type"] == "done"
    async with scripted(paths, [say("two")], toml=toml) as test:
        session = test.agent.sessions[session.id]
        events = await test.prompt(session)
        assert events[-1]["code"] == "budget_exceeded"
        assert f"budgets.{scope}.{what}" in events[-1]["suggestion"]
        assert not test.model.requests
        other = await test.session()
        expected = "done" if scope == "session" and what == "steps" else "error"
        assert (await test.prompt(other))[-1]["type"] == expected


async def test_no_more_tool_calls_run_than_the_budget_has_room_for(paths: Paths) -> None:
    many = calls(*((*INFO, f"call_{number}") for number in range(5)))
    async with scripted(paths, [many], toml="[budgets.turn]\ncalls = 2\n") as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["code"] == "budget_exceeded"
        assert "2 of 2 tool calls" in events[-1]["message"]
        assert [event["type"] for event in events].count("tool_result") == 2
        row = stored(test, f"session/{session.id}")
        assert (row["steps"], row["calls"]) == (1, 2)
        assert len(test.conversation(session)) == 8, "the others have a result that says they were not run"


async def test_the_room_for_calls_is_the_same_after_a_restart(paths: Paths) -> None:
    out = prepare(paths)
    three = calls(*(("probe_add", add(out), f"call_{number}") for number in range(3)))
    toml = "[budgets.turn]\ncalls = 2\n"
    async with asking(paths, [three], toml=toml) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        await asked(test)
        assert turn.meter is not None
        measured = turn.meter.wall_ms
        waits = test.daemon.history.queries.state("turns")[turn.trace_id]
        assert waits["calls_left"] == 1
        assert 0 <= waits["wall_ms"] <= measured
    async with asking(paths, [say("never")], toml=toml) as test:
        session = test.agent.sessions[session.id]
        for _ in range(2):
            await test.daemon.service.approvals.approve(CALLER, (await asked(test)).id, "")
            await until(lambda: test.daemon.registry.shared.asked.approvals.questions.waiting == 0)
        await until(lambda: session.running is None)
        assert lines(out) == ["ran", "ran"]
        assert test.stored(topic="agent.error")[-1].type == "budget_exceeded"
        assert not test.model.requests
        row = stored(test, f"turn/{turn.trace_id}")
        assert (row["turns"], row["steps"], row["calls"]) == (1, 1, 2)


async def test_turns_at_once_share_the_room_for_calls_and_every_step_is_counted(paths: Paths) -> None:
    slow = Stream(pieces=call(*INFO).pieces, pause_s=0.02)
    async with scripted(paths, [slow], toml="[budgets.owner]\ncalls = 1\n") as test:
        sessions = [await test.session() for _ in range(3)]
        ended = await asyncio.gather(*(test.prompt(session) for session in sessions))
        assert [events[-1]["code"] for events in ended] == ["budget_exceeded"] * 3
        results = [event for events in ended for event in events if event["type"] == "tool_result"]
        assert len(results) == 1
        row = stored(test, f"owner/{ME}")
        assert (row["steps"], row["calls"], row["turns"]) == (len(test.model.requests), 1, 3)


async def test_turns_at_once_share_the_room_for_steps(paths: Paths) -> None:
    slow = Stream(pieces=call(*INFO).pieces, pause_s=0.02)
    async with scripted(paths, [slow], toml="[budgets.owner]\nsteps = 2\n") as test:
        sessions = [await test.session() for _ in range(6)]
        ended = await asyncio.gather(*(test.prompt(session) for session in sessions))
        assert [events[-1]["code"] for events in ended] == ["budget_exceeded"] * 6
        assert len(test.model.requests) == stored(test, f"owner/{ME}")["steps"] == 2


async def test_each_attempt_passes_the_budgets(paths: Paths) -> None:
    async with scripted(paths, [Fault()], toml="[budgets.turn]\nsteps = 2\n") as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["code"] == "budget_exceeded"
        assert len(test.model.requests) == 2


async def test_what_never_reached_an_endpoint_keeps_no_room(paths: Paths) -> None:
    async with ScriptedModel([say("done")]) as model:
        providers = {"away": {"base_url": NOWHERE}, "main": {"base_url": model.base_url}}
        toml, models = "[budgets.session]\nsteps = 1\n", ["away/x", "main/x"]
        async with asking_providers(paths, providers, models=models, toml=toml) as test:
            session = await test.session()
            assert (await test.prompt(session))[-1]["type"] == "done"
            assert counters(test, f"session/{session.id}").steps == 1


async def test_a_call_that_is_cancelled_before_its_answer_is_a_step(paths: Paths) -> None:
    toml = "[budgets.session]\nsteps = 1\n"
    async with scripted(paths, [Stream(pieces=[], hang=True)], toml=toml) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        await until(lambda: bool(test.model.requests))
        test.agent.cancel(session)
        await turn.over.wait()
        assert counters(test, f"session/{session.id}").steps == 1
        assert (await test.prompt(session))[-1]["code"] == "budget_exceeded"


async def test_a_reload_takes_other_budgets(paths: Paths) -> None:
    async with scripted(paths, [say("one")], toml="[budgets.session]\nsteps = 1\n") as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["type"] == "done"
        assert (await test.prompt(session))[-1]["code"] == "budget_exceeded"
        write(paths.config / "lightagentd.toml", "[budgets.session]\nsteps = 2\n")
        reloaded = await test.daemon.reload()
        assert not reloaded.needs_restart
        assert (await test.prompt(session))[-1]["type"] == "done"


async def test_waiting_for_a_person_is_no_running_time(paths: Paths) -> None:
    async with scripted(paths, [say("one")]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        await watch(turn)
        meter = turn.meter
        assert meter is not None
        turn.timer = None
        meter.run()
        with turn.waiting("apr_1"):
            waited = meter.wall_ms
            await asyncio.sleep(0.05)
            assert meter.wall_ms == waited
        await until(lambda: meter.wall_ms > waited)
        meter.stop()
        assert not test.daemon.registry.shared.ledger.meters


async def test_sums_are_stored_in_the_order_of_the_appends(paths: Paths) -> None:
    """A turn counts its step, and appends it when the worker has checked its call: others come in between."""
    history = History(paths.history)
    await history.start()
    ledger = Ledger(history, Budgets())
    slow = ledger.add(Whose(agent="a", owner=7), Counters(steps=1))
    fast = ledger.add(Whose(agent="b", owner=7), Counters(steps=1))
    assert ledger.row("owner/7").counters.steps == 2, "what runs counts at once"
    await history.append(changes=fast)
    assert history.queries.state_of("usage", "owner/7")["steps"] == 1, "and is stored with its event"
    await history.append(changes=slow)
    assert history.queries.state_of("usage", "owner/7")["steps"] == 2
    await history.close()


async def test_a_step_whose_call_was_never_stored_is_counted(paths: Paths) -> None:
    async with scripted(paths, [call(*INFO)]) as test:
        session = await test.session()
        for _ in range(3):
            turn = await test.agent.prompt(session, "go")
            watcher = turn.stream.watch()
            async for event in watcher.events():
                if event["type"] == "usage":
                    test.agent.cancel(session)
            check_conversation(test.conversation(session))
        row = stored(test, f"session/{session.id}")
        assert row["steps"] == len(test.model.requests)
        assert len(test.stored(topic="agent.llm_response")) == len(test.model.requests)


async def test_only_the_newest_turns_and_days_are_kept(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_module, "KEPT_TURNS", 3)
    monkeypatch.setattr(usage_module, "_KEPT_IN_MEMORY", 8)
    history = History(paths.history)
    await history.start()
    old, kept = day_of(0), today()
    first = Ledger(history, Budgets(), {"openai/x": Price(prompt=1.0, completion=0.0)}.get)
    first.load()
    rows = [Row(key=f"day/{old}", updated_us=1), Row(key=f"owner_day/{old}/7", updated_us=1)]
    await history.append(changes=[row.add({"steps": 1}) for row in rows])
    for number in range(6):
        whose = Whose(agent="a", owner=7, session=f"ses_{number % 2}", trace_id=f"trace_{number}")
        await history.append(changes=first.add(whose, Counters(steps=1)))
    assert [row.name for row in await first.rows("turn")] == ["trace_3", "trace_4", "trace_5"]
    again = Ledger(history, Budgets())
    again.load()
    whose = Whose(agent="a", owner=7, session="ses_0", trace_id="trace_6")
    await history.append(changes=again.add(whose, Counters(steps=1)))
    assert sorted(history.queries.state("usage", "turn/")) == [
        "turn/trace_4",
        "turn/trace_5",
        "turn/trace_6",
    ]
    assert list(history.queries.state("usage", "day/")) == [f"day/{kept}"]
    assert list(history.queries.state("usage", "owner_day/")) == [f"owner_day/{kept}/7"]
    assert again.row("all/all").counters.steps == 7
    assert again.row("session/ses_0").counters.turns == 4
    await history.append(changes=[again.forget_session("ses_0")])
    assert [row.name for row in await again.rows("session")] == ["ses_1"]
    assert again.cost("openai/x", Usage(prompt_tokens=1)) is None
    await history.close()
