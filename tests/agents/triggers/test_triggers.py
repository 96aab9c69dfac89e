"""What triggers do with what happened: each thing counts once, and an agent is asked as the file says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from lightagentd.agents.triggers import triggers as engine
from lightagentd.agents.triggers.records import Firing, Happening
from lightagentd.errors import ConfigError, NotFound, Refused
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, until
from tests.agents.triggers.rig import (
    at_rest,
    counts,
    happened,
    running,
    taken,
    told,
    trigger,
)
from tests.conftest import write
from tests.scripted_model import say


async def test_what_happened_is_outside_text_below_the_question(paths: Paths) -> None:
    trigger(paths, prompt="look at {what}, {{not}} {nothing}")
    async with running(paths, {"ops": [say("all well")]}) as (daemon, model):
        found = await daemon.triggers.fire("disk", [happened("a\nb ``` c", more=[1])])
        assert found["fired"] == 1
        await at_rest(daemon.triggers)
        (request,) = model.requests
        asked = str(request.body["messages"][-1]["content"])
        question, _, block = asked.partition("\n\n")
        assert question == "look at a b ``` c, {not} (unknown)"
        assert block.startswith("````what happened\n{")
        assert json.loads(block.splitlines()[1]) == {"what": "a\nb ``` c", "more": [1]}
        (firing,) = await taken(daemon.triggers)
        assert (firing.text, firing.code, firing.agent) == ("all well", "", "ops")
        _, session = daemon.registry.session(firing.session)
        record = session.record
        assert (record.tainted, record.owner, bool(record.parent)) == (True, ME.uid, True)
        assert [event.type for event in told(daemon)] == ["fired", "answered"]
        assert counts(daemon.triggers) == {"fired": 1}
        assert daemon.triggers.standing("disk").answered == 1


async def test_a_thousand_firings_in_a_second_are_all_accounted_for(paths: Paths) -> None:
    trigger(paths, rate_limit=2)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        many = [daemon.triggers.fire("disk", [happened(str(number))]) for number in range(1000)]
        said = Counter[str]()
        for one in await asyncio.gather(*many):
            said.update(one)
        await at_rest(daemon.triggers)
        found = counts(daemon.triggers)
        assert sum(found.values()) == 1000
        assert said.total() == 1000
        assert found["fired"] == len(model.requests) <= 2
        held = Counter[str]()
        for event in told(daemon, "held"):
            held.update({key: one for key, one in (event.data or {}).items() if isinstance(one, int)})
        assert {key: found[key] for key in held} == held
        fired = [event.data or {} for event in told(daemon, "fired")]
        assert sum(int(one["count"]) for one in fired) == found["fired"] + found["coalesced"]


async def test_what_comes_while_a_question_waits_is_put_into_it(paths: Paths) -> None:
    trigger(paths, coalesce_s=0.3)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        for number in range(25):
            await daemon.triggers.fire("disk", [happened(f"n{number}")])
        assert counts(daemon.triggers) == {"coalesced": 24, "waiting": 25}
        await at_rest(daemon.triggers)
        asked = str(model.requests[0].body["messages"][-1]["content"])
        assert "```what happened 25 times\n" in asked
        assert ("n19" in asked, "n20" in asked, "… and 5 more" in asked) == (True, False, True)
        assert counts(daemon.triggers) == {"fired": 1, "coalesced": 24}


async def test_what_comes_while_the_agent_works_is_asked_about_then(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok", pause_s=0.5)]}) as (daemon, model):
        await daemon.triggers.fire("disk", [happened("first")])
        await until(lambda: model.requests)
        for what in ("second", "third"):
            await daemon.triggers.fire("disk", [happened(what)])
        assert len(model.requests) == 1
        await at_rest(daemon.triggers)
        assert counts(daemon.triggers) == {"fired": 2, "coalesced": 1}
        assert "third" in str(model.requests[1].body["messages"][-1]["content"])


async def test_the_agent_is_asked_no_more_often_than_the_file_says(paths: Paths) -> None:
    trigger(paths, rate_limit=2, rate_period_s=3600)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        for _ in range(4):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
        assert counts(daemon.triggers) == {"fired": 2, "limited": 2}
        assert "2 times in 3600 seconds" in (told(daemon, "held")[0].data or {})["message"]


async def test_a_broken_trigger_refuses_with_a_sentence_and_others_work(paths: Paths) -> None:
    trigger(paths, "broken", prompt="look at {what")
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        assert (await daemon.triggers.fire("broken", [happened()]))["refused"] == 1
        assert "the template is broken" in (told(daemon, "held")[0].data or {})["message"]
        assert any("broken.toml" in one for one in daemon.problems())
        with pytest.raises(ConfigError, match="the template is broken"):
            await daemon.triggers.run("broken", {})
        with pytest.raises(NotFound, match="no trigger 'nosuch'"):
            await daemon.triggers.fire("nosuch", [happened()])
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert counts(daemon.triggers) == {"fired": 1}
        trigger(paths, "broken")
        await daemon.reload()
        await daemon.triggers.fire("broken", [happened()])
        await at_rest(daemon.triggers)
        assert counts(daemon.triggers, "broken") == {"refused": 1, "fired": 1}


async def test_a_paused_trigger_refuses_and_counts_across_a_restart(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        await daemon.triggers.set_paused("disk", paused=True)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        assert (await daemon.triggers.fire("disk", [happened()]))["refused"] == 1
        await daemon.triggers.set_paused("disk", paused=False)
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert counts(daemon.triggers) == {"fired": 1, "refused": 1}
        assert [one.type for one in told(daemon)] == ["paused", "held", "resumed", "fired", "answered"]


@pytest.mark.parametrize("catch_up", [False, True])
async def test_what_was_missed_is_told_and_asked_about_once_if_wanted(paths: Paths, catch_up: bool) -> None:
    trigger(paths, catch_up=catch_up)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        late = [happened(f"n{number}", missed=True) for number in range(3)]
        await daemon.triggers.fire("disk", late, "17")
        await at_rest(daemon.triggers)
        (event,) = told(daemon, "missed")
        assert ((event.data or {})["count"], (event.data or {})["catch_up"]) == (3, catch_up)
        assert counts(daemon.triggers) == ({"fired": 1, "coalesced": 2} if catch_up else {"missed": 3})
        assert len(model.requests) == int(catch_up)
        assert daemon.triggers.standing("disk").position == "17"
        if catch_up:
            assert "(3 of this happened while nobody followed it)" in str(model.requests[0].body)


async def test_everything_is_refused_while_everything_is_stopped(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        await daemon.service.safety.panic(ME, "test")
        assert (await daemon.triggers.fire("disk", [happened()]))["refused"] == 1
        assert model.requests == []


async def test_an_agent_that_cannot_be_asked_is_said_to_be_so(paths: Paths) -> None:
    trigger(paths, agent="nosuch")
    trigger(paths, "wide", effects=["observe", "change"])
    observing = {"ops": "effects: [observe]"}
    async with running(paths, {"ops": [say("ok")]}, fronts=observing) as (daemon, _):
        for name in ("disk", "wide"):
            await daemon.triggers.fire(name, [happened()])
        await at_rest(daemon.triggers)
        assert counts(daemon.triggers) == {"refused": 1}
        answers = {one.trigger: one for one in await taken(daemon.triggers)}
        assert answers["disk"].code == "agent_not_found"
        assert answers["wide"].code == "choice_too_wide"
        assert {one.type for one in told(daemon)} == {"held", "failed"}


async def test_a_turn_that_takes_too_long_is_cancelled(paths: Paths) -> None:
    trigger(paths, timeout_s=0.3)
    async with running(paths, {"ops": [say("ok", pause_s=30)]}) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        (answer,) = await taken(daemon.triggers)
        assert answer.code == "timeout"
        assert "did not answer within 0.3 seconds" in answer.text


async def test_sessions_are_new_the_same_or_one_of_the_owners(paths: Paths) -> None:
    trigger(paths, "new", session="new")
    trigger(paths, "same", session="same")
    trigger(paths, "other", session="ses_00000000000000aa")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        for _ in range(2):
            for name in ("new", "same", "other"):
                await daemon.triggers.fire(name, [happened()])
            await at_rest(daemon.triggers)
        found: dict[str, list[Firing]] = {}
        for one in await taken(daemon.triggers):
            found.setdefault(one.trigger, []).append(one)
        assert [len({one.session for one in found[name]}) for name in ("new", "same")] == [2, 1]
        assert {one.code for one in found["other"]} == {"session_not_found"}
        _, session = daemon.registry.session(found["same"][0].session)
        assert (session.record.title, session.record.tainted) == ("trigger same", True)


async def test_a_question_without_room_waits(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "AGAIN_S", 0.05)
    trigger(paths)
    trigger(paths, "other")
    toml = "[limits]\nevents_at_once = 1\n"
    async with running(paths, {"ops": [say("ok", pause_s=0.3)]}, toml=toml) as (daemon, model):
        for name in ("disk", "other"):
            await daemon.triggers.fire(name, [happened()])
        await at_rest(daemon.triggers)
        assert len(model.requests) == 2
        assert (counts(daemon.triggers), counts(daemon.triggers, "other")) == ({"fired": 1}, {"fired": 1})


async def test_long_data_are_cut_and_secrets_taken_out(paths: Paths) -> None:
    trigger(paths)
    secret = "sk-proj-" + "a1B2c3D4" * 6
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        data: dict[str, Any] = {f"n{number}": "x" * 3000 for number in range(200)}
        data |= {"what": f"key {secret}"}
        await daemon.triggers.fire("disk", [Happening(data={"what": data["what"], **data}, at_us=1)])
        await at_rest(daemon.triggers)
        asked = str(model.requests[0].body["messages"])
        assert secret not in asked
        assert len(asked) < 60_000
        stored = [str(event.data) for event in told(daemon)]
        assert not any(secret in one for one in stored)


async def test_a_prompt_of_a_unit_that_is_paused_is_refused(paths: Paths) -> None:
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        turn = await daemon.triggers.run("prompt@health", {})
        await turn.over.wait()
        assert counts(daemon.triggers, "prompt@health") == {"fired": 1}
        await daemon.triggers.set_paused("prompt@health", paused=True)
        with pytest.raises(Refused, match="is paused"):
            await daemon.triggers.run("prompt@health", {})
        assert counts(daemon.triggers, "prompt@health") == {"fired": 1, "refused": 1}


async def test_that_nobody_follows_is_a_problem_after_a_moment(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(paths, on="timer", calendar="daily", prompt="x")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        assert daemon.problems() == []
        monkeypatch.setattr(engine, "PATIENCE_S", 0.0)
        (said,) = daemon.problems()
        how = "python3 -m lightagentd.unattended.triggers"
        assert said == f"Nobody follows 1 of the triggers. Run: {how}"
        follower = daemon.triggers.outbox.follow()
        await anext(follower)
        assert daemon.problems() == []
        await follower.aclose()


async def test_a_guard_redacts_what_happened_or_refuses_it(paths: Paths) -> None:
    tables = [
        'name = "mails"\non = "event"\nmatch = "mail-address"\naction = "redact"',
        'name = "falcon"\non = "event"\npattern = "falcon"\naction = "block"',
    ]
    text = "".join(f"[[guard]]\n{table}\n" for table in tables)
    write(paths.config / "policy.d" / "10-guards.toml", text)
    trigger(paths, prompt="look at {what}")
    async with running(paths, {"ops": [say("all well")]}) as (daemon, model):
        await daemon.triggers.fire("disk", [happened("mail of jane@example.org")])
        await at_rest(daemon.triggers)
        asked = str(model.requests[0].body["messages"][-1]["content"])
        assert asked.startswith("look at mail of [mail address]\n")
        assert "jane" not in asked
        (firing,) = await taken(daemon.triggers)
        _, session = daemon.registry.session(firing.session)
        assert session.record.title == "look at mail of [mail address]"
        await daemon.triggers.fire("disk", [happened("a falcon")])
        await at_rest(daemon.triggers)
        assert len(model.requests) == 1
        assert [one.code for one in await taken(daemon.triggers)] == ["", "policy_denied"]
