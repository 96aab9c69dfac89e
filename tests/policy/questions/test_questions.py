"""What approvals and inputs have in common: stored, expiring, answered once, found again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import LightagentError, LimitExceeded, StorageError
from lightagentd.events.history import Change, History
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from lightagentd.policy.questions.approval import Bound
from lightagentd.policy.questions.approvals import Approvals
from lightagentd.policy.questions.inputs import Inputs
from lightagentd.policy.questions.question import Question, State
from lightagentd.policy.questions.questions import OPEN_OF_OWNER, Questions, Suspended
from lightagentd.policy.questions.recent import LAPSED_OF_OWNER, Recent
from lightagentd.policy.questions.records import KEPT

BOUND = Bound(agent="ops", session="ses_1", tool="file", action="write", effect="change", args={}, cwd="/")
BROKEN: dict[str, list[dict[str, Any]]] = {
    "approval": [{"state": "answered"}, {"args": []}, {"hidden": [7]}, {"volatile": 1}],
    "input": [{"state": "granted"}, {"choices": None}, {"choices": [7]}],
}


class Kind:
    """One kind of questions, with the history that stores it."""

    def __init__(self, noun: str, history: History, key_file: Path) -> None:
        self.noun = noun
        self.state = f"{noun}s"
        self.history = history
        self._key_file = key_file
        self._owners: dict[Questions[Any], Approvals | Inputs] = {}

    async def loaded(self, timeout_s: float = 600) -> Questions[Any]:
        """The questions as a start of the daemon makes them."""
        if self.noun == "approval":
            approvals = Approvals(self.history, timeout_s=timeout_s, key_file=self._key_file)
            await approvals.load()
            self._owners[approvals.questions] = approvals
            return approvals.questions
        inputs = Inputs(self.history, timeout_s=timeout_s)
        await inputs.questions.load()
        self._owners[inputs.questions] = inputs
        return inputs.questions

    def new(self, store: Questions[Any], owner: int = 1000) -> Question:
        about: dict[str, Any] = {"owner": owner, "trace_id": "trace_1", "call_id": "call_1"}
        owned = self._owners[store]
        if isinstance(owned, Approvals):
            return owned.new(BOUND, **about, preview="-", expected={"a": 1}, rule="default", reason="why")
        choices = ["a", "b"]
        return owned.new(
            agent="ops", session="ses_1", **about, question="Which?", choices=choices, timeout_s=None
        )

    async def ask(self, store: Questions[Any], owner: int = 1000) -> Any:
        """A stored question of a turn that waits for it."""
        asked = self.new(store, owner)
        turn = {"session": "ses_1", "state": "waiting", "approval": asked.id}
        return await store.ask(asked, changes=[Change(state="turns", key="trace_1", value=turn)])

    async def answer(self, store: Questions[Any], question_id: str, uid: int = 0) -> Any:
        owned = self._owners[store]
        if isinstance(owned, Approvals):
            return await owned.answer(question_id, grant=False, uid=uid)
        return await owned.answer(question_id, "a", uid=uid)

    def events(self) -> list[str]:
        return [event.type for event in self.history.queries.select(Filter(topic=self.noun), limit=1000)]


@pytest.fixture(params=["approval", "input"])
async def kind(request: pytest.FixtureRequest, paths: Paths) -> AsyncIterator[Kind]:
    history = History(paths.history)
    await history.start()
    yield Kind(request.param, history, paths.state / "approvals.key")
    await history.close()


async def test_of_the_answers_while_it_is_stored_the_first_counts(kind: Kind) -> None:
    store = await kind.loaded()
    asking = asyncio.create_task(kind.ask(store))
    while not store._pending:
        await asyncio.sleep(0)
    (asked,) = store._pending.values()
    assert asked.id in store._storing
    assert (store.all(), store.waiting) == ([], 0), "a crash could still make it nothing"
    answers = await asyncio.gather(
        *(kind.answer(store, asked.id, uid) for uid in range(3)), return_exceptions=True
    )
    refused = [one for one in answers if isinstance(one, LightagentError)]
    assert [one.code for one in refused] == [f"{kind.noun}_closed"] * 2
    assert (await asking).id == asked.id
    assert (store.get(asked.id).answered_by, kind.events()) == (0, ["requested", kind.events()[-1]])
    assert kind.events()[-1] in ("denied", "answered")


async def test_who_waits_is_let_go_when_the_daemon_stops(kind: Kind) -> None:
    store = await kind.loaded()
    asked = await kind.ask(store)
    waiter = asyncio.create_task(store.wait(asked.id))
    await asyncio.sleep(0)
    store.suspend()
    with pytest.raises(Suspended):
        await waiter
    with pytest.raises(Suspended):
        await store.wait(asked.id)
    assert store.get(asked.id).state is State.WAITING
    await kind.answer(store, asked.id)


async def test_it_is_found_again_as_it_was_if_its_turn_waits(kind: Kind) -> None:
    first = await kind.loaded()
    lost = await kind.ask(first)
    asked = await kind.ask(first)  # the one turn waits for this one now
    again = await kind.loaded()
    assert (again.get(asked.id), again.waiting, again.is_open(asked.id)) == (asked, 1, True)
    assert (again.get(lost.id).state, again.is_open(lost.id)) == (State.LAPSED, False)
    assert kind.events() == ["requested", "requested", "lapsed"]
    await kind.answer(again, asked.id)


async def test_one_that_expired_while_nothing_ran_is_stored_so(kind: Kind) -> None:
    asked = await kind.ask(await kind.loaded(timeout_s=0.01))
    await asyncio.sleep(0.02)
    await kind.loaded()
    assert kind.history.queries.state_of(kind.state, asked.id)["state"] == "expired"


async def test_one_that_nobody_waits_for_is_listed_as_expired_and_stored_so(kind: Kind) -> None:
    store = await kind.loaded(timeout_s=0.01)
    asked = await kind.ask(store)
    while not asked.overdue():
        await asyncio.sleep(0.005)
    assert [one.state for one in (store.get(asked.id), *store.all())] == [State.EXPIRED] * 2
    assert (store.open_ones(), store.waiting) == ([], 0)
    assert store.is_open(asked.id) is (kind.noun == "input"), "that nobody answered is an answer, too"
    await store.expire()
    assert kind.history.queries.state_of(kind.state, asked.id)["state"] == "expired"
    with pytest.raises(LightagentError, match="expired"):
        await kind.answer(store, asked.id)
    assert kind.events() == ["requested", "expired"]


async def test_a_broken_record_is_dropped_and_keeps_nobody_from_starting(kind: Kind) -> None:
    row = (await kind.ask(await kind.loaded())).to_dict()
    shared: list[dict[str, Any]] = [
        {"owner": True},
        {"expires_us": "soon"},
        {"answered_by": "0"},
        {"more": 1},
    ]
    broken = [{}, {"state": "waiting"}, *({**row, **wrong} for wrong in [*shared, *BROKEN[kind.noun]])]
    prefix = row["id"].split("_")[0]
    changes = [Change(state=kind.state, key=row["id"], value=None)]
    for number, value in enumerate([*broken, row]):  # the last under a key that is not its own
        key = f"{prefix}_{number:016x}"
        changes.append(
            Change(state=kind.state, key=key, value=value | {"id": key} if value in broken else row)
        )
    await kind.history.append(changes=changes)
    assert (await kind.loaded()).all() == []
    assert kind.history.queries.state(kind.state) == {}


async def test_of_the_closed_ones_the_newest_are_kept(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await kind.loaded()
    closed = [
        replace(one := kind.new(store), id=f"{one.PREFIX}_{n:016x}", created_us=n, state=State.LAPSED)
        for n in range(KEPT + 5)
    ]
    await kind.history.append(
        changes=[Change(state=kind.state, key=one.id, value=one.to_dict()) for one in closed]
    )
    kept = (await kind.loaded()).all()
    assert (len(kept), kept[0].created_us) == (KEPT, 5)
    # And while the daemon runs.
    monkeypatch.setattr("lightagentd.policy.questions.records.KEPT", 3)
    store = await kind.loaded()
    ids = []
    for n in range(6):
        ids.append((await kind.ask(store)).id)
        if n % 2:
            await kind.answer(store, ids[-1])
        events, changes = store.lapse(ids[-1], "gone")
        await kind.history.append(*events, changes=changes)
    assert sorted(kind.history.queries.state(kind.state)) == sorted(ids[3:])
    assert store.find(ids[0]) is None


async def test_an_answer_that_cannot_be_stored_is_none(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    store = await kind.loaded()
    asked = await kind.ask(store)
    with monkeypatch.context() as patch:
        patch.setattr(kind.history, "_store", full)
        with pytest.raises(StorageError):
            await kind.answer(store, asked.id)
        with pytest.raises(StorageError):
            await kind.ask(store)
    assert (store.get(asked.id).state, store.waiting) == (State.WAITING, 1)
    await kind.answer(store, asked.id)


async def test_one_user_cannot_ask_without_bound_nor_keep_others_from_asking(kind: Kind) -> None:
    store = await kind.loaded()
    for _ in range(OPEN_OF_OWNER):
        await kind.ask(store)
    with pytest.raises(LimitExceeded, match=f" of {called(1000)}"):
        await kind.ask(store)
    await kind.ask(store, owner=1001)
    await kind.answer(store, store.all()[0].id)
    await kind.ask(store)


async def test_one_user_cannot_let_questions_lapse_and_ask_again_for_ever(kind: Kind) -> None:
    """Each new question has another id: some id would begin as the one that a person has read."""
    store = await kind.loaded()
    for _ in range(LAPSED_OF_OWNER):
        asked = await kind.ask(store)
        await kind.history.append(changes=store.lapse(asked.id, "")[1])
    with pytest.raises(LimitExceeded, match=f" of {called(1000)}"):
        await kind.ask(store)
    await kind.ask(store, owner=1001)
    with pytest.raises(LimitExceeded, match=f" of {called(1000)}"):
        await kind.ask(await kind.loaded())


async def test_no_id_begins_as_one_that_was_shown_in_the_last_hour() -> None:
    drawn = iter(["6d00aaaaaaaaaaaa", "6d00bbbbbbbbbbbb", "6d01cccccccccccc", "6d00dddddddddddd"])
    recent = Recent("apr", lambda prefix: f"{prefix}_{next(drawn)}")
    hour_us = 3_600_000_000
    ids = [recent.new_id(1000, expires_us=hour_us, now_us=0) for _ in range(2)]
    assert ids == ["apr_6d00aaaaaaaaaaaa", "apr_6d01cccccccccccc"]
    assert recent.new_id(1000, expires_us=0, now_us=2 * hour_us + 1) == "apr_6d00dddddddddddd"
    same = Recent("apr", lambda prefix: f"{prefix}_6d00aaaaaaaaaaaa")
    same.new_id(1000, expires_us=hour_us, now_us=0)
    with pytest.raises(LimitExceeded, match="hour"):
        same.new_id(1001, expires_us=hour_us, now_us=hour_us)


async def test_made_up_ids_are_not_found(kind: Kind) -> None:
    store = await kind.loaded()
    names = ("", "inp_", "inp_0123456789abcdef", "apr_0123456789abcdef", "x" * 5000, "inp_\0", "apr_\0")
    for name in names:
        for attempt in (kind.answer(store, name), store.wait(name)):
            with pytest.raises(LightagentError) as refused:
                await attempt
            assert refused.value.code == f"{kind.noun}_not_found"
        assert (store.find(name), store.is_open(name), store.lapse(name, "")) == (None, False, ([], []))
