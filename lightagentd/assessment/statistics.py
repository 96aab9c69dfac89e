"""Shares of trials that passed, how sure they are, and whether one is better than another.

The interval of a share is Wilson's (1927), that of a difference Newcombe's tenth method (Statistics in
Medicine 17, 1998), which is made of two of Wilson's. Both are of 95 %, and hold for few trials and for shares
of 0 and 1.

Trials of one case are alike: ten of one case say less than one of each of ten cases. So a share over several
cases is taken for one of fewer trials, as many as vary like it (the design effect of samples in clusters,
Kish 1965): from the number of cases, where the trials of each agree, to that of the trials. Two runs have the
same cases, so much of what differs between cases is in both; that it is not taken off makes an interval of a
difference rather too wide than too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964
"""Of the normal distribution, for 95 % on two sides."""


@dataclass(frozen=True)
class Share:
    """So many of `of`; without any of them it is not known. `worth` is of how many trials that vary by
    themselves, where that is fewer.
    """

    passed: int
    of: int
    worth: float = 0.0

    @property
    def value(self) -> float | None:
        return self.passed / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        size = self.worth or self.of
        return wilson(self.passed * size / self.of if self.of else 0, size)


@dataclass(frozen=True)
class Difference:
    """From one share to another one, with its interval; `sure`: the interval does not hold 0."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def word(self) -> str:
        if self.value == 0:
            return "the same"
        word = "better" if self.value > 0 else "worse"
        return word if self.sure else f"{word}, not sure"


def together(shares: Sequence[Share]) -> Share:
    """The share over several cases."""
    known = [one for one in shares if one.of]
    passed, of = sum(one.passed for one in known), sum(one.of for one in known)
    cases = len(known)
    if cases < 2:
        return Share(passed, of)
    share = passed / of
    # Of the mean of clusters that are weighted by their sizes (Cochran 1977, 11.8).
    apart = sum((one.passed - share * one.of) ** 2 for one in known)
    variance = apart * cases / (cases - 1) / of**2
    worth = share * (1 - share) / variance if variance > 0 else of if 0 < share < 1 else cases
    return Share(passed, of, min(float(of), max(float(cases), worth)))


def wilson(passed: float, of: float) -> tuple[float, float]:
    """The interval of a share; from 0 to 1 when there is nothing to go by."""
    if of <= 0:
        return 0.0, 1.0
    share, square = passed / of, Z * Z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    low = 0.0 if passed <= 0 else max(0.0, middle - half)
    high = 1.0 if passed >= of else min(1.0, middle + half)
    return low, high


def difference(before: Share, after: Share) -> Difference | None:
    """From one share to another; None where one of them is not known."""
    if before.value is None or after.value is None:
        return None
    (low_1, high_1), (low_2, high_2) = before.interval, after.interval
    first, second = before.value, after.value
    delta = second - first
    down = math.hypot(second - low_2, high_1 - first)
    up = math.hypot(high_2 - second, first - low_1)
    return Difference(delta, max(-1.0, delta - down), min(1.0, delta + up))


def median(values: Sequence[float]) -> float | None:
    """The middle of some values; None without any."""
    if not values:
        return None
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
