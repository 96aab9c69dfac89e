"""Retention: what goes, what stays, and that what is left can be verified."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import HistoryDamaged, NotFound
from lightagentd.events.audit.verification import verify
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import Event, decode, within
from lightagentd.events.queries import Filter
from lightagentd.events.store import retention
from lightagentd.events.store.layout import EVENTS, INDEXES, index_keys, seq_key
from lightagentd.events.store.retention import Bounds
from tests.events.stored import opened, raw_events

DAY_US = 86_400_000_000
SESSION = Change(state="sessions", key="ses_1", value={"id": "ses_1"})


@pytest.fixture(autouse=True)
def everything_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes end by their size alone, so that a slow machine makes as many as a fast one."""
    monkeypatch.setattr(retention, "PASS_S", 60.0)


def event(
    topic: str = "daemon.note", kind: str = "note", *, session: str = "", trace: str = "", **data: Any
) -> NewEvent:
    with within(session=session, trace_id=trace):
        return NewEvent(topic=topic, type=kind, data=data)


def message(session: str, number: int, trace: str = "") -> NewEvent:
    return event("agent.message", "message", session=session, trace=trace, role="user", content=f"{number}")


async def prune(
    history: History,
    to_seq: int = 0,
    *,
    before_us: int = 0,
    reason: str = "size",
    evidence_from: int = retention.NO_EVIDENCE,
) -> list[Event]:
    """All passes; gives their events."""
    last = to_seq or history.head_seq
    bounds = Bounds(reason=reason, to_seq=last, before_us=before_us, evidence_from=evidence_from)
    found: list[Event] = []
    while events := await history.appending(partial(retention.prune, history.environment, bounds)):
        found += events
    return found


async def sweep(history: History, evidence_from: int = retention.NO_EVIDENCE) -> list[Event]:
    found: list[Event] = []
    for part in retention.parts(history.queries.state("prunings")):
        if retention.needs_sweep(history.environment, part, evidence_from):
            found += await history.appending(
                partial(retention.sweep, history.environment, part, evidence_from)
            )
    return found


def check(history: History) -> list[int]:
    """The chain verifies, and the indexes have what is there and nothing else; gives the stored numbers."""
    verification = verify(history.environment)
    assert verification.ok, verification
    environment = history.environment
    wanted: dict[str, set[bytes]] = {name: set() for name in INDEXES}
    with environment.reading() as txn:
        records = list(txn.cursor(environment.db[EVENTS]))
        for _, record in records:
            for name, key in index_keys(decode(record)):
                wanted[name].add(key)
        for name in INDEXES:
            assert {key for key, _ in txn.cursor(environment.db[name])} == wanted[name], name
    return [int.from_bytes(key) for key, _ in records]


async def test_old_events_go_whole_and_the_chain_begins_behind_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        for number in range(10):
            await history.append(event(tool="bash", n=number))
        sixth = history.queries.range(6, 1)[0]
        [pruned] = await prune(history, 6)
        assert (pruned.topic, pruned.type, pruned.seq) == ("daemon.history", "pruned", 11)
        assert pruned.data == {
            "first_seq": 1,
            "last_seq": 6,
            "last_hash": sixth.hash,
            "removed": 6,
            "kept": [],
            "reason": "size",
        }
        assert history.environment.anchor() == (6, sixth.hash)
        assert check(history) == [7, 8, 9, 10, 11]
        assert [one.seq for one in history.queries.select(Filter(tool="bash"))] == [7, 8, 9, 10]
        assert history.queries.state("prunings") == {}
        assert await prune(history, 6) == []
    async with opened(tmp_path / "history") as history:
        assert check(history) == [7, 8, 9, 10, 11]
        [following] = await history.append(event())
        assert (following.seq, following.prev) == (12, pruned.hash)
        await prune(history)
        assert check(history) == [13]
    async with opened(tmp_path / "history") as history:
        [stored] = await history.append(event())
        assert stored.seq == 14
        assert check(history) == [13, 14]


async def test_messages_of_sessions_that_exist_stay_with_their_hash(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(event("session.created", "created", session="ses_1"), changes=[SESSION])
        for number in range(6):
            await history.append(message(("ses_1", "gone")[number % 2], number), event())
        before = history.queries.messages("ses_1")
        [pruned] = await prune(history)
        assert check(history) == [2, 6, 10, pruned.seq]
        assert history.queries.messages("ses_1") == before
        assert [tuple(pair) for pair in (pruned.data or {})["kept"]] == [
            (one.seq, one.hash) for one in before
        ]
        assert (pruned.data or {})["removed"] == pruned.seq - 1 - 3
        # The next pass keeps what says so as long as it counts.
        [second] = await prune(history)
        assert check(history) == [2, 6, 10, pruned.seq, second.seq]
        assert verify(history.environment).ok


async def test_a_deletion_has_the_kept_events_swept_away(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(event("session.created", "created", session="ses_1"), changes=[SESSION])
        await history.append(event(), changes=[Change(state="sessions", key="ses_2", value={"id": "ses_2"})])
        for number in range(6):
            await history.append(message(("ses_1", "ses_2")[number % 2], number), event())
        await prune(history)
        await prune(history)
        assert await sweep(history) == []
        tombstone = event("session.deleted", "deleted", session="ses_1")
        gone = Change(state="sessions", key="ses_1", value=None)
        [deleted] = await history.erase("ses_1", tombstone, changes=[gone])
        assert (deleted.data or {})["erased_events"] == 3
        assert verify(history.environment).ok
        await prune(history, deleted.seq)
        # What says that the data were erased stays as long as there are headers without data.
        assert deleted.seq in check(history)
        while await sweep(history):
            check(history)
        await prune(history)
        while await sweep(history):
            check(history)
        left = check(history)
        assert deleted.seq not in left
        assert [one.data["content"] for one in history.queries.messages("ses_2") if one.data] == [
            "1",
            "3",
            "5",
        ]
        assert history.queries.select(Filter(session="ses_1")) == []
    async with opened(tmp_path / "history") as history:
        assert check(history) == left


async def test_what_unfinished_turns_and_plans_need_stays_until_they_end(tmp_path: Path) -> None:
    trace, of_plan = "trace_00000000000000aa", "trace_00000000000000bb"
    turn = Change(state="turns", key=trace, value={"session": "ses_1", "state": "waiting"})
    plan = Change(
        state="plans", key="ses_1", value={"phase": "applying", "tasks": [{"id": "1", "trace_id": of_plan}]}
    )
    async with opened(tmp_path / "history") as history:
        await history.append(event("agent.prompt", "prompt", trace=trace, text="x"), changes=[turn, plan])
        await history.append(event("agent.tool_dispatch", "intent", trace=trace, tool="bash"))
        await history.append(event("agent.error", "failed", trace=of_plan, message="it failed"))
        await history.append(event())
        await prune(history)
        assert check(history)[:3] == [1, 2, 3]
        ended = [Change(state="turns", key=trace, value=None), Change(state="plans", key="ses_1", value=None)]
        await history.append(event(), changes=ended)
        await sweep(history)
        assert not {1, 2, 3} & set(check(history))


async def test_changes_of_files_that_can_be_taken_back_stay_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {"result": "ok", "action": "write", "metadata": {"previous_kept": True}}
    async with opened(tmp_path / "history") as history:
        await history.append(event("tool.file", "invocation", **kept))
        await history.append(
            event("tool.file", "invocation", **{**kept, "metadata": {"previous_kept": False}})
        )
        await prune(history)
        assert check(history)[0] == 1
        assert await sweep(history) == []
        monkeypatch.setattr(retention, "UNDO_DAYS", 0)
        await sweep(history)
        assert 1 not in check(history)


async def test_the_newest_signing_key_stays(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        for _ in range(2):
            await history.append(event("daemon.checkpoint", "key"), event(), event("other.topic", "key"))
        await prune(history)
        assert check(history)[0] == 4


async def test_age_removes_only_what_is_older_also_when_the_clock_jumped(tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    old, young, wrong = now - 10 * DAY_US, now - DAY_US, now + 900 * DAY_US
    async with opened(tmp_path / "history") as history:
        for time_us in (old, old, wrong, old, young, old, wrong, young):
            made = event()
            object.__setattr__(made, "time_us", time_us)
            await history.append(made)
        [pruned] = await prune(history, before_us=now - 5 * DAY_US, reason="age")
        assert (pruned.data or {})["reason"] == "age"
        assert check(history) == [5, 6, 7, 8, 9]
        assert await prune(history, before_us=now - 5 * DAY_US) == []


async def test_passes_are_bounded_and_those_that_keep_all_do_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PASS_EVENTS", 10)
    async with opened(tmp_path / "history") as history:
        await history.append(event("session.created", "created", session="ses_1"), changes=[SESSION])
        await history.append(*(message("ses_1", number) for number in range(40)))
        await history.append(*(event() for _ in range(20)))
        head = history.head_seq
        passes = await prune(history, head)
        assert [(one.data or {})["removed"] for one in passes] == [1, 0, 0, 0, 9, 10, 1]
        assert check(history) == [*range(2, 42), *(one.seq for one in passes)]
        # What only keeps messages at the end of what may go is not passed.
        await history.append(*(message("ses_1", number) for number in range(5)))
        assert history.environment.anchor()[0] == head


@pytest.mark.parametrize("seq", [1, 3, 5])
async def test_what_was_tampered_with_is_not_removed(tmp_path: Path, seq: int) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(*(event(n=number) for number in range(6)))
    with raw_events(tmp_path / "history") as txn:
        line, _, data = txn.get(seq_key(seq)).partition(b"\n")
        txn.put(seq_key(seq), line + b"\n" + data.replace(b":", b": "))
    async with opened(tmp_path / "history") as history:
        with pytest.raises(HistoryDamaged, match=f"event {seq} was altered"):
            await prune(history)
        assert history.environment.entries() == 6
        assert history.environment.anchor()[0] == 0
        await history.append(event())
        assert verify(history.environment).first_bad_seq == seq


async def test_a_missing_event_stops_retention(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(*(event(n=number) for number in range(6)))
    with raw_events(tmp_path / "history") as txn:
        txn.delete(seq_key(2))
    async with opened(tmp_path / "history") as history:
        with pytest.raises(HistoryDamaged, match="event 2 was altered"):
            await prune(history)


@pytest.mark.parametrize("change", ["data", "header", "gone"])
async def test_a_kept_event_that_was_tampered_with_is_not_swept_away(tmp_path: Path, change: str) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(event("session.created", "created", session="ses_1"), changes=[SESSION])
        await history.append(message("ses_1", 1), message("ses_1", 2))
        await prune(history)
        await history.append(changes=[Change(state="sessions", key="ses_1", value=None)])
    with raw_events(tmp_path / "history") as txn:
        line, _, data = txn.get(seq_key(2)).partition(b"\n")
        if change == "gone":
            txn.delete(seq_key(2))
        elif change == "data":
            txn.put(seq_key(2), line + b"\n" + data.replace(b'"1"', b'"7"'))
        else:
            txn.put(seq_key(2), line.replace(b'"source":"daemon"', b'"source":"deamon"') + b"\n" + data)
    async with opened(tmp_path / "history") as history:
        with pytest.raises(HistoryDamaged, match="event 2 was altered"):
            await sweep(history)
        assert not verify(history.environment).ok


async def test_reading_copes_with_events_that_go_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(event("session.created", "created", session="ses_1"), changes=[SESSION])
        for number in range(400):
            await history.append(event(session="ses_2", trace="trace_1"), message("ses_1", number))
        bounds = Bounds(reason="size", to_seq=history.head_seq)
        found = 0
        while await history.appending(partial(retention.prune, history.environment, bounds)):
            found += len(history.queries.select(Filter(session="ses_2"), limit=1000))
            assert len(history.queries.messages("ses_1")) == 400
            assert history.queries.newest(Filter(), 5)
        assert history.queries.select(Filter(trace="trace_1")) == []
        check(history)


async def test_a_forecast_tells_what_goes_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(event("session.created", "created", session="ses_1"), changes=[SESSION])
        await history.append(*(message("ses_1", number) for number in range(3)))
        await history.append(*(event(text="x" * 1000) for _ in range(10)))
        bounds = Bounds(reason="size", to_seq=history.head_seq)
        found = retention.forecast(history.environment, bounds)
        assert (found.removed, found.kept) == (11, 3)
        assert 10_000 < found.size_bytes < 40_000
        assert history.environment.entries() == 14
        assert sum((one.data or {})["removed"] for one in await prune(history, 14)) == 11


async def test_an_erased_session_leaves_the_index_of_fields(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(event(session="ses_1", tool="bash", effect="change", decision="ask"))
        await history.append(event(session="ses_2", tool="bash", effect="change", decision="ask"))
        await history.erase("ses_1", event("session.deleted", "deleted", session="ses_1"))
        check(history)
        for wanted in (Filter(tool="bash"), Filter(effect="change"), Filter(decision="ask")):
            assert [one.seq for one in history.queries.select(wanted)] == [2]
        assert [one.seq for one in history.queries.select(Filter(type="note"))] == [1, 2]


async def test_the_state_of_a_part_is_gone_with_its_last_kept_event(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(message("ses_1", 1), changes=[SESSION])
        await history.append(event())
        await prune(history)
        assert list(history.queries.state("prunings")) == [f"{1:020d}"]
        await history.append(changes=[Change(state="sessions", key="ses_1", value=None)])
        await sweep(history)
        with pytest.raises(NotFound):
            history.queries.state_of("prunings", f"{1:020d}")
        assert sorted(check(history)) == [3, 4]


async def test_approvals_changes_and_rules_stay_within_a_budget_of_their_own(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        evidence = [
            event("approval.granted", "granted", effect="change"),
            event("tool.file", "invocation", effect="change", tool="file"),
            event("policy.rules", "loaded"),
        ]
        for each in evidence:
            await history.append(each)
            await history.append(event(text="x" * 5000))  # what a member stores to have it removed
            await history.append(event("tool.bash", "invocation", effect="observe"))
        with within(session="ses_1"):  # a tool that poses as one
            await history.append(NewEvent(topic="tool.x", type="x", data={"effect": "change"}, source="tool"))
        since = retention.evidence_from(history.environment)
        assert since == 0
        await prune(history, evidence_from=since)
        assert [seq for seq in check(history) if seq < 11] == [1, 4, 7]
        # The oldest is beyond the budget of a smaller history.
        with history.environment.reading() as txn:
            sizes = sum(len(txn.get(seq_key(seq), db=history.environment.db[EVENTS])) for seq in (4, 7))
        since = retention.evidence_from(history.environment, most_bytes=sizes * 8 + 8)
        assert since == 2
        await sweep(history, since)
        assert 1 not in check(history)
        # What is too old goes like all else.
        later = time.time_ns() // 1000 + DAY_US
        assert retention.evidence_from(history.environment, before_us=later) == retention.NO_EVIDENCE
        await sweep(history, retention.NO_EVIDENCE)
        assert not {4, 7} & set(check(history))
