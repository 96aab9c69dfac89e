"""The figures of a run, from its trials: for each model, for each case with a model, and between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightagentd.assessment.statistics import Difference, Share, difference, median, together
from lightagentd.assessment.trial import FAILED, PASSED

Trials = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class OfCase:
    """A case with a model. Trials that say nothing about the agent are in `trials` alone."""

    case: str
    model: str
    trials: Trials

    @property
    def share(self) -> Share:
        """Of the trials that were judged, those that passed: pass@1."""
        return _share(self.trials)

    @property
    def flaky(self) -> bool:
        """Whether some of its trials passed and some did not."""
        return 0 < self.share.passed < self.share.of

    @property
    def unjudged(self) -> int:
        return len(self.trials) - self.share.of

    @property
    def duration_s(self) -> float | None:
        return _duration_s(self.trials)


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """All cases with a model."""

    model: str
    times: int
    cases: Sequence[OfCase]

    @property
    def trials(self) -> Trials:
        return [trial for case in self.cases for trial in case.trials]

    @property
    def pass_1(self) -> Share:
        """Of the trials that were judged, those that passed."""
        return together([one.share for one in self.cases])

    @property
    def pass_all(self) -> Share:
        """Of the cases whose trials were all judged, those whose trials all passed: pass^n."""
        whole = [one for one in self.cases if one.share.of >= self.times]
        return Share(sum(one.share.passed == one.share.of for one in whole), len(whole))

    @property
    def flaky(self) -> list[str]:
        return [one.case for one in self.cases if one.flaky]

    @property
    def unjudged(self) -> int:
        return sum(one.unjudged for one in self.cases)

    @property
    def total_tokens(self) -> int:
        return sum(one["total_tokens"] for one in self.trials)

    @property
    def cost(self) -> float | None:
        """None when the price of a trial is not known."""
        costs = [one["cost"] for one in self.trials]
        return None if None in costs else sum(costs)

    @property
    def duration_s(self) -> float | None:
        return _duration_s(self.trials)

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": self.model,
            "pass_1": share_dict(self.pass_1),
            "pass_all": share_dict(self.pass_all),
            "not_judged": self.unjudged,
            "flaky": self.flaky,
            "total_tokens": self.total_tokens,
            "cost": self.cost,
            "median_s": self.duration_s,
            "cases": [
                {
                    "case": one.case,
                    "pass_1": share_dict(one.share),
                    "not_judged": one.unjudged,
                    "median_s": one.duration_s,
                }
                for one in self.cases
            ],
        }


def of_run(run: Mapping[str, Any], trials: Trials) -> list[OfModel]:
    """The figures of a run, for each model in its order; cases are in the order of the run."""
    found = []
    for model in run["models"]:
        own = [one for one in trials if one["model"] == model]
        names = dict.fromkeys(one["case"] for one in own)
        cases = [
            OfCase(case=name, model=model, trials=[one for one in own if one["case"] == name])
            for name in names
        ]
        found.append(OfModel(model=model, times=run["times"], cases=cases))
    return found


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A case, or all of them together, before and after."""

    case: str
    before: Share
    after: Share
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "case": self.case,
            "before": share_dict(self.before),
            "after": share_dict(self.after),
            "difference": None,
            "low": None,
            "high": None,
            "sure": False,
            "verdict": self.verdict,
        }
        if self.difference is not None:
            found |= {
                "difference": self.difference.value,
                "low": self.difference.low,
                "high": self.difference.high,
                "sure": self.difference.sure,
            }
        return found

    @property
    def verdict(self) -> str:
        return "not in both" if self.difference is None else self.difference.word


def compared(before: OfModel, after: OfModel) -> tuple[Compared, list[Compared]]:
    """Two models' figures: all the cases that both have together, then each case."""
    first = {one.case: one.share for one in before.cases}
    second = {one.case: one.share for one in after.cases}
    nothing = Share(0, 0)
    cases = [
        _compared(name, first.get(name, nothing), second.get(name, nothing)) for name in {**first, **second}
    ]
    both = [one for one in cases if one.difference is not None]
    whole = _compared("all", together([one.before for one in both]), together([one.after for one in both]))
    return whole, cases


def share_dict(share: Share) -> dict[str, Any]:
    """A share for programs, with its interval."""
    low, high = share.interval
    return {"passed": share.passed, "of": share.of, "share": share.value, "low": low, "high": high}


def _compared(case: str, before: Share, after: Share) -> Compared:
    return Compared(case=case, before=before, after=after, difference=difference(before, after))


def _share(trials: Trials) -> Share:
    judged = [one for one in trials if one["state"] in (PASSED, FAILED)]
    return Share(sum(one["state"] == PASSED for one in judged), len(judged))


def _duration_s(trials: Trials) -> float | None:
    found = median([one["duration_ms"] for one in trials if one["state"] in (PASSED, FAILED)])
    return None if found is None else found / 1000
