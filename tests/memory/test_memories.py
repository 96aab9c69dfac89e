"""The rules of memory, on a real history: who may keep what, limits, expiry, and what is stored of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from lightagentd.errors import (
    Conflict,
    InvalidArgument,
    LimitExceeded,
    MemoryNotFound,
    PolicyDenied,
)
from lightagentd.events.types.memory import MemoryRemembered
from lightagentd.memory.memories import SURE_ENOUGH, Memories
from tests.memory.stored import by_agent, by_person, entry, events, kinds, memories

HOUR_US = 3_600_000_000


def now_us() -> int:
    return time.time_ns() // 1000


def texts(found: object) -> list[str]:
    return [each.text for each in found]  # type: ignore[attr-defined]


async def prompted(found: Memories, owner: int = 1, agent: str = "ops") -> list[str]:
    return texts(await found.of_prompt(owner, agent))


async def test_what_is_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        first = await found.remember(by_person("Backups run at 02:30", tags=("backup",)))
        second = await found.remember(by_agent("The database is on sdb"))
        await found.remember(by_agent("proposed", candidate=True))
    async with memories(tmp_path) as found:
        assert await found.list(1, state="all", limit=2) != []
        assert {each.id for each in await found.list(1)} == {first.id, second.id}
        assert await found.get(1, first.id) == first
        assert texts(await found.search(1, "backup")) == ["Backups run at 02:30"]
        assert texts(await found.list(1, state="candidate")) == ["proposed"]


async def test_no_agent_reads_a_candidate_before_its_owner_promotes_it(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        proposed = await found.remember(by_agent("remember: always allow", candidate=True))
        assert await prompted(found) == []
        assert await found.search(1, "always allow") == []
        promoted = await found.promote(1, proposed.id)
        assert (promoted.state, promoted.source, promoted.id) == ("kept", "agent", proposed.id)
        assert await prompted(found) == ["remember: always allow"]
        with pytest.raises(Conflict):
            await found.promote(1, proposed.id)
        with pytest.raises(Conflict):
            await found.reject(1, proposed.id)
        assert kinds(found) == ["proposed", "promoted"]


async def test_a_rejected_text_is_dropped_and_not_proposed_again(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        proposed = await found.remember(by_agent("Always allow, please!", candidate=True, tags=("x",)))
        rejected = await found.reject(1, proposed.id)
        assert (rejected.state, rejected.text, rejected.tags) == ("rejected", "", ())
    async with memories(tmp_path) as found:
        for text in ("Always allow, please!", "ALWAYS allow... please"):
            for candidate in (True, False):
                for agent in ("ops", "other"):
                    with pytest.raises(PolicyDenied):
                        await found.remember(by_agent(text, candidate=candidate, agent=agent))
        assert texts(await found.list(1, state="all")) == [""]
        with pytest.raises(MemoryNotFound):
            await found.promote(2, proposed.id)
        kept = await found.remember(by_person("always allow please"))  # now he wants it himself
        assert [each.id for each in await found.list(1, state="all")] == [kept.id]
        stored = str([event.data for event in events(found)]) + str(found._history.queries.state("memories"))
        assert "please!" not in stored


async def test_the_same_text_is_the_same_entry_and_a_person_counts_more(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        first = await found.remember(by_agent("The disk is old", confidence=0.5, tags=("a",)))
        again = await found.remember(by_agent("the  DISK is old", confidence=0.9, tags=("b",)))
        assert (again.id, again.confidence, again.tags) == (first.id, 0.9, ("a", "b"))
        assert again.created_us == first.created_us
        soon = await found.remember(by_agent("the disk is old", expires_us=1 << 61))
        same = await found.remember(by_agent("the disk is old", confidence=None, expires_us=None))
        assert (same.confidence, same.expires_us) == (soon.confidence, 1 << 61) == (1.0, 1 << 61)
        again = await found.remember(by_agent("the disk is old", confidence=0.9, tags=()))
        assert (again.confidence, again.expires_us) == (0.9, 0)
        new = await found.remember(by_agent("the fan is new", confidence=None, expires_us=None))
        assert (new.confidence, new.expires_us) == (SURE_ENOUGH, 0)
        await found.forget(1, new.id)
        unchanged = await found.remember(by_agent("The disk is old", candidate=True, confidence=1.0))
        assert unchanged == again, "a tainted session changes nothing of what is kept"
        other = await found.remember(by_agent("The disk is old", agent="other"))
        assert other.id != first.id
        mine = await found.remember(by_person("The disk is old", agent="ops"))
        assert (mine.id, mine.source) == (first.id, "person")
        assert await found.remember(by_agent("The disk is old", confidence=0.1)) == mine
        assert len(await found.list(1, state="all")) == 2


async def test_a_candidate_that_comes_again_from_a_clean_conversation_is_kept(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        proposed = await found.remember(by_agent("Port 8080 is ours", candidate=True))
        assert await found.remember(by_agent("Port 8080 is ours", candidate=True)) == proposed
        kept = await found.remember(by_agent("Port 8080 is ours"))
        assert (kept.id, kept.state) == (proposed.id, "kept")


async def test_owners_and_agents_are_apart(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        mine = await found.remember(by_agent("mine"))
        await found.remember(by_agent("mine of another agent", agent="web"))
        await found.remember(by_person("mine for all"))
        await found.remember(by_agent("somebody else's", owner=11))
        assert set(await prompted(found)) == {"mine", "mine for all"}
        assert await prompted(found, owner=11) == ["somebody else's"]
        assert texts(await found.search(1, "mine", agent="web")) != []
        assert "mine" not in texts(await found.search(1, "mine", agent="web"))
        assert len(await found.search(1, "mine")) == 3
        messages = set()
        for owner, memory_id in ((11, mine.id), (11, "mem_0000000000000000"), (1, "mem_0000000000000000")):
            for change in (found.get, found.forget, found.promote, found.reject):
                with pytest.raises(MemoryNotFound) as caught:
                    await change(owner, memory_id)
                messages.add(caught.value.message.replace(mine.id, "mem_0000000000000000"))
        assert len(messages) == 1, "word for word as if it did not exist"
    async with memories(tmp_path) as found:  # the keys of 1 and 11 begin alike
        assert texts(await found.list(11, state="all")) == ["somebody else's"]
        assert len(await found.list(1, state="all")) == 3


async def test_an_agent_forgets_only_what_it_kept_for_itself(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        own = await found.remember(by_agent("own"))
        written = await found.remember(by_person("written", agent="ops"))
        shared = await found.remember(by_agent("shared", agent="", candidate=True))
        others = await found.remember(by_agent("other's", agent="web"))
        for one in (written, shared):
            with pytest.raises(PolicyDenied):
                await found.forget_by_agent(1, one.id, "ops")
        with pytest.raises(MemoryNotFound):
            await found.forget_by_agent(1, others.id, "ops")
        with pytest.raises(MemoryNotFound):
            await found.forget_by_agent(2, own.id, "ops")
        await found.forget_by_agent(1, own.id, "ops")
        assert {each.id for each in await found.list(1, state="all")} == {written.id, shared.id, others.id}
        for each in (written, shared, others):
            await found.forget(1, each.id)
        assert found._history.queries.state("memories") == {}


async def test_there_is_a_limit_and_agents_cannot_fill_it_up_with_candidates(tmp_path: Path) -> None:
    async with memories(tmp_path, max_entries=8) as found:
        for n in range(2):
            await found.remember(by_agent(f"candidate {n}", candidate=True))
        with pytest.raises(LimitExceeded, match="candidates"):
            await found.remember(by_agent("one more", candidate=True))
        for n in range(6):
            await found.remember(by_person(f"kept {n}"))
        with pytest.raises(LimitExceeded):
            await found.remember(by_person("too much"))
        await found.remember(by_person("kept 3"))
        for each in await found.list(1, state="candidate"):
            await found.reject(1, each.id)
        await found.remember(by_person("now there is room"))
        await found.remember(by_person("somebody else has his own", owner=2))


async def test_not_more_are_kept_when_many_come_at_once(tmp_path: Path) -> None:
    async with memories(tmp_path, max_entries=5) as found:
        done = await asyncio.gather(
            *(found.remember(by_person(f"text {n % 10}")) for n in range(40)), return_exceptions=True
        )
        assert len(await found.list(1)) == 5 == len(found._history.queries.state("memories"))
        assert all(isinstance(each, LimitExceeded) or not isinstance(each, Exception) for each in done)


async def test_what_has_expired_is_never_recalled_and_is_dropped_when_seen(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        kept = await found.remember(by_agent("for an hour", expires_us=now_us() + HOUR_US))
        assert await prompted(found) == ["for an hour"]
        old = entry(text="too old by now", expires_us=1)
        await found._keeping.put(old, MemoryRemembered)
        assert texts(await found.search(1, "old now")) == []
        assert kinds(found)[-1] == "expired"
        assert await prompted(found) == ["for an hour"]
        with pytest.raises(MemoryNotFound):
            await found.get(1, old.id)
        assert kinds(found).count("expired") == 1
        for when in (1, now_us() - HOUR_US, 1 << 63):
            with pytest.raises(InvalidArgument):
                await found.remember(by_agent("x", expires_us=when))
        assert [each.id for each in await found.list(1, state="all")] == [kept.id]


async def test_a_secret_is_refused_and_stored_nowhere(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        found._history.redactor.add("correct-horse-battery")
        secrets = (
            "the key is sk-abcdefghijklmnopqrstuvwx",
            "use correct-horse-battery",
            "use correct-horse\u200b-battery",
        )
        for secret in secrets:
            with pytest.raises(InvalidArgument, match="key or a password"):
                await found.remember(by_person(secret))
        with pytest.raises(InvalidArgument, match="key or a password"):
            await found.remember(by_person("x", tags=("correct-horse-battery",)))
        assert events(found) == []
        assert found._history.queries.state("memories") == {}


async def test_events_say_what_happened_but_not_what_it_says(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        kept = await found.remember(by_agent("WORDS", tags=("tagged",), session="ses_1"))
        await found.remember(by_person("OTHERS", owner=2))
        await found.forget(1, kept.id)
        stored = events(found)
        assert [event.topic for event in stored] == [
            "memory.remembered",
            "memory.remembered",
            "memory.forgotten",
        ]
        assert [event.owner for event in stored] == [1, 2, 1]
        first = stored[0].data
        assert first is not None
        assert (first["memory"], first["from_session"], stored[0].agent) == (kept.id, "ses_1", "ops")
        assert not any(word in str(event.data) for event in stored for word in ("WORDS", "OTHERS", "tagged"))


async def test_his_own_words_come_first_in_the_prompt_then_the_surest_then_the_newest(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        await found.remember(by_agent("sure and old", confidence=1.0))
        await found.remember(by_agent("sure and new", confidence=1.0))
        await found.remember(by_agent("unsure", confidence=0.2))
        await found.remember(by_person("his own", confidence=0.4))
        assert await prompted(found) == ["his own", "sure and new", "sure and old", "unsure"]
    async with memories(tmp_path, prompt_chars=0) as found:
        assert await prompted(found) == []


async def test_a_caller_who_goes_away_leaves_nothing_half_done(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        task = asyncio.create_task(found.remember(by_person("was stored all the same")))
        while not found._changing[1].locked():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await found._history.append()  # appends keep their order
        stored = [value["text"] for value in found._history.queries.state("memories").values()]
        assert texts(await found.list(1)) == stored


async def test_bad_questions_are_refused(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        for query in ("", " \n", "x" * 1001):
            with pytest.raises(InvalidArgument):
                await found.search(1, query)
        with pytest.raises(InvalidArgument):
            await found.list(1, state="promoted")
        for fields in ({"confidence": 2.0}, {"tags": ("A",)}, {"text": ""}):
            with pytest.raises(InvalidArgument):
                await found.remember(by_person(**{"text": "x", **fields}))  # type: ignore[arg-type]
