"""The digests of the rows of state: what each checkpoint lists, and that this is always what is stored."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lightagentd.events.audit.row_check import compare
from lightagentd.events.audit.verification import verify
from lightagentd.events.history import Change, History
from lightagentd.events.model import Event, NewEvent
from lightagentd.events.store import rows
from lightagentd.events.store.layout import CHANGED, Environment
from lightagentd.events.store.retention import Bounds, prune
from lightagentd.events.types.history import HistoryMigrated
from tests.events.stored import note, opened, raw_meta


def usage(key: str, calls: int | None) -> Change:
    value = None if calls is None else {"calls": calls, "updated_us": 1}
    return Change(state="usage", key=key, value=value)


async def listed(history: History) -> list[Event]:
    return await history.appending(partial(rows.listing, history.environment, history.redactor.text))


def whole_sum(environment: Environment) -> tuple[int, int]:
    """Count and sum over the rows that are stored."""
    with environment.reading() as txn:
        found = [rows.expanded(rows.digest(*row)) for row in rows.stored(environment, txn)]
        return len(found), sum(found) % rows.MODULUS


async def test_a_list_has_what_changed_and_the_sum_over_everything(tmp_path: Path) -> None:
    long, secret = "k" * 500, "ghp_" + "a1B2" * 9
    async with opened(tmp_path / "history") as history:
        await history.append(note(), changes=[usage("a", 1), usage("b", 1), usage(long, 1), usage(secret, 1)])
        [first] = await listed(history)
        assert first.data is not None
        assert (first.data["count"], first.data["whole"], len(first.data["rows"])) == (4, True, 4)
        assert secret not in str(first.data)
        await history.append(note(), changes=[usage("a", 2), usage("b", None), usage("c", 1)])
        await history.append(note(), changes=[usage("a", 3), usage("d", 1), usage("d", None), usage(long, 1)])
        assert compare(history.environment).ok
        [second] = await listed(history)
        assert second.data is not None
        assert [key for _, key, _ in second.data["rows"]] == ["a", "b", "c", "d"]
        count, total = whole_sum(history.environment)
        assert (second.data["count"], int(second.data["total"], 16)) == (count, total)
        assert await listed(history) == []
        assert history.queries.state(CHANGED) == {}
        found = compare(history.environment)
        assert (found.ok, found.count, found.unsigned) == (True, count, 0)
        await history.append(note(), changes=[usage("a", 4)])
        assert compare(history.environment).unsigned == 1


async def test_what_retention_takes_out_of_the_lists_is_listed_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(topic="daemon.state"), changes=[usage("a", 1), usage("b", 1)])
        await listed(history)
        await history.append(note(topic="daemon.state"), changes=[usage("b", 2)])
        await listed(history)
        bounds = Bounds(reason="size", to_seq=history.head_seq - 2)
        [pruned] = await history.appending(partial(prune, history.environment, bounds))
        assert (pruned.data or {})["removed"] == 2
        assert compare(history.environment).ok
        [again] = await listed(history)
        assert [key for _, key, _ in (again.data or {})["rows"]] == ["a"]
        database = history.environment.db["usage"]
        with history.environment.env.begin(write=True) as txn:
            txn.put(b"a", b"{}", db=database)
        [bad] = compare(history.environment).bad
        assert (bad.key, bad.seq) == ("a", again.seq)


async def test_a_store_of_an_older_version_counts_from_its_first_list_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(), changes=[usage("a", 1)])
        database = history.environment.db[CHANGED]
        with history.environment.env.begin(write=True) as txn:
            txn.drop(database, delete=False)
    with raw_meta(tmp_path / "history") as txn:
        txn.put(b"schema_version", b"2")
    async with opened(tmp_path / "history") as history:
        assert history.queries.find_in_topic("daemon.history", lambda one: one.type == HistoryMigrated.type)
        assert (verify(history.environment).ok, compare(history.environment).covered_seq) == (True, -1)
        await history.append(note(), changes=[usage("b", 1)])
        [event] = await listed(history)
        assert (event.data or {})["count"] == 2
        assert compare(history.environment).count == 2


async def test_what_a_tool_says_is_no_list(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(), changes=[usage("a", 1)])
        await listed(history)
        forged = {"rows": [], "total": "00", "count": 0, "rows_sha256": ""}
        await history.append(NewEvent(topic=rows.TOPIC, type=rows.TYPE, data=forged, source="tool"))
        assert compare(history.environment).ok
