"""Runs of assessments and ratings: whose they are, who sees them, and what cannot be stored."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd import api
from lightagentd.agents import evals
from lightagentd.control.authz import Caller
from lightagentd.errors import (
    Conflict,
    InvalidArgument,
    LightagentError,
    LimitExceeded,
    MessageTooLarge,
    NotFound,
    PermissionDenied,
)
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, Scripted, scripted, watch
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import say

OWNER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
OTHER = Caller(uid=54322, gid=OUTSIDERS_GID, pid=1)
STRANGER = Caller(uid=54323, gid=54323, pid=1)
MADE_UP = "eval_0123456789abcdef"


def trial(number: int = 0, **more: Any) -> dict[str, Any]:
    return {"number": number, "case": "c", "model": "openai/x", "state": "passed", "why": [], **more}


async def begin(test: Scripted, caller: Caller = OWNER, cases: int = 2, **more: Any) -> api.EvalRun:
    about: dict[str, Any] = {"models": ["openai/x"], "times": 1, "definition": {"cases": []}, **more}
    return await test.daemon.service.evals.begin(caller, "test", cases=cases, **about)


async def test_a_run_is_its_owners(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        of = test.daemon.service.evals
        run = await begin(test)
        for foreign in (of.get(OTHER, run.id), of.trials(OTHER, run.id), of.add(OTHER, run.id, trial())):
            with pytest.raises(NotFound, match="no run"):
                await foreign
        said = []
        for caller, number in ((OTHER, run.id), (OWNER, "eval_none")):
            with pytest.raises(NotFound) as caught:
                await of.get(caller, number)
            said.append(str(caught.value.to_dict()).replace(number, "RUN"))
        assert said[0] == said[1], "nobody learns that there is a run of somebody else's"
        for refused in (of.get(STRANGER, run.id), of.listed(STRANGER), begin(test, STRANGER)):
            with pytest.raises(PermissionDenied):
                await refused
        with pytest.raises(PermissionDenied, match="somebody else's"):
            await of.add(ME, run.id, trial())
        assert await of.listed(OTHER) == []
        assert (
            [one.id for one in await of.listed(ME)] == [one.id for one in await of.listed(OWNER)] == [run.id]
        )
        await of.add(OWNER, run.id, trial())
        assert (await of.end(OWNER, run.id)).state == "left"
        await of.add(OWNER, run.id, trial(1, state="failed", why=["bad"]))
        ended = await of.end(OWNER, run.id)
        assert (ended.state, ended.passed, ended.failed, ended.errors) == ("done", 1, 1, 0)
        assert [one.why for one in await of.trials(OWNER, run.id, first=1)] == [["bad"]]


async def test_a_trial_is_stored_once_unless_it_said_nothing(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        of = test.daemon.service.evals
        run = await begin(test)
        await of.add(OWNER, run.id, trial(state="error"))
        await of.add(OWNER, run.id, trial(state="judge_failed"))
        await of.add(OWNER, run.id, trial(state="failed"))
        with pytest.raises(Conflict):
            await of.add(OWNER, run.id, trial())
        found = (await of.get(OWNER, run.id)).run
        assert (found.passed, found.failed, found.errors) == (0, 1, 0)


async def test_trials_come_in_pages(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        of = test.daemon.service.evals
        run = await begin(test, cases=250)
        for number in (0, 3, 99, 100, 101, 205, 249):
            await of.add(OWNER, run.id, trial(number))

        async def page(first: int, limit: int) -> list[int]:
            return [one.number for one in await of.trials(OWNER, run.id, first=first, limit=limit)]

        assert await page(0, 100) == [0, 3, 99, 100, 101, 205, 249]
        assert await page(0, 2) == [0, 3]
        assert await page(4, 3) == [99, 100, 101]
        assert (await page(249, 100), await page(250, 100), await page(9999, 1)) == ([249], [], [])


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"number": -1}, InvalidArgument),
        ({"number": 2}, InvalidArgument),
        ({"state": "fine"}, InvalidArgument),
        ({"score": 2}, InvalidArgument),
        ({"cost": float("nan")}, InvalidArgument),
        ({"more": 1}, InvalidArgument),
        ({"calls": [{"text": "x" * 100_000}]}, MessageTooLarge),
    ],
)
async def test_a_bad_trial_is_refused(
    paths: Paths, more: dict[str, Any], error: type[LightagentError]
) -> None:
    async with scripted(paths, [say("x")]) as test:
        run = await begin(test)
        with pytest.raises(error):
            await test.daemon.service.evals.add(OWNER, run.id, trial(**more))


async def test_a_bad_run_is_refused(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(paths, [say("x")]) as test:
        for more, error in (
            ({"cases": 0}, InvalidArgument),
            ({"times": 0}, InvalidArgument),
            ({"models": []}, InvalidArgument),
            ({"models": ["openai/x"] * 2}, InvalidArgument),
            ({"models": ["nosuch"]}, InvalidArgument),
            ({"definition": []}, InvalidArgument),
            ({"cases": 10_000, "times": 3}, LimitExceeded),
            ({"definition": {"x": "x" * (5 << 20)}}, MessageTooLarge),
        ):
            with pytest.raises(error):
                await begin(test, **more)
        monkeypatch.setattr(evals, "MOST_RUNS", 3)
        runs = [await begin(test) for _ in range(5)]
        await begin(test, OTHER)
        of = test.daemon.service.evals
        assert [one.id for one in await of.listed(OWNER)] == [one.id for one in reversed(runs[2:])]
        for call in (of.get(OWNER, runs[0].id), of.add(OWNER, runs[0].id, trial()), of.end(OWNER, MADE_UP)):
            with pytest.raises(NotFound):
                await call


async def test_a_rating_needs_a_turn_that_the_caller_may_see(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        service = test.daemon.service
        made = await service.sessions.create(OWNER, "test", "")
        turn = await test.agent.prompt(test.agent.sessions[made.id], "go")
        await watch(turn)
        said = []
        for caller, trace in ((OTHER, turn.trace_id), (OWNER, "trace_0123456789abcdef"), (OWNER, "")):
            with pytest.raises(NotFound) as failed:
                await service.evals.rate(caller, trace, "bad")
            said.append(failed.value.message.replace(trace or "\0", "T"))
        assert said == ["There is no turn 'T'."] * 2 + ["There is no turn ''."]
        for rating, note in (("fine", ""), ("bad", "x" * 5000)):
            with pytest.raises(InvalidArgument):
                await service.evals.rate(OWNER, turn.trace_id, rating, note)
        rated = await service.evals.rate(OWNER, turn.trace_id, "bad", "wrong unit")
        assert (rated.session, rated.agent, rated.owner) == (made.id, "test", OWNER.uid)
        await service.evals.rate(ME, turn.trace_id, "good")
        assert [one.rating for one in await service.evals.ratings(OWNER)] == ["bad"]
        assert {one.rating for one in await service.evals.ratings(ME)} == {"good", "bad"}
        await service.sessions.delete(OWNER, made.id, confirmed=True)
        assert await service.evals.ratings(ME) == []
