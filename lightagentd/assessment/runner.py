"""Runs an assessment: all trials that are not stored yet, several at once, each stored as it ends.

The cases are stored with the run, so that one that was cut off goes on with those it began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightagentd.assessment.cases import Case, stored_cases
from lightagentd.assessment.daemon import Connect, call
from lightagentd.assessment.trial import Trial, Trials
from lightagentd.errors import InvalidArgument, LightagentError, ToolNotFound

AT_ONCE = 4
MOST_AT_ONCE = 64
_PAGE = 100

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run: each case, with each model, so many times."""

    agent: str
    models: tuple[str, ...]
    cases: Sequence[Case]
    times: int
    folder: Path
    name: str = ""

    @property
    def trials(self) -> list[Trial]:
        """All of them; the number of a trial is its place here."""
        asked = ((case, model) for case in self.cases for model in self.models for _ in range(self.times))
        return [Trial(number=at, case=case, model=model) for at, (case, model) in enumerate(asked)]

    def definition(self) -> dict[str, Any]:
        """As it is stored with the run."""
        return {"cases": [case.to_dict() for case in self.cases], "folder": str(self.folder)}


async def begin(connect: Connect, plan: Plan) -> dict[str, Any]:
    """Store a new run, and give it. Raises InvalidArgument, AgentNotFound, ToolNotFound."""
    if plan.times < 1:
        raise InvalidArgument(f"A case is asked at least once, and not {plan.times} times.", field="n")
    async with connect() as client:
        agent = (await client.call("Agents.Get", name=plan.agent))["agent"]
        tools = (await client.call("Tools.List"))["tools"]
        _check_tools(plan.cases, tools, agent["own_tools"])
        reply = await client.call(
            "Evals.Begin",
            agent=plan.agent,
            models=list(plan.models) or [agent["model"]],
            cases=len(plan.cases),
            times=plan.times,
            definition=plan.definition(),
            name=plan.name,
        )
    run: dict[str, Any] = reply["run"]
    return run


async def stored(connect: Connect, run: str) -> tuple[dict[str, Any], Plan, list[dict[str, Any]]]:
    """A run, what it runs, and its trials. Raises NotFound, ConfigError."""
    async with connect() as client:
        found = (await client.call("Evals.Get", run=run))["found"]
        trials: list[dict[str, Any]] = []
        while page := (
            await client.call("Evals.Trials", run=run, first=trials[-1]["number"] + 1 if trials else 0)
        )["trials"]:
            trials += page
            if len(page) < _PAGE:
                break
    about, definition = found["run"], found["definition"]
    plan = Plan(
        agent=about["agent"],
        models=tuple(about["models"]),
        cases=stored_cases(definition),
        times=about["times"],
        folder=Path(str(definition.get("folder", "/"))),
        name=about["name"],
    )
    return about, plan, trials


async def go_on(
    connect: Connect, run: str, plan: Plan, done: Iterable[int], *, at_once: int, tell: Tell
) -> dict[str, Any]:
    """Run the trials whose numbers are not `done`, store each and `tell` of it; gives the run at its end.

    Cancelled, or ended by an error that every trial would have, it leaves the run to be gone on with. Raises
    that error.
    """
    numbers = set(done)
    waiting = iter([trial for trial in plan.trials if trial.number not in numbers])
    trials = Trials(connect, plan.agent, plan.folder)

    async def one_by_one() -> None:
        for trial in waiting:
            found = await trials.run(trial)
            await call(connect, "Evals.Record", run=run, trial=found)
            tell(found)

    tasks = [asyncio.create_task(one_by_one()) for _ in range(max(1, min(at_once, MOST_AT_ONCE)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ended = await _end(connect, run)
    if ended is None:
        raise LightagentError(f"The end of the run {run} could not be stored.")
    return ended


async def _end(connect: Connect, run: str) -> dict[str, Any] | None:
    """Tell the daemon that nobody runs it now; None when it cannot be told."""
    try:
        found: dict[str, Any] = (await call(connect, "Evals.End", run=run))["run"]
        return found
    except LightagentError:
        return None


def _check_tools(cases: Sequence[Case], tools: Sequence[dict[str, Any]], own: Sequence[str]) -> None:
    """Raises ToolNotFound for a stub or a wanted call of what does not exist. What an agent's own tools can
    do is found out by the prompt.
    """
    actions = {tool["name"]: {one["name"] for one in tool["actions"]} for tool in tools}
    for case in cases:
        named = [(one.tool, one.action, "stub") for one in case.stub]
        named += [(one.tool, one.action, "calls") for one in (*case.calls.must, *(case.calls.may or ()))]
        named += [(one.tool, one.action, "calls") for one in case.calls.must_not]
        for tool, action, where in named:
            if tool in own:
                continue
            if tool not in actions or (action and action not in actions[tool]):
                raise ToolNotFound(
                    f"The case {case.name} has in {where} what does not exist: {tool}.{action}".rstrip(".")
                    + ".",
                    field=where,
                    suggestion="See: lactl tools list",
                )
