"""The ranking finds the right function among thousands, for prompts of all sorts and in bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
from lightagentd.agents.tool_choice.choice import rank
from lightagentd.agents.tool_choice.index import ToolIndex
from lightagentd.agents.tool_choice.words import HEAD_CHARS, TAIL_CHARS, asked
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message
from lightagentd.quoted import Prompt, quoted
from tests.agents.tool_choice.toolset import functions_in, invented, many

TOTAL = 2000


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    """This checkout's tools, as the real worker describes them, among 2,000 functions."""
    base = tmp_path_factory.mktemp("la")

    async def made() -> Toolbox:
        async with Daemon(Paths(config=base / "etc", state=base / "state", runtime=base / "run")) as daemon:
            described = [*await daemon.pool.describe(), *daemon.registry.shared.builtins.described()]
            return toolbox_of(many(described, TOTAL))

    return asyncio.run(made())


def rate(toolbox: Toolbox, prompts: list[tuple[frozenset[str], str]], first: int) -> float:
    """How many of the prompts have a right function among the first ones, as a part of all."""
    hits = sum(
        any(hit.function in right for hit in toolbox.index.rank(prompt, limit=first))
        for right, prompt in prompts
    )
    return hits / len(prompts)


async def test_the_right_function_is_among_the_first_ten(toolbox: Toolbox) -> None:
    tuned, held_out = functions_in("prompts.txt"), functions_in("held_out.txt")
    assert len(toolbox.functions) == TOTAL
    assert {function for right, _ in (*tuned, *held_out) for function in right} <= set(toolbox.functions)
    assert len(held_out) >= 100
    assert rate(toolbox, tuned, 10) >= 0.95
    assert rate(toolbox, [*tuned, *held_out], 10) >= 0.95
    assert rate(toolbox, held_out, 10) >= 0.92, "no word was chosen for these"


def test_no_prompt_stands_twice() -> None:
    prompts = [prompt for name in ("prompts.txt", "held_out.txt") for _, prompt in functions_in(name)]
    assert len(set(prompts)) == len(prompts)


ODD = {
    "slashes": "/" * 1_000_000,
    "one word": "x" * 1_000_000,
    "words": "disk space full " * 60_000,
    "different words": " ".join(f"word{number}" for number in range(120_000)),
    "half characters": "\ud800 \x00" * 300_000,
    "grown by normalizing": "\u0130\ufdfa" * 500_000,
    "names": "a-.b" * 250_000,
    "options": " --" * 330_000,
    "nothing": "",
    "marks": "?!? ... \u202e\u200b",
    "another script": "ディスクの空き容量を確認して " * 50_000,
}


@pytest.mark.parametrize("prompt", ODD.values(), ids=ODD)
async def test_odd_and_long_prompts_are_harmless(toolbox: Toolbox, prompt: str) -> None:
    assert len(asked(prompt)) <= HEAD_CHARS + TAIL_CHARS + 1
    assert len(toolbox.index.rank(prompt)) <= 300


async def test_what_stands_before_and_after_a_long_paste_counts(toolbox: Toolbox) -> None:
    paste = "lorem ipsum dolor sit amet " * 40_000
    for prompt in (f"restart nginx.service {paste}", f"{paste} restart nginx.service"):
        assert "systemd_restart" in [hit.function for hit in toolbox.index.rank(prompt, limit=10)]
    attached = Prompt("restart nginx.service").with_blocks(quoted("a.log", "weather forecast " * 10))
    said = Message(role="user", content=attached.text, question_chars=attached.question_chars)
    best, *_ = rank(toolbox.index, [said], frozenset(toolbox.functions))
    assert best.function == "systemd_restart", "what is attached chooses nothing"


def described(tool: str, **actions: str | dict[str, Any]) -> dict[str, Any]:
    """A tool whose actions are descriptions, or descriptions with a schema."""
    return {
        "name": tool,
        "description": "",
        "path": "",
        "problem": "",
        "actions": [
            {
                "name": name,
                "description": said if isinstance(said, str) else said["description"],
                "effect": "change" if name.startswith("set") else "observe",
                "taints": False,
                "timeout_s": 1.0,
                "schema": {} if isinstance(said, str) else said["schema"],
            }
            for name, said in actions.items()
        ],
    }


def ranked(prompt: str, *tools: dict[str, Any]) -> list[str]:
    return [hit.function for hit in toolbox_of(list(tools)).index.rank(prompt)]


def test_each_part_of_a_function_counts() -> None:
    argument = {"properties": {"flavour": {"description": "Sweet.", "enum": ["vanilla", "mango"]}}}
    ice = described(
        "cafe", serve={"description": "Bring it.", "schema": argument}, listOpenTables="Where to sit."
    )
    for prompt in ("cafe", "serve", "bring", "flavour", "sweet", "mango"):
        assert ranked(prompt, ice, described("other", thing="Nothing."))[0] == "cafe_serve", prompt
    assert ranked("are tables open", ice)[0] == "cafe_listOpenTables"


def test_a_name_counts_more_than_a_mention() -> None:
    mentions = described("audit", report="Say who took a backup, where a backup is, and when.")
    assert ranked("backup", mentions, described("backup", take="Copy all."))[0] == "backup_take"


def test_a_question_finds_what_looks_and_an_order_what_changes() -> None:
    clock = described("clock", set_time="The time of the clock.", get_time="The time of the clock.")
    assert ranked("what is the time on the clock?", clock)[0] == "clock_get_time"
    assert ranked("set the time of the clock", clock)[0] == "clock_set_time"


def test_words_that_mean_the_same_are_found_and_shown_as_they_were_said() -> None:
    box = toolbox_of([described("unit", restart="Stop and start it."), described("cake", bake="Bake it.")])
    (hit,) = box.index.rank("please BOUNCE it")
    assert (hit.function, hit.words) == ("unit_restart", ("bounce",))


def test_schemas_that_are_none_do_no_harm() -> None:
    odd: list[Any] = [
        {"properties": []},
        {"properties": {"a": None}},
        {"properties": {"a": {"enum": "x", "description": None}}},
        {"properties": None},
    ]
    tools = [
        described(f"t{n}", act={"description": "Act.", "schema": schema}) for n, schema in enumerate(odd)
    ]
    assert len(ranked("act", *tools)) == len(odd)
    assert ToolIndex({}).rank("anything") == []


def test_the_invented_tools_are_the_same_each_time() -> None:
    assert invented(700) == invented(700)
    names = [f"{tool['name']}_{one['name']}" for tool in invented(1500) for one in tool["actions"]]
    assert len(set(names)) == len(names) == 1500
    assert max(map(len, names)) <= 64
