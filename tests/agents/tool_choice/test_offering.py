"""A real daemon with 300 functions of an administrator's own: what the endpoint gets to see of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from lightagentd.agents.model_calls.compaction.window import BYTES_PER_TOKEN
from lightagentd.agents.tool_choice.choice import ALWAYS, LEAST, SEARCH_FUNCTION
from lightagentd.api import TurnEvent
from lightagentd.errors import AgentNotFound, InvalidArgument
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, Scripted, check_conversation, scripted
from tests.conftest import write
from tests.scripted_model import Script, call, say

TOML = "[limits]\nmax_tools = 24\n"
COLOURS = ["amber", "black", "cyan", "denim", "ebony", "fawn", "green", "honey", "ivory", "jade"]
THINGS = [
    *("anchor", "bottle", "candle", "dagger", "engine", "feather", "guitar", "hammer", "island", "jacket"),
    *("kettle", "ladder", "mirror", "needle", "orange", "pillow", "quartz", "ribbon", "saddle", "tunnel"),
    *(
        "umbrella",
        "violin",
        "walnut",
        "xylophone",
        "yoghurt",
        "zebra",
        "basket",
        "carpet",
        "dragon",
        "emerald",
    ),
]
FILE = """
from lightagentd.tool import Args, Context, Effect, Result, Tool, action


class PaintArgs(Args):
    coats: int = 1


class {cls}(Tool):
    "Paints a {thing}."

    name = "{thing}"
{actions}
"""
ACTION = """
    @action(effect=Effect.OBSERVE)
    async def {colour}(self, ctx: Context, args: PaintArgs) -> Result:
        "Paint the {thing} {colour}."
        return Result(output="a {colour} {thing}")
"""


def many_tools(paths: Paths) -> None:
    """Thirty tool files with ten actions each."""
    for thing in THINGS:
        actions = "".join(ACTION.format(colour=colour, thing=thing) for colour in COLOURS)
        text = FILE.format(cls=thing.capitalize(), thing=thing, actions=actions)
        write(paths.config / "tools" / f"{thing}.py", text)


def seen(test: Scripted) -> list[list[str]]:
    """The names of the functions in each request that the endpoint got."""
    return [
        [one["function"]["name"] for one in request.body.get("tools", [])] for request in test.model.requests
    ]


def results(events: Sequence[TurnEvent]) -> list[tuple[str, str, str]]:
    return [
        (event["tool"], event["result"], event["text"]) for event in events if event["type"] == "tool_result"
    ]


async def test_what_fits_the_prompt_is_offered_and_never_more_than_the_limit(paths: Paths) -> None:
    many_tools(paths)
    async with scripted(paths, [say("ok")], toml=TOML) as test:
        session = await test.session()
        for thing, colour in (("walnut", "jade"), ("zebra", "cyan"), ("kettle", "fawn")):
            await test.prompt(session, f"paint the {thing} {colour}, please")
            offered = seen(test)[-1]
            assert f"{thing}_{colour}" in offered
            assert len(offered) <= 24
            assert {SEARCH_FUNCTION, "skill_run", "human_ask", "bash_exec"} <= set(offered)
            order = [
                name for name in test.daemon.registry.shared.content.toolbox.functions if name in offered
            ]
            assert offered == order, "the order is the toolbox's, whatever was asked"


async def test_an_offer_stays_as_it_is_while_it_fits(paths: Paths) -> None:
    many_tools(paths)
    async with scripted(paths, [say("ok")], toml=TOML) as test:
        session = await test.session()
        for prompt in ("paint the walnut jade", "the jade walnut again, please", "paint the walnut jade"):
            await test.prompt(session, prompt)
        first, *others = seen(test)
        assert others == [first, first], "the endpoint's cache goes on"


async def test_what_the_search_finds_is_offered_from_the_next_step_on(paths: Paths) -> None:
    many_tools(paths)
    script: Script = [
        call(SEARCH_FUNCTION, {"query": "dragon in honey", "limit": 3}),
        call("dragon_honey", {"coats": 2}, call_id="call_2"),
        say("painted"),
        say("still there"),
    ]
    async with scripted(paths, script, toml=TOML) as test:
        session = await test.session()
        events = await test.prompt(session, "paint the zebra cyan")
        first, second, third = seen(test)
        assert "dragon_honey" not in first
        assert "dragon_honey" in second
        assert second == third, "nothing was added, so it stays as it is"
        assert len(second) <= 24
        (_, result, text), painted = results(events)
        assert result == "ok"
        assert text.splitlines()[0] == "dragon_honey(coats?): Paint the dragon honey."
        assert len(text.splitlines()) == 3
        assert painted == ("dragon", "ok", "a honey dragon")
        assert not session.record.tainted, "what a search says comes from no outside"
        await test.prompt(session, "and the kettle fawn")
        assert {"dragon_honey", "kettle_fawn"} <= set(seen(test)[-1])
        check_conversation(test.conversation(session))


async def test_a_function_that_was_left_out_runs_when_it_is_called(paths: Paths) -> None:
    many_tools(paths)
    script: Script = [call("emerald_ebony", {}), say("ok")]
    async with scripted(paths, script, toml=TOML) as test:
        events = await test.prompt(await test.session(), "paint the zebra cyan")
        assert results(events) == [("emerald", "ok", "a ebony emerald")]
        first, second = seen(test)
        assert "emerald_ebony" not in first
        assert "emerald_ebony" in second


async def test_a_session_keeps_what_it_used_over_a_restart(paths: Paths) -> None:
    many_tools(paths)
    script: Script = [
        call("emerald_ebony", {}),
        call(SEARCH_FUNCTION, {"query": "amber anchor", "limit": 1}),
        say("ok"),
    ]
    async with scripted(paths, script, toml=TOML) as test:
        session = await test.session()
        await test.prompt(session, "paint the zebra cyan")
    async with scripted(paths, [say("again")], toml=TOML) as test:
        session = test.agent.sessions[session.id]
        await test.prompt(session, "how is the weather")
        (offered,) = seen(test)
        assert {"emerald_ebony", "anchor_amber"} <= set(offered)


async def test_a_compacted_session_keeps_what_it_used(paths: Paths) -> None:
    many_tools(paths)
    long = "word " * 3000
    script: Script = [call("emerald_ebony", {}), say(long), say("A summary."), say("ok")]
    toml = f"{TOML}[models.providers.openai]\ncontext_tokens = 12000\n"
    async with scripted(paths, script, toml=toml) as test:
        session = await test.session()
        await test.prompt(session, "paint the zebra cyan")
        for _ in range(3):
            await test.prompt(session, f"and now {long}")
        assert [event.type for event in test.stored(topic="session") if event.type == "compacted"]
    async with scripted(paths, [say("again")], toml=toml) as test:
        session = test.agent.sessions[session.id]
        assert not any(message.tool_calls for message in session.messages)
        await test.prompt(session, "how is the weather")
        assert "emerald_ebony" in seen(test)[-1]


async def test_the_search_shows_what_the_agent_may_use_and_nothing_else(paths: Paths) -> None:
    many_tools(paths)
    names = ", ".join([*THINGS[:5], "systemd"])
    script: Script = [
        call(SEARCH_FUNCTION, {"query": "paint dragon anchor restart a unit", "limit": 30}),
        call(SEARCH_FUNCTION, {"query": "fly to the moon"}, call_id="call_2"),
        say("ok"),
    ]
    front = f"tools: [{names}]\neffects: [observe]"
    async with scripted(paths, script, toml=TOML, front=front) as test:
        events = await test.prompt(await test.session(), "paint the anchor jade")
        (_, result, text), (_, nothing, said) = results(events)
        found = {line.partition("(")[0] for line in text.splitlines()}
        assert result == nothing == "ok"
        assert "anchor_jade" in found
        assert {name.partition("_")[0] for name in found} <= {*THINGS[:5], "systemd"}
        assert not found & {"systemd_restart", SEARCH_FUNCTION}
        assert "fits these words" in said


async def test_while_a_plan_is_drafted_nothing_else_is_chosen_or_found(paths: Paths) -> None:
    many_tools(paths)
    script: Script = [
        call(SEARCH_FUNCTION, {"query": "restart a unit, write a file", "limit": 30}),
        say("ok"),
    ]
    async with scripted(paths, script, toml=TOML) as test:
        session = await test.session()
        await test.daemon.service.plans.begin(ME, session.id)
        events = await test.prompt(session, "restart the unit nginx and write a file")
        ((_, _, text),) = results(events)
        functions = test.daemon.registry.shared.content.toolbox.functions
        for name in [*seen(test)[0], *(line.partition("(")[0] for line in text.splitlines())]:
            assert functions[name].effect in (None, "observe"), name


async def test_a_small_window_has_room_for_fewer(paths: Paths) -> None:
    """Else the functions alone would be more than the window of many a model on one's own machine."""
    toml = '[limits]\nmax_tools = 200\n[models.known."openai/x"]\ncontext_tokens = 8192\n'
    async with scripted(paths, [say("ok")], toml=toml) as test:
        await test.prompt(await test.session(), "which processes use the most memory?")
        (offered,) = seen(test)
        assert LEAST <= len(offered) < 30
        assert {SEARCH_FUNCTION, "skill_run", "proc_list"} <= set(offered)
        assert len(json.dumps(test.model.requests[0].body)) / BYTES_PER_TOKEN < 8192 * 0.8
        found = await test.daemon.service.tools.select(ME, agent="test", prompt="memory", limit=5)
        assert not found.all_offered
        assert found.max_tools == len(offered)


async def test_where_all_can_be_offered_all_are_and_no_search(paths: Paths) -> None:
    async with scripted(paths, [say("ok")], toml="[limits]\nmax_tools = 200\n") as test:
        await test.prompt(await test.session(), "go")
        (offered,) = seen(test)
        assert SEARCH_FUNCTION not in offered
        assert set(ALWAYS) - {SEARCH_FUNCTION} <= set(offered)
        assert not test.daemon.registry.shared.content.toolbox.has_index, "nothing had to be ranked"


async def test_an_unknown_name_is_answered_with_what_has_its_words(paths: Paths) -> None:
    script: Script = [call("service_bounce", {}), say("ok")]
    async with scripted(paths, script) as test:
        events = await test.prompt(await test.session(), "go")
        ((_, result, text),) = results(events)
        assert result == "tool_not_found"
        assert "systemd_restart" in text


async def test_the_choice_can_be_asked_for(paths: Paths) -> None:
    many_tools(paths)
    async with scripted(paths, [say("ok")], toml=TOML, front="effects: [observe]") as test:
        service = test.daemon.service
        found = await service.tools.select(ME, agent="test", prompt="paint the walnut jade", limit=5)
        assert found.functions > 300
        assert (found.max_tools, found.all_offered) == (24, False)
        assert found.offered <= 24
        best = found.choices[0]
        assert (best.function, best.tool, best.action) == ("walnut_jade", "walnut", "jade")
        assert (best.why, best.effect) == ("fits", "observe")
        assert set(best.words) >= {"walnut", "jade"}
        assert best.score > found.choices[1].score > 0
        assert sum(one.why != "always" for one in found.choices) <= 5
        assert SEARCH_FUNCTION in [one.function for one in found.choices if one.why == "always"]
        everything = await service.tools.select(ME, agent="", prompt="restart nginx", limit=3)
        assert everything.choices[0].function == "systemd_restart"
        assert "systemd_restart" not in json.dumps([one.function for one in found.choices])
        with pytest.raises(AgentNotFound):
            await service.tools.select(ME, agent="nobody", prompt="x", limit=5)
        with pytest.raises(InvalidArgument):
            await service.tools.select(ME, agent="test", prompt="x", limit=0)
