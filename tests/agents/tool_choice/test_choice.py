"""What is chosen for a prompt, how much of it, and how long it is kept."""

from __future__ import annotations

from lightagentd.agents.tool_calls.toolbox import toolbox_of
from lightagentd.agents.tool_choice.choice import (
    ALWAYS,
    SEARCH_FUNCTION,
    choose,
    fits,
    named_in,
    rank,
)
from lightagentd.agents.tool_choice.index import Hit
from lightagentd.daemon.daemon import Daemon
from lightagentd.llm.protocol import Function, Message, ToolCall
from tests.agents.tool_choice.toolset import invented

MANY = frozenset([*ALWAYS, *(f"tool_{number}" for number in range(500))])


def hits(*names: str, score: float = 1.0) -> list[Hit]:
    return [Hit(function=name, score=score, words=()) for name in names]


def test_no_more_is_offered_than_the_limit_says() -> None:
    ranked = hits(*(f"tool_{number}" for number in range(200)))
    used = [f"tool_{number}" for number in range(300, 400)]
    for max_tools in (8, 9, 24, 64, 128):
        chosen = choose(ranked, MANY, used=used, max_tools=max_tools)
        assert len(chosen.chosen) == max_tools
        assert SEARCH_FUNCTION in chosen.always
        assert "skill_run" in chosen.always, "the model without a network needs it"
        assert len(chosen.hits) >= max_tools // 4
        assert chosen.hits[0].function == "tool_0"
        assert chosen.used[0] == "tool_300", "what was used last"


def test_what_every_conversation_needs_is_always_there() -> None:
    assert set(choose([], MANY, max_tools=64).chosen) == set(ALWAYS)


def test_only_what_the_agent_has_is_chosen() -> None:
    chosen = choose(hits("tool_1"), ["tool_1", "human_ask"], used=["tool_2", "gone"], max_tools=64)
    assert chosen.chosen == ("human_ask", "tool_1")


def test_what_hardly_fits_is_left_out_even_where_there_is_room() -> None:
    good = hits(*(f"tool_{number}" for number in range(20)), score=10.0)
    poor = hits(*(f"tool_{number}" for number in range(20, 90)), score=1.0)
    chosen = choose([*good, *poor], MANY, max_tools=64)
    assert [hit.function for hit in chosen.hits] == [f"tool_{number}" for number in range(20)]
    assert len(chosen.others) == 70


def test_the_search_counts_for_nothing_where_all_can_be_offered() -> None:
    functions = [Function(name=name, description="", parameters={}) for name in ("a", "b", SEARCH_FUNCTION)]
    assert fits(functions, 2)
    assert not fits(functions, 1)


def test_a_message_names_what_it_called_and_what_a_search_brought() -> None:
    call = ToolCall(id="1", name="git_list_tags", arguments="{}")
    assert named_in(Message(role="assistant", content="git_get_tag(id): no", tool_calls=(call,))) == [
        "git_list_tags"
    ]
    text = "git_get_tag(tag_id): Get it.\ngit_list_tags(limit?): git_delete_tag(x)\nNot one."
    found = Message(role="tool", content=text, name=SEARCH_FUNCTION, tool_call_id="1")
    assert named_in(found) == ["git_get_tag", "git_list_tags"]
    other = Message(role="tool", content=text, name="bash_exec", tool_call_id="1")
    assert named_in(other) == [], "what a command prints adds nothing"


def test_the_newest_prompt_counts_most_and_what_was_said_before_a_little() -> None:
    index = toolbox_of(invented(1500)).index
    among = frozenset(hit.function for word in ("kafka", "invoice", "list") for hit in index.rank(word))
    before = Message(role="user", content="list the kafka topics")
    answer = Message(role="assistant", content="There are three.")
    prompt = Message(role="user", content="now the invoices")
    alone = [hit.function for hit in rank(index, [prompt], among)]
    after = [hit.function for hit in rank(index, [before, answer, prompt], among)]
    assert alone[0].startswith("invoice_")
    assert after[0].startswith("invoice_")
    assert not any(name.startswith("kafka_") for name in alone)
    assert any(name.startswith("kafka_") for name in after)
    assert rank(index, [], among) == []


async def test_a_stock_agent_is_offered_all_that_it_has(daemon: Daemon) -> None:
    registry = daemon.registry
    ops = registry.shared.content.definitions.agents["ops"]
    toolbox, offers = registry.shared.content.toolbox, registry.shared.offers
    everything = offers.allowed(toolbox, ops, change=True, plan="", child=False)
    assert fits(everything, daemon.now.config.limits.max_tools)
