"""A store of the administrator's own: found on the daemon's path, called in a thread, and never believed."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.errors import ConfigError, MemoryNotFound, Unavailable
from lightagentd.host.paths import Paths
from lightagentd.memory import own_store
from lightagentd.memory.entries import Entry
from tests.agents.scripted import ME, scripted
from tests.conftest import write
from tests.memory.stored import by_agent, by_person, entry, kinds, memories
from tests.scripted_model import call, say

SHELF = """
import asyncio
import sys
import threading
import time

released = threading.Event()
closed = []


class Shelf:
    "Keeps entries in this process; what it does wrong is set from outside."

    wrong = {}
    kept = {}

    async def _do(self, method):
        wrong = self.wrong.get(method)
        if asyncio.iscoroutinefunction(wrong):
            return await wrong()
        if callable(wrong):
            return wrong()
        if wrong == "raise":
            raise RuntimeError("the password is hunter2")
        if wrong == "exit":
            sys.exit(3)
        if wrong == "cancel":
            raise asyncio.CancelledError
        if wrong == "hang":
            await asyncio.Event().wait()
        if wrong == "block":
            released.wait()

    async def add(self, entry):
        await self._do("add")
        self.kept[entry.id] = entry

    async def get(self, owner, memory_id):
        if (found := await self._do("get")) is not None:
            return found
        entry = self.kept.get(memory_id)
        return entry if entry is not None and entry.owner == owner else None

    async def list(self, owner):
        if (found := await self._do("list")) is not None:
            return found
        return [entry for entry in self.kept.values() if entry.owner == owner]

    async def search(self, owner, query, *, agent, state, limit):
        if (found := await self._do("search")) is not None:
            return found
        return [entry for entry in await self.list(owner) if query in entry.text]

    async def update(self, entry):
        await self._do("update")
        self.kept[entry.id] = entry

    async def delete(self, owner, memory_id):
        await self._do("delete")
        self.kept.pop(memory_id, None)

    async def close(self):
        closed.append(threading.current_thread().name)


class Lacking:
    async def add(self, entry):
        pass

    def get(self, owner, memory_id):
        pass


class Failing(Shelf):
    def __init__(self):
        raise RuntimeError("no database")


class Exiting(Shelf):
    def __init__(self):
        sys.exit(1)


NUMBER = 7
"""
_numbers = itertools.count()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of its own for each test, on the path; gives `module:Class`."""
    name = f"own_shelf_{next(_numbers)}"
    write(tmp_path / "path" / f"{name}.py", SHELF)
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield f"{name}:Shelf"
    if name in sys.modules:
        sys.modules[name].released.set()
        del sys.modules[name]


def wrong(shelf: str, **methods: object) -> None:
    sys.modules[shelf.partition(":")[0]].Shelf.wrong = methods


async def test_it_keeps_and_finds_as_the_history_does(tmp_path: Path, shelf: str) -> None:
    async with memories(tmp_path, store=shelf) as found:
        kept = await found.remember(by_person("a disk"))
        proposed = await found.remember(by_agent("another disk", candidate=True))
        await found.remember(by_agent("of somebody else: disk", owner=2))
        assert [each.id for each in await found.search(1, "disk")] == [kept.id]
        await found.promote(1, proposed.id)
        assert {each.id for each in await found.search(1, "disk")} == {kept.id, proposed.id}
        await found.forget(1, kept.id)
        with pytest.raises(MemoryNotFound):
            await found.get(1, kept.id)
        assert kinds(found) == ["remembered", "proposed", "remembered", "promoted", "forgotten"]
        assert found._history.queries.state("memories") == {}
    module = sys.modules[shelf.partition(":")[0]]
    assert module.closed == ["memory-store"], "its own thread closes it"
    assert "memory-store" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        ("Missing", "no class Missing"),
        ("NUMBER", "no class NUMBER"),
        ("Lacking", "async methods get, list, search, update, delete, close"),
        ("Failing", "RuntimeError"),
        ("Exiting", "RuntimeError"),
    ],
)
async def test_one_that_cannot_be_used_is_an_error_of_the_configuration(
    tmp_path: Path, shelf: str, cls: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        async with memories(tmp_path, store=shelf.replace("Shelf", cls)):
            raise AssertionError("it started")
    assert "memory-store" not in [thread.name for thread in threading.enumerate()]


async def test_a_module_that_is_not_there_is_named(paths: Paths) -> None:
    with pytest.raises(ConfigError, match="no module no_such_module") as caught:
        async with scripted(paths, [say("x")], toml='[memory]\nstore = "no_such_module:Store"\n'):
            raise AssertionError("it started")
    assert "PYTHONPATH" in caught.value.suggestion


@pytest.mark.parametrize("how", ["raise", "exit", "cancel", "hang", "block"])
async def test_what_goes_wrong_in_it_fails_the_one_call(
    tmp_path: Path, shelf: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memories(tmp_path, store=shelf) as found:
        kept = await found.remember(by_person("a disk"))
        monkeypatch.setattr(own_store, "CALL_TIMEOUT_S", 0.3)
        wrong(shelf, list=how, add=how)
        with pytest.raises(Unavailable) as caught:
            await found.remember(by_person("another"))
        assert "hunter2" not in str(caught.value.to_dict())
        assert shelf in found.problems[0]
        assert kinds(found) == ["remembered"], "what was not kept is not in the history"
        sys.modules[shelf.partition(":")[0]].released.set()
        monkeypatch.setattr(own_store, "CALL_TIMEOUT_S", 60)
        wrong(shelf)
        assert await found.get(1, kept.id) == kept
        assert found.problems == []


async def test_a_call_that_runs_when_it_is_closed_fails_and_nothing_hangs(tmp_path: Path, shelf: str) -> None:
    async with memories(tmp_path, store=shelf) as found:
        began = threading.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        wrong(shelf, list=hang)
        asked = asyncio.create_task(found.list(1))
        await asyncio.to_thread(began.wait, 60)
        await found.close()
        with pytest.raises(Unavailable):
            await asked
        with pytest.raises(Unavailable):
            await found.list(1)


def _garbage() -> list[object]:
    sound = entry()
    return [
        {"a": 1},
        "text",
        7,
        [None],
        [{}],
        [entry(owner=2)],
        [sound.to_dict() | {"text": "two\nlines"}],
        [sound, "x"],
        iter([sound]),
    ]


@pytest.mark.parametrize("answer", _garbage())
async def test_garbage_is_refused_as_a_whole(tmp_path: Path, shelf: str, answer: object) -> None:
    async with memories(tmp_path, store=shelf) as found:
        wrong(shelf, list=lambda: answer, search=lambda: answer)
        with pytest.raises(Unavailable):
            await found.list(1)
        with pytest.raises(Unavailable):
            await found.search(1, "x")
        assert "no memory" in found.problems[0]


async def test_it_cannot_give_out_what_was_not_asked_for(tmp_path: Path, shelf: str) -> None:
    async with memories(tmp_path, store=shelf) as found:
        for answer in (entry(), entry(owner=2)):
            wrong(shelf, get=lambda answer=answer: answer)
            with pytest.raises(Unavailable):
                await found.get(1, "mem_0000000000000000")
        given: list[Entry] = [
            entry(text="kept"),
            entry(text="candidate", state="candidate"),
            entry(text="of another agent", agent="web"),
            entry(text="expired", expires_us=1),
        ]
        wrong(shelf, search=lambda: given)
        assert [each.text for each in await found.search(1, "x", agent="ops")] == ["kept"]


async def test_a_failing_store_ends_no_turn_and_status_names_it(paths: Paths, shelf: str) -> None:
    script = [call("memory_remember", {"text": "x"}), say("done"), say("again")]
    async with scripted(paths, script, toml=f'[memory]\nstore = "{shelf}"\n') as test:
        session = await test.session()
        wrong(shelf, list="raise")
        events = await test.prompt(session)
        assert [event["result"] for event in events if event["type"] == "tool_result"] == ["unavailable"]
        assert events[-1]["type"] == "done"
        assert not session.record.tainted
        system = test.model.requests[-1].body["messages"][0]["content"]
        assert "cannot be read just now" in system
        assert any(shelf in problem for problem in (await test.daemon.service.manager.status(ME)).problems)
        wrong(shelf)
        await test.prompt(session)
        assert "cannot be read" not in test.model.requests[-1].body["messages"][0]["content"]
        assert not any(
            shelf in problem for problem in (await test.daemon.service.manager.status(ME)).problems
        )
