"""What triggers do with what happened: every thing counts once, and its agent is asked as the file says."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.triggers import triggers as engine
from lightagentd.agents.triggers.records import Firing, Happening
from lightagentd.agents.triggers.triggers import Triggers
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import ConfigError, NotFound, PermissionDenied, Refused
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.scripted import ME, until
from tests.agents.team.rig import ask, by_agent, define_team, results
from tests.agents.triggers.rig import at_rest, counts, happened, running, told, trigger
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, Stream, call, say

CHANGE = '[worker]\nchange_agents = ["ops"]\n'


async def taken(triggers: Triggers) -> list[Firing]:
    """The answers that wait for delivery, as a follower gets them."""
    found: list[Firing] = []
    follower = triggers.outbox.follow()
    async with aclosing(follower):
        while len(found) < len(triggers.outbox._waiting):
            if (item := await anext(follower)) is not None:
                found.append(item)
    return found


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


# What it may do


def changing(out: Path) -> list[Answer]:
    return [call("probe_add", add(out)), say("done")]


@pytest.mark.parametrize(
    ("effects", "ran", "rule"),
    [
        (["observe"], [], ""),
        (["observe", "change"], ["ran"], ""),
        (["observe", "change"], [], 'decision = "ask"\ntool = "probe"'),
        (["observe", "change"], [], 'decision = "deny"\ntrigger = "disk"'),
    ],
)
async def test_a_change_runs_without_a_person_only_where_the_file_says_so(
    paths: Paths, tmp_path: Path, effects: list[str], ran: list[str], rule: str
) -> None:
    prepare(paths)
    trigger(paths, effects=effects)
    if rule:
        write(paths.config / "policy.d" / "10.toml", f'[[rule]]\nname = "mine"\n{rule}\n')
    out = tmp_path / "out"
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert lines(out) == ran
        (answer,) = await taken(daemon.triggers)
        assert answer.refused == (() if ran else ("probe.add",))
        dispatched = [
            one for one in daemon.history.queries.range(1, 1000) if one.type in ("intent", "refused")
        ]
        (event,) = [one for one in dispatched if one.topic == "agent.tool_dispatch"]
        assert (event.data or {}).get("trigger") == "disk"


async def test_a_test_by_hand_and_a_prompt_of_the_owner_get_nothing_of_it(
    paths: Paths, tmp_path: Path
) -> None:
    """The grant is the trigger's: the owner's own unattended prompt, and mail from it, are asked about."""
    prepare(paths)
    trigger(paths, effects=["observe", "change"])
    out = tmp_path / "out"
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        agent = daemon.registry.get("ops")
        made = await daemon.service.sessions.create(ME, "ops", "")
        turn = await agent.prompt(agent.sessions[made.id], "go", unattended=True)
        await turn.over.wait()
        assert lines(out) == []
        turn = await daemon.triggers.run("disk", {"what": "x"})
        await turn.over.wait()
        assert lines(out) == []
        turn = await daemon.triggers.run("disk", {"what": "x"}, granted=True)
        await turn.over.wait()
        assert lines(out) == ["ran"]
        assert counts(daemon.triggers) == {}


async def test_an_owner_who_says_what_happened_gets_no_effects_by_that(paths: Paths, tmp_path: Path) -> None:
    prepare(paths)
    nobody = pwd.getpwnam("nobody")
    trigger(paths, owner="nobody", effects=["observe", "change"])
    toml = CHANGE + '[daemon]\nsocket_group = "nogroup"\n'
    out = tmp_path / "out"
    owner = Caller(uid=nobody.pw_uid, gid=nobody.pw_gid, pid=os.getpid(), groups=frozenset({nobody.pw_gid}))
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=toml) as (daemon, _):
        service = daemon.service.triggers
        events = [event async for event in service.run(owner, "disk", data={"what": "x"})]
        assert events[-1]["text"] == "done"
        assert lines(out) == []
        with pytest.raises(PermissionDenied):
            await anext(service.run(owner, "disk", data={"what": "x"}, agent="ops"))


async def test_only_the_tools_of_the_file_are_offered(paths: Paths) -> None:
    trigger(paths, tools=["file.read", "proc"])
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        offered = {one["function"]["name"] for one in model.requests[0].body["tools"]}
        assert {"file_read", "message_parent"} <= offered
        assert not any(name.startswith(("bash", "net_")) or name == "file_stat" for name in offered)


# Its own effects


async def test_a_trigger_that_its_own_events_fire_is_stopped_after_three_rounds(paths: Paths) -> None:
    trigger(
        paths,
        on="event",
        topic="agent.tool_dispatch",
        type="intent",
        prompt="again {tool}",
        rate_limit=100,
    )

    def script(body: dict[str, Any]) -> Stream:
        return say("ok") if results(body) else call("proc_info", {"pid": 1})

    async with running(paths, {"ops": script}) as (daemon, _):
        agent = daemon.registry.get("ops")
        made = await daemon.service.sessions.create(ME, "ops", "")
        turn = await agent.prompt(agent.sessions[made.id], "go")
        await turn.over.wait()
        await until(lambda: daemon.triggers.standing("disk").stopped)
        await at_rest(daemon.triggers)
        rounds = [(one.data or {})["round"] for one in told(daemon, "fired")]
        assert rounds == [1, 2, 3]
        (event,) = told(daemon, "stopped")
        assert "its own effects fired it 3 times in a row" in (event.data or {})["message"]
        assert any("is stopped" in one for one in daemon.problems())
        assert (await daemon.triggers.fire("disk", [happened()]))["refused"] == 1
        await daemon.triggers.set_paused("disk", paused=False)
        assert daemon.triggers.standing("disk").stopped == ""


@pytest.mark.parametrize(("acts", "rounds"), [(True, [1, 2, 3]), (False, [1] * 5)])
async def test_what_happens_while_its_agent_changes_things_counts_as_its_effect(
    paths: Paths, tmp_path: Path, acts: bool, rounds: list[int]
) -> None:
    prepare(paths)
    trigger(paths, effects=["observe", "change"], rate_limit=100)
    first = call("probe_add", add(tmp_path / "out")) if acts else call("proc_info", {"pid": 1})
    script: list[Answer] = [first, say("done")]
    async with running(paths, {"ops": script}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        for _ in range(5):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
        assert [(one.data or {})["round"] for one in told(daemon, "fired")] == rounds
        assert bool(daemon.triggers.standing("disk").stopped) == acts
        assert sum(counts(daemon.triggers).values()) == 5


async def test_two_triggers_that_fire_each_other_are_stopped(paths: Paths, tmp_path: Path) -> None:
    prepare(paths)
    both = ("one", "two")
    for name in both:
        trigger(paths, name, effects=["observe", "change"], rate_limit=100)
    async with running(paths, {"ops": changing(tmp_path / "o")}, fronts={"ops": FRONT}, toml=CHANGE) as (
        daemon,
        _,
    ):
        for number in range(6):
            await daemon.triggers.fire(both[number % 2], [happened()])
            await at_rest(daemon.triggers)
        assert [(one.data or {})["round"] for one in told(daemon, "fired")] == [1, 2, 3]
        assert daemon.triggers.standing("two").stopped


# Kills and deliveries


async def test_a_kill_anywhere_asks_once_and_loses_nothing(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(paths)
    trigger(paths, effects=["observe", "change"], session="new", rate_limit=100)
    out = tmp_path / "out"
    async with ScriptedModel(by_agent({"ops": changing(out)})) as model:
        define_team(paths, model, {"ops": None}, {"ops": FRONT}, CHANGE)
        async with Daemon(paths) as daemon:
            with copied(paths, monkeypatch, lambda: lines(out)) as states:
                await daemon.triggers.fire("disk", [happened("it")], "1")
                await at_rest(daemon.triggers)
        assert lines(out) == ["ran"]
        for number, before in enumerate(states):
            out.write_text("".join(f"{line}\n" for line in before))
            with killed_after(paths, number) as left:
                async with Daemon(left) as again:
                    if not again.triggers.standing("disk").position:
                        await again.triggers.fire("disk", [happened("it")], "1")
                    await at_rest(again.triggers)
                    assert counts(again.triggers) == {"fired": 1}, number
                    (answer,) = await taken(again.triggers)
                    (event,) = told(again, "fired")
                    assert (event.data or {})["firing"] == answer.id, number
                    assert len(lines(out)) <= 1, number


async def test_an_answer_is_given_until_it_is_said_to_be_delivered(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        (first,) = await taken(daemon.triggers)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        (again,) = await taken(daemon.triggers)
        assert again == first
        await daemon.triggers.outbox.delivered(first.id, "the disk is full")
        assert await taken(daemon.triggers) == []
        (event,) = told(daemon, "undelivered")
        assert "the disk is full" in (event.data or {})["message"]
        with pytest.raises(NotFound):
            await daemon.triggers.outbox.delivered(first.id)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        assert await taken(daemon.triggers) == []


async def test_a_second_follower_ends_the_first(paths: Paths) -> None:
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        first, second = daemon.triggers.outbox.follow(), daemon.triggers.outbox.follow()
        assert await anext(first) is None
        waiting = asyncio.create_task(anext(first, "over"))
        assert await anext(second) is None
        await until(waiting.done)
        assert waiting.result() in (None, "over")
        if waiting.result() is None:
            assert await anext(first, "over") == "over"
        assert daemon.triggers.outbox.followed
        await second.aclose()
        assert not daemon.triggers.outbox.followed


async def test_more_answers_than_fit_are_told_to_be_undelivered(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.triggers.outbox.MOST", 1)
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        for _ in range(2):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
        await until(lambda: told(daemon, "undelivered"))
        assert len(await taken(daemon.triggers)) == 1


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


async def test_a_session_of_somebody_else_is_not_written_into(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        made = await daemon.service.sessions.create(ME, "ops", "mine")
        trigger(paths, owner="nobody", session=made.id)
        await daemon.reload()
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        (answer,) = await taken(daemon.triggers)
        assert (answer.code, "is not nobody's with the agent ops" in answer.text) == (
            "permission_denied",
            True,
        )
        assert daemon.registry.get("ops").sessions[made.id].record.turns == 0


async def test_an_entry_of_somebody_else_that_names_a_session_is_not_its_effect(paths: Paths) -> None:
    trigger(paths, rate_limit=100)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        for uid in (None, str(os.geteuid()), "4000001"):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
            last = told(daemon, "fired")[-1]
            named = happened(LIGHTAGENT_SESSION=last.session)
            if uid is not None:
                named.data["_UID"] = uid
            await daemon.triggers.fire("disk", [named])
            await at_rest(daemon.triggers)
        rounds = [(one.data or {})["round"] for one in told(daemon, "fired")]
        assert rounds == [1, 2, 1, 2, 1, 1]


@pytest.mark.parametrize("effects", [["observe"], ["observe", "change"]])
async def test_an_agent_that_is_asked_by_its_turn_has_what_it_has(
    paths: Paths, tmp_path: Path, effects: list[str]
) -> None:
    prepare(paths)
    trigger(paths, effects=effects)
    out = tmp_path / "out"
    scripts: dict[str, Any] = {"ops": [ask("dba"), say("ok")], "dba": changing(out)}
    toml = '[worker]\nchange_agents = ["ops", "dba"]\n'
    async with running(paths, scripts, fronts={"ops": FRONT, "dba": FRONT}, toml=toml) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert lines(out) == (["ran"] if "change" in effects else [])


async def test_a_question_that_waited_in_a_session_has_its_effects_after_a_restart(
    paths: Paths, tmp_path: Path
) -> None:
    prepare(paths)
    out = tmp_path / "out"
    scripts: dict[str, Any] = {"ops": [say("slow", pause_s=30)]}
    async with running(paths, scripts, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, model):
        made = await daemon.service.sessions.create(ME, "ops", "")
        for name in ("disk", "other"):
            trigger(paths, name, session=made.id, effects=["observe", "change"])
        await daemon.reload()
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: model.requests)
        await daemon.triggers.fire("other", [happened()])
        session = daemon.registry.get("ops").sessions[made.id]
        await until(lambda: session.queue)
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        await at_rest(daemon.triggers)
        answers = {one.trigger: one.text for one in await taken(daemon.triggers)}
        assert answers["other"] == "done"
        assert lines(out) == ["ran"]


async def test_a_trigger_may_follow_another_one_and_never_itself(paths: Paths) -> None:
    trigger(paths)
    trigger(paths, "chained", on="event", topic="trigger.fired", prompt="why did {trigger} fire")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: daemon.triggers.standing("chained").answered)
        await at_rest(daemon.triggers)
        asked = [str(one.body["messages"][-1]["content"]) for one in model.requests]
        assert [one.partition("\n")[0] for one in asked] == ["look at it", "why did disk fire"]
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: daemon.triggers.standing("chained").answered == 2)
        assert counts(daemon.triggers, "chained") == {"fired": 2}
