"""Shares of trials that passed, how sure they are, and whether one is better than another.

The interval of a share is Wilson's (1927), that of a difference Newcombe's tenth method (Statistics in
Medicine 17, 1998), which is made of two of Wilson's. Both are of 95 %, and hold for few trials and for shares
of 0 and 1. Trials of one case are alike, so an interval over many cases is a little too narrow where their
trials agree, and one over the cases (`pass_all`) has no such fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964
"""Of the normal distribution, for 95 % on two sides."""


@dataclass(frozen=True)
class Share:
    """So many of `of`; without any of them it is not known."""

    passed: int
    of: int

    @property
    def value(self) -> float | None:
        return self.passed / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.passed, self.of)


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


def wilson(passed: int, of: int) -> tuple[float, float]:
    """The interval of a share; from 0 to 1 when there is nothing to go by."""
    if of <= 0:
        return 0.0, 1.0
    share, square = passed / of, Z * Z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    high = 1.0 if passed == of else min(1.0, middle + half)
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
