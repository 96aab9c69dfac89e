"""Further stores that find memories, chosen per agent: none can lie, hang or end so that it hurts a turn."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ConfigError
from lightagentd.host.paths import Paths
from lightagentd.memory.memories import Memories
from tests.agents.scripted import ME, scripted
from tests.conftest import write
from tests.memory.stored import by_agent, by_person, memories
from tests.scripted_model import call, say

SHELF = """
import sys
import threading

released = threading.Event()
answer = []
"What gives the answer instead, if anything does."
kept = []
forgotten = []


class Plain:
    "Takes texts by user; its answer may be set from outside."

    def __init__(self, prefix=""):
        self.prefix = prefix

    def store(self, data, user_id):
        kept.append((user_id, self.prefix + data))

    def retrieve(self, query, user_id):
        if answer:
            return answer[0]()
        return [text for user, text in kept if user == user_id]


class WithIds(Plain):
    async def store(self, data, user_id, memory_id):
        kept.append((user_id, memory_id))

    async def forget(self, memory_id, user_id):
        forgotten.append((user_id, memory_id))


class Lacking:
    def store(self, data, user_id):
        pass


class Locked(Plain):
    def __init__(self):
        raise RuntimeError("It is in use.")


class Failing(Plain):
    def store(self, data, user_id):
        raise ConnectionError("it is gone, and the password is hunter2")

    retrieve = store
"""
_numbers = itertools.count()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of its own for each test, on the path; gives its name."""
    name = f"further_shelf_{next(_numbers)}"
    write(tmp_path / "path" / f"{name}.py", SHELF)
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield name
    if name in sys.modules:
        sys.modules[name].released.set()
        del sys.modules[name]


def settings(kind: str, **more: Any) -> dict[str, Any]:
    return {"stores": {"shelf": {"kind": kind, **more}}, "agents": {"ops": {"store": "shelf"}}}


async def recalled(found: Memories, owner: int = 1, agent: str = "ops", query: str = "disk") -> list[str]:
    answer = await found.recall(owner, query, agent=agent, session="", limit=10)
    assert {each.owner for each in answer} <= {owner}
    return [each.text for each in answer]


async def test_it_finds_for_the_agent_that_names_it_and_for_no_other(tmp_path: Path, shelf: str) -> None:
    async with memories(tmp_path, **settings(f"{shelf}:Plain")) as found:
        await found.remember(by_agent("a hard drive"))
        await found.remember(by_agent("the disk"))
        await found.remember(by_agent("a hard drive of another", owner=2))
        await found.remember(by_agent("of an agent without it", agent="web"))
        await found.remember(by_agent("proposed", candidate=True))
        assert await recalled(found) == ["a hard drive", "the disk"], "its answers come first, and each once"
        assert await recalled(found, agent="web") == []
        assert await recalled(found, owner=2) == ["a hard drive of another"]
        kept = sys.modules[shelf].kept
        assert kept == [("1", "a hard drive"), ("1", "the disk"), ("2", "a hard drive of another")]
        assert found.problems == []


async def test_it_hears_of_what_is_promoted_and_of_what_is_forgotten(tmp_path: Path, shelf: str) -> None:
    async with memories(tmp_path, **settings(f"{shelf}:WithIds")) as found:
        one = await found.remember(by_agent("proposed", candidate=True))
        module = sys.modules[shelf]
        assert module.kept == []
        await found.promote(1, one.id)
        await found.remember(by_agent("proposed"))
        assert module.kept == [("1", one.id)]
        assert await recalled(found) == ["proposed"]
        await found.forget(1, one.id)
        assert module.forgotten == [("1", one.id)]


async def test_it_cannot_lie_about_whose_or_what_something_is(tmp_path: Path, shelf: str) -> None:
    async with memories(tmp_path, **settings(f"{shelf}:WithIds")) as found:
        mine = await found.remember(by_agent("mine"))
        theirs = await found.remember(by_agent("theirs", owner=2))
        other = await found.remember(by_agent("of another agent", agent="web"))
        proposed = await found.remember(by_agent("a candidate", candidate=True))
        lies: list[object] = [
            theirs.id,
            "theirs",
            {"id": theirs.id, "text": "mine"},
            {"id": "mem_0000000000000000", "text": "made up"},
            {"metadata": {"memory_id": theirs.id}},
            proposed.id,
            "made up",
            7,
            None,
            ["mine"],
            {"text": 7},
        ]
        for lie in lies:
            sys.modules[shelf].answer[:] = [lambda lie=lie: [lie, mine.id, {"memory": "mine"}, mine.id]]
            assert await recalled(found) == ["mine"], lie
            assert "shelf" in found.problems[0]
            assert "1 of its answers" in found.problems[0]
        both = {"results": [{"metadata": {"memory_id": mine.id}}, other.id]}
        sys.modules[shelf].answer[:] = [lambda: both]
        assert await recalled(found) == ["mine"], (
            "what another agent's is, is no lie, and not this one's to read"
        )
        assert found.problems == []
        for garbage in ("mine", 7, {"a": 1}, iter(["mine"])):
            sys.modules[shelf].answer[:] = [lambda garbage=garbage: garbage]
            assert await recalled(found, query="mine") == ["mine"], "the daemon's own search"
            assert "no list" in found.problems[0]


def _waiting(released: threading.Event) -> Callable[[], object]:
    return lambda: released.wait() or None


def _raising(error: BaseException) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


@pytest.mark.parametrize("how", ["blocks", "raises", "exits"])
async def test_one_that_is_slow_or_gone_leaves_the_daemons_own_search(
    tmp_path: Path, shelf: str, how: str
) -> None:
    async with memories(tmp_path, **settings(f"{shelf}:Plain", timeout_s=0.2)) as found:
        await found.remember(by_agent("the disk"))
        module = sys.modules[shelf]
        answers = {
            "blocks": _waiting(module.released),
            "raises": _raising(ConnectionError("the password is hunter2")),
            "exits": _raising(SystemExit(3)),
        }
        module.answer[:] = [answers[how]]
        assert await recalled(found) == ["the disk"]
        assert "shelf does not work as it should: retrieve" in found.problems[0]
        assert "hunter2" not in found.problems[0]
        assert ("no answer within 0.2 seconds" in found.problems[0]) == (how == "blocks")
        module.released.set()
        module.answer.clear()
    async with memories(tmp_path, **settings(f"{shelf}:Plain", timeout_s=30)) as found:
        assert await recalled(found) == ["the disk"]
        assert found.problems == []
    assert "memory-store" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("no_such_module:Store", {}, "No module named"),
        ("{}:Missing", {}, "AttributeError"),
        ("{}:Lacking", {}, "no method retrieve"),
        ("{}:Locked", {}, "RuntimeError: It is in use."),
        ("{}:Plain", {"settings": {"wrong": 1}}, "wrong"),
    ],
)
async def test_one_that_cannot_be_made_is_a_problem_and_no_more(
    tmp_path: Path, shelf: str, kind: str, more: dict[str, Any], why: str
) -> None:
    async with memories(tmp_path, **settings(kind.format(shelf), **more)) as found:
        assert why in found.problems[0]
        assert ".." not in found.problems[0]
        await found.remember(by_agent("the disk"))
        assert await recalled(found) == ["the disk"]


async def test_an_agent_that_names_a_store_that_is_not_there_goes_on(tmp_path: Path) -> None:
    async with memories(tmp_path, agents={"ops": {"store": "nowhere"}}) as found:
        await found.remember(by_agent("the disk"))
        assert await recalled(found) == ["the disk"]
        assert found.problems == ["An agent names a memory store that is not configured: nowhere."]


async def test_a_store_that_fails_ends_no_turn_and_status_names_it(paths: Paths, shelf: str) -> None:
    toml = f'[memory.stores.shelf]\nkind = "{shelf}:Failing"\n'
    script = [
        call("memory_remember", {"text": "the disk"}),
        call("memory_recall", {"query": "disk"}),
        say("done"),
    ]
    async with scripted(paths, script, toml=toml, front="memory: {store: shelf}") as test:
        events = await test.prompt(await test.session())
        results = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in results] == ["ok", "ok"]
        assert "the disk" in results[1]["text"]
        assert events[-1]["type"] == "done"
        problems = (await test.daemon.service.manager.status(ME)).problems
        assert any(
            "The memory store shelf" in problem and "ConnectionError" in problem for problem in problems
        )
        assert "hunter2" not in str(problems)


async def test_a_definition_cannot_name_code(paths: Paths) -> None:
    async with scripted(paths, [say("x")], front="memory: {store: 'os:system'}") as test:
        problems = (await test.daemon.service.manager.status(ME)).problems
        assert any("the key memory.store" in problem for problem in problems), problems


async def test_a_full_store_is_chosen_for_all_and_named_when_it_is_not_one(
    tmp_path: Path, shelf: str
) -> None:
    with pytest.raises(ConfigError, match="lacks the async methods"):
        async with memories(tmp_path, store=f"{shelf}:Plain") as found:
            await found.remember(by_person("x"))
