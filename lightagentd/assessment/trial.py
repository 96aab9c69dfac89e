"""One trial: a session of its own, the prompts of the case, the verdict, and the session goes again.

The session of a trial that did not pass stays, so that it can be looked at, of the first of a run; its
transcript is stored with the trial either way.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightagentd.assessment.cases import Case, Judge
from lightagentd.assessment.daemon import Connect, call, patiently
from lightagentd.assessment.judging import (
    SCHEMA,
    blocks_for,
    ends_run,
    faults,
    question_for,
    says_nothing,
    verdict_in,
)
from lightagentd.assessment.transcript import Transcript, cut
from lightagentd.errors import AgentNotFound, InvalidArgument, NotFound, ToolError, from_dict
from lightagentd.host.process import run as run_process

PASSED, FAILED, JUDGE_FAILED, ERROR = "passed", "failed", "judge_failed", "error"
MOST_KEPT = 20
_MOST_WHY = 50
_MOST_WHY_CHARS = 1000
_TURN_S = 3600.0
"""How long a turn may take where the case does not say it."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be asked. `number` is its place in the run."""

    number: int
    case: Case
    model: str


class Trials:
    """Runs trials with an agent. `folder` is where check commands run."""

    def __init__(self, connect: Connect, agent: str, folder: Path) -> None:
        self._connect, self._agent, self._folder = connect, agent, folder
        self._kept = 0

    async def run(self, trial: Trial) -> dict[str, Any]:
        """Run and judge one trial; gives it as it is stored.

        Raises the error with which every other trial would end, too, such as a budget that is used up, and
        LightagentError when the daemon refuses it.
        """
        case, found, verdict = trial.case, Transcript(), dict[str, Any]()
        try:
            await self._ask(trial, found)
            verdict = await self._judged(case, found)
        finally:
            if found.session and (verdict.get("state", PASSED) == PASSED or self._kept >= MOST_KEPT):
                await self._delete(found.session)
            elif found.session:
                self._kept += 1
        about = {"number": trial.number, "case": case.name, "model": trial.model, "score": None, "reason": ""}
        return {**about, **found.stored(), **verdict}

    async def _ask(self, trial: Trial, found: Transcript) -> None:
        """Have the prompts answered, one after the other, until one is not."""
        case = trial.case
        for at, text in enumerate(case.prompts):
            is_last = at == len(case.prompts) - 1
            facts = [{"name": name, "text": one} for name, one in case.facts.items()] if at == 0 else []
            left_s = _TURN_S if case.max_s is None else max(0.0, case.max_s - found.duration_ms / 1000)
            parameters = {
                "text": text,
                **({"session": found.session} if at else {"agent": self._agent, "new": True}),
                "model": trial.model,
                "attachments": facts or None,
                "schema": case.schema_ if is_last else None,
                "stubs": [one.to_dict() for one in case.stub],
            }
            try:
                async with asyncio.timeout(left_s + 1):
                    await self._turn(found, parameters)
            except TimeoutError:
                await call(self._connect, "Sessions.Cancel", session=found.session)
                found.code, found.message = "timeout", f"It was cancelled after {left_s:g} seconds."
                found.duration_ms += round(1000 * (left_s + 1))
            _check_goes_on(found)
            if found.code:
                return

    async def _turn(self, found: Transcript, parameters: dict[str, Any]) -> None:
        async def once() -> None:
            async with (
                self._connect() as client,
                aclosing(client.stream("Sessions.Prompt", unattended=True, **parameters)) as replies,
            ):
                async for reply in replies:
                    found.take(reply["event"])

        try:
            await patiently(once)
        except AgentNotFound:
            raise
        except (InvalidArgument, NotFound) as err:  # what the case asks for, or this model cannot do it
            found.code, found.message, found.suggestion = err.code, err.message, err.suggestion

    async def _judged(self, case: Case, found: Transcript) -> dict[str, Any]:
        """The verdict on a trial: its state, why, and what a judge said."""
        if says_nothing(found.code) and found.code != case.answer.error:
            return {"state": ERROR, "why": [found.message]}
        why = faults(case, found)
        if not why and case.check:
            why = await self._checked(case, found)
        if why or case.judge is None:
            told = [cut(one, _MOST_WHY_CHARS) for one in why[:_MOST_WHY]]
            return {"state": FAILED if why else PASSED, "why": told}
        return await self._asked_judge(case, case.judge, found)

    async def _checked(self, case: Case, found: Transcript) -> list[str]:
        command = ["/bin/sh", "-c", case.check]
        answer = found.answer.encode("utf-8", "replace")
        try:
            done = await run_process(command, timeout_s=case.check_timeout_s, cwd=self._folder, stdin=answer)
        except ToolError as err:
            return [f"The check cannot be run: {err.message}"]
        if done.timed_out:
            return [f"The check did not end within {case.check_timeout_s:g} seconds."]
        if done.status == 0:
            return []
        said = (done.stderr.text() or done.stdout.text()).strip()
        return [f"The check ended with {done.status}. {cut(said, 500)}".strip()]

    async def _asked_judge(self, case: Case, judge: Judge, found: Transcript) -> dict[str, Any]:
        """The verdict of a judge. A judge that does not answer with a score is `judge_failed`."""
        said = Transcript()
        parameters = {
            "agent": judge.agent or self._agent,
            "new": True,
            "text": question_for(judge),
            "attachments": blocks_for(case, found),
            "model": judge.model or None,
            "tools": [],
            "schema": SCHEMA,
            "stubs": [],
        }
        try:
            async with asyncio.timeout(_TURN_S):
                await self._turn(said, parameters)
        except TimeoutError:
            said.code, said.message = "timeout", "It did not answer in time."
        except AgentNotFound as err:
            said.code, said.message = err.code, err.message
        finally:
            if said.session:
                await self._delete(said.session)
        _check_goes_on(said)
        found.total_tokens += said.total_tokens
        found.cost = None if found.cost is None or said.cost is None else found.cost + said.cost
        verdict = verdict_in(said.data)
        if verdict is None:
            why = said.message or f"It said: {cut(said.answer, 300)}"
            return {"state": JUDGE_FAILED, "why": [f"The judge gave no score. {why}"]}
        score, reason = verdict[0], cut(verdict[1], _MOST_WHY_CHARS)
        passed = score >= judge.passes_from
        said_why = [] if passed else [f"The judge gave {score:g}, and {judge.passes_from:g} passes: {reason}"]
        return {"state": PASSED if passed else FAILED, "why": said_why, "score": score, "reason": reason}

    async def _delete(self, session: str) -> None:
        await call(self._connect, "Sessions.Delete", session=session, confirmed=True)


def _check_goes_on(found: Transcript) -> None:
    """Raises the error that ended a turn, if it would end every other one."""
    if ends_run(found):
        about = {"code": found.code, "message": found.message, "suggestion": found.suggestion}
        raise from_dict(about)
