"""The policy of memory, on a real history: what is refused and which key said so, and what an agent reads."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config import configuration
from lightagentd.errors import ConfigError, InvalidArgument, MemoryNotFound, PolicyDenied
from lightagentd.events.types.memory import MemoryRemembered
from lightagentd.memory.admission import OPEN, rules_of
from lightagentd.memory.entries import MACHINE, Entry, entry_of
from lightagentd.memory.memories import Memories, Wanted
from tests.conftest import write
from tests.memory.stored import by_agent, by_person, entry, events, memories

HOUR_US = 3_600_000_000


def in_an_hour() -> int:
    return time.time_ns() // 1000 + HOUR_US


async def read(found: Memories, agent: str, *, owner: int = 1, session: str = "") -> set[str]:
    """What an agent's prompt has, which is also all that it can recall."""
    prompt = {each.text for each in await found.of_prompt(owner, agent, session)}
    words = " ".join(prompt) or "x"
    recalled = await found.recall(owner, words[:1000], agent=agent, session=session, limit=50)
    assert {each.text for each in recalled} == prompt
    return prompt


REFUSED: dict[str, tuple[dict[str, Any], Wanted]] = {
    "allowed_sources": ({"allowed_sources": ["user"]}, by_agent("something")),
    "scopes": ({"scopes": ["user"]}, by_agent("something")),
    "min_confidence": ({"min_confidence": 0.9}, by_agent("something", confidence=None)),
    "enforce_expires_at": ({"enforce_expires_at": True}, by_agent("something")),
    "min_write_length": ({"min_write_length": 10}, by_agent("something")),
    "max_entries": ({"max_entries": 1}, by_agent("something")),
    "reject_duplicate_writes": ({"reject_duplicate_writes": True}, by_agent("THERE, already!")),
    "reject_write_patterns": (
        {"reject_write_patterns": ["x", "re:.*some ?THING.*", "*some*"]},
        by_agent("SOMEthing"),
    ),
}


@pytest.mark.parametrize("key", REFUSED)
@pytest.mark.parametrize("of_agent", [True, False])
async def test_a_write_is_refused_by_the_key_that_says_so(tmp_path: Path, key: str, of_agent: bool) -> None:
    policy, wanted = REFUSED[key]
    async with memories(tmp_path) as found:
        await found.remember(by_agent("there already", expires_us=in_an_hour()))
    said: dict[str, Any] = {"agents": {"ops": policy}} if of_agent else {"policy": policy}
    async with memories(tmp_path, **said) as found:
        with pytest.raises(PolicyDenied) as caught:
            await found.remember(wanted)
        assert caught.value.field == key
        assert key in caught.value.suggestion
        assert len(await found.list(1, state="all")) == 1
        (told,) = events(found, "memory.refused")
        assert (told.owner, told.agent) == (1, "ops")
        assert told.data is not None
        assert (told.data["key"], told.data["chars"]) == (key, len(wanted.text))
        assert wanted.text not in str(told.data)
        if of_agent:
            assert (await found.remember(by_agent("something", agent="other"))).state == "kept"


async def test_a_pattern_that_backtracks_for_ever_refuses_and_holds_nothing_up(tmp_path: Path) -> None:
    async with memories(tmp_path, policy={"reject_write_patterns": ["re:(a|a)*b"]}) as found:
        with pytest.raises(PolicyDenied, match="takes too long"):
            await found.remember(by_agent("a" * 60))
        assert (await found.remember(by_agent("short"))).state == "kept"


def test_what_is_wrong_in_the_configuration_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path / "lightagentd.toml", '[memory.policy]\nreject_write_patterns = ["re:("]\n')
    with pytest.raises(
        ConfigError, match=r"lightagentd.toml:2: memory.policy.reject_write_patterns: .*regular"
    ):
        configuration.load(file.parent)
    write(file, '[memory.stores.v]\nkind = "mem0"\nsettings.config.llm.config.api_key = "sk-12345"\n')
    with pytest.raises(
        ConfigError, match=r"toml:3: memory.stores.v.settings: a key stands in api_key"
    ) as caught:
        configuration.load(file.parent)
    assert "12345" not in str(caught.value.to_dict())
    write(file, '[memory.policy]\nstore = "vectors"\n')
    with pytest.raises(ConfigError, match=r"'vectors', which is not in \[memory.stores\]"):
        configuration.load(file.parent)


def test_an_agent_narrows_and_never_widens_the_policy() -> None:
    own = configuration.MemoryPolicy(
        allowed_sources=["user", "agent"], min_confidence=0.5, max_entries=10, default_ttl_s=60, namespace="a"
    )
    more = configuration.MemoryPolicy(
        allowed_sources=["agent", "tool"],
        scopes=["team"],
        min_confidence=0.1,
        max_entries=20,
        default_ttl_s=30,
        trust="person",
        namespace="b",
        reject_duplicate_writes=True,
    )
    rules = rules_of(own, more)
    assert rules.sources == frozenset({"agent"})
    assert rules.scopes == frozenset({"team"})
    assert (rules.min_confidence, rules.max_entries, rules.ttl_us) == (0.5, 10, 30_000_000)
    assert (rules.namespace, rules.of_people, rules.no_duplicates) == ("b", True, True)
    plain = configuration.MemoryPolicy()
    assert rules_of(plain, plain) is rules_of(plain, None) is OPEN, "nothing to check costs nothing"


async def test_what_says_no_end_gets_one_and_keeps_it_when_it_is_said_again(tmp_path: Path) -> None:
    async with memories(tmp_path, policy={"default_ttl_s": 3600, "enforce_expires_at": True}) as found:
        kept = await found.remember(by_agent("for an hour", expires_us=None, confidence=0.3))
        assert kept.expires_us == kept.created_us + HOUR_US
        again = await found.remember(by_agent("for an HOUR", expires_us=None, confidence=None))
        assert (again.expires_us, again.confidence, again.id) == (kept.expires_us, 0.3, kept.id)
        await found._keeping.put(entry(text="for ever"), MemoryRemembered)
        assert await read(found, "ops") == {"for an HOUR"}


async def test_an_agent_reads_what_its_filter_lets_through(tmp_path: Path) -> None:
    agents: dict[str, dict[str, Any]] = {
        "pool": {"scopes": ["team", "user"]},
        "sure": {"scopes": ["team"], "min_confidence": 0.7},
        "people": {"scopes": ["team", "user"], "trust": "person"},
        "picky": {"scopes": ["team", "user"], "agents": ["web"]},
        "clean": {"scopes": ["team", "user"], "allowed_sources": ["agent"]},
    }
    async with memories(tmp_path, agents=agents) as found:

        async def add(maker: str, text: str, **more: Any) -> Entry:
            return await found.remember(by_agent(text, agent="", from_agent=maker, scope="team", **more))

        await add("pool", "of pool", confidence=0.9)
        await add("picky", "unsure of picky", confidence=0.5)
        proposed = await add("clean", "from outside", candidate=True, confidence=0.9)
        outside = await add("pool", "promoted", source="tool", candidate=True, confidence=0.9)
        await found.promote(1, outside.id, why="I looked")
        await found.remember(by_person("a person's own"))
        await found.remember(by_person("for the pool", scope="team"))
        await found.remember(by_agent("somebody else's", owner=2, agent="", from_agent="pool", scope="team"))
        by_hand = "for the pool"
        pooled = {"of pool", "unsure of picky", "promoted", by_hand}
        assert await read(found, "pool") == pooled | {"a person's own"}
        assert await read(found, "sure") == pooled - {"unsure of picky"}
        assert await read(found, "people") == {"promoted", "a person's own", by_hand}
        assert await read(found, "picky") == {"a person's own", by_hand}
        assert await read(found, "clean") == {"of pool", "unsure of picky"}
        assert await read(found, "another") == {"a person's own"}, (
            "who does not name the pool has no part in it"
        )
        assert await read(found, "pool", owner=2) == {"somebody else's"}
        with pytest.raises(PolicyDenied):
            await add("another", "not in the pool")
        assert (await found.get(1, proposed.id)).state == "candidate"


async def test_the_pool_is_added_to_and_never_written_over_by_another_agent(tmp_path: Path) -> None:
    team = {"scopes": ["team"]}
    async with memories(tmp_path, agents={"a": team, "b": team}) as found:
        first = await found.remember(
            by_agent("the same", agent="", from_agent="a", scope="team", trace_id="t")
        )
        other = await found.remember(
            by_agent("the same", agent="", from_agent="b", scope="team", confidence=0.1)
        )
        assert first.id != other.id
        assert await found.get(1, first.id) == first
        for who, one in (("b", first), ("a", other), ("c", first)):
            with pytest.raises(PolicyDenied):
                await found.forget_by_agent(1, one.id, who)
        await found.forget_by_agent(1, first.id, "a")
        assert [each.from_agent for each in await found.list(1, scope="team")] == ["b"]


async def test_what_is_for_one_session_is_read_in_it_alone_and_goes_with_it(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        await found.remember(by_agent("only here", scope="session", session="ses_1"))
        await found.remember(by_agent("only here", scope="session", session="ses_2"))
        await found.remember(by_agent("everywhere", session="ses_1"))
        assert await read(found, "ops", session="ses_1") == {"only here", "everywhere"}
        assert await read(found, "ops", session="ses_3") == await read(found, "ops") == {"everywhere"}
        await found.end_session(1, "ses_1")
        assert await read(found, "ops", session="ses_1") == {"everywhere"}
        assert await read(found, "ops", session="ses_2") == {"only here", "everywhere"}
        with pytest.raises(InvalidArgument):
            await found.remember(by_agent("nowhere", scope="session"))


async def test_namespaces_are_apart_and_a_persons_words_are_for_all(tmp_path: Path) -> None:
    one = {"namespace": "one", "scopes": ["user", "team"]}
    agents = {"a": one, "b": one, "c": {"namespace": "two", "scopes": ["user", "team"]}}
    async with memories(tmp_path, agents=agents) as found:
        kept = await found.remember(by_agent("in one", agent="", from_agent="a", scope="team"))
        assert kept.namespace == "one"
        await found.remember(by_person("for all"))
        assert await read(found, "b") == {"in one", "for all"}
        assert await read(found, "c") == {"for all"}


async def test_only_an_administrator_keeps_facts_about_the_machine(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        with pytest.raises(PolicyDenied, match="administrators alone"):
            await found.remember(by_person("The disk is old", scope="machine"))
        kept = await found.remember(by_person("The disk is old", scope="machine"), administrator=True)
        assert (kept.owner, kept.said_by) == (MACHINE, 1)
        proposed = await found.remember(
            by_agent("The fan is new", agent="", from_agent="ops", scope="machine")
        )
        assert (proposed.owner, proposed.state) == (1, "candidate"), "an agent only proposes"
        assert await read(found, "ops", owner=2) == {"The disk is old"}
        with pytest.raises(PolicyDenied, match="administrators alone"):
            await found.promote(1, proposed.id)
        fact = await found.promote(1, proposed.id, administrator=True, why="I saw it")
        assert (fact.owner, fact.from_agent, fact.promoted_by, fact.promoted_why) == (
            MACHINE,
            "ops",
            1,
            "I saw it",
        )
        for owner in (1, 2):
            assert await read(found, "any", owner=owner) == {"The disk is old", "The fan is new"}
        assert await found.list(1, state="all") == []
        with pytest.raises(MemoryNotFound):
            await found.forget(1, kept.id)
        with pytest.raises(MemoryNotFound):
            await found.forget_by_agent(1, kept.id, "ops")
        assert await read(found, "x") == {"The disk is old", "The fan is new"}
    async with memories(tmp_path, agents={"ops": {"scopes": ["user"]}}) as found:
        assert await read(found, "ops", owner=2) == set(), "an agent may leave them out"
        await found.forget(MACHINE, kept.id)


def _names_of_others() -> list[str]:
    person = next((one.pw_name for one in pwd.getpwall() if 1000 <= one.pw_uid < 60_000), None)
    fixed = [
        "the key lies in /home/ann/.ssh",
        "see ~bob",
        "as in mem_0123456789abcdef",
        "uid 1234 may",
        "in /root",
    ]
    return [*fixed, *([f"{person.upper()} is away"] if person else [])]


@pytest.mark.parametrize("text", _names_of_others())
async def test_a_promoted_lesson_cannot_show_all_users_what_is_one_users(tmp_path: Path, text: str) -> None:
    async with memories(tmp_path) as found:
        wanted = by_agent(text, agent="", from_agent="ops", scope="machine", source="reflection")
        proposed = await found.remember(wanted)
        with pytest.raises(PolicyDenied, match="agents of all users would read this"):
            await found.promote(1, proposed.id, administrator=True)
        assert (await found.get(1, proposed.id)).state == "candidate"
        assert await found.list(MACHINE, state="all") == []
        mine = await found.remember(by_agent(text, source="reflection"))
        await found.promote(1, mine.id)
        assert await read(found, "ops") == {text}
        assert await read(found, "ops", owner=2) == set(), "a lesson about another is its own user's alone"


async def test_reflection_only_proposes_and_what_was_rejected_does_not_come_back(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        lesson = await found.remember(by_agent("Look at the log, first.", source="reflection"))
        same = await found.remember(by_agent("look at the LOG first", source="reflection"))
        assert (lesson.state, same) == ("candidate", lesson)
        await found.reject(1, lesson.id)
        with pytest.raises(PolicyDenied, match="turned this down"):
            await found.remember(by_agent("Look at the log first!", source="reflection"))


async def test_an_entry_keeps_whose_word_it_is_and_who_promoted_it(tmp_path: Path) -> None:
    async with memories(tmp_path) as found:
        wanted = by_agent(
            "x is y", source="tool", candidate=True, why="it is from a page", session="ses_1", trace_id="t1"
        )
        proposed = await found.remember(wanted)
        await found.promote(1, proposed.id, why="  I  checked\nit ")
        with pytest.raises(InvalidArgument):
            await found.promote(1, (await found.remember(by_agent("z", candidate=True))).id, why="x" * 201)
    async with memories(tmp_path) as found:
        kept = await found.get(1, proposed.id)
        assert (kept.said_by, kept.from_agent, kept.trace_id, kept.source) == (1, "ops", "t1", "tool")
        assert (kept.proposed_why, kept.promoted_by, kept.promoted_why) == (
            "it is from a page",
            1,
            "I checked it",
        )
        assert kept.promoted_us == kept.updated_us
        again = await found.remember(by_agent("X is y", confidence=None, expires_us=None, trace_id="t2"))
        assert (again.id, again.promoted_by, again.trace_id) == (kept.id, 1, "t2")


def test_an_entry_of_version_0_1_is_read_with_what_it_says_of_itself() -> None:
    fields = ("id", "owner", "agent", "text", "tags", "source", "state", "session", "trace_id", "created_us")
    more = ("updated_us", "expires_us", "confidence")
    stored = {name: value for name, value in entry().to_dict().items() if name in (*fields, *more)}
    found = entry_of(stored, 1)
    assert (found.scope, found.said_by, found.from_agent) == ("agent", 1, "ops")
    assert entry_of({**stored, "agent": "", "source": "person"}, 1).scope == "user"
    wrong: list[dict[str, Any]] = [
        {"scope": []},
        {"said_by": "1"},
        {"promoted_by": 1 << 40},
        {"from_agent": None},
    ]
    for change in wrong:
        with pytest.raises(ValueError, match=r"\w"):
            entry_of({**stored, **change}, 1)


def test_no_user_owns_what_the_machine_knows() -> None:
    with pytest.raises((KeyError, OverflowError)):
        pwd.getpwuid(MACHINE)
    assert os.getuid() != MACHINE
