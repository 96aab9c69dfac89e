"""A linear support vector machine, one class against the rest, with whole numbers.

Solves the L2-loss dual by coordinate descent (Hsieh et al., "A Dual Coordinate Descent Method for
Large-scale Linear SVM", 2008) for all classes at once: the weights of a feature are the 64-bit lanes of one
Python integer, so that adding two rows is one addition. Sums of whole numbers are the same on each version of
Python.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence

SCALE = 1 << 32
"""A weight of 1."""
RAREST = 20.0
"""An example of a rare class counts so many times at the most, as if all classes had as many."""
_MIDDLE = 1 << 62
"""Added to a lane, it makes each value positive."""

Instance = tuple[tuple[Sequence[int], ...], int]
"""The features of an example in blocks of equal weight, and its class; a class beyond the last is none."""


class Machine:
    """Learns from instances, and holds the weights: for each feature, its lanes times its `idf`."""

    def __init__(self, idf: Sequence[int], classes: int, cost: float) -> None:
        """`idf` has a small whole number for each feature; with a greater `cost` examples count more."""
        self._classes = classes
        self._cost = cost
        self._squares = [value * value for value in idf]
        self._rests = [0.0] * classes
        self._bias = _packed([_MIDDLE] * classes)
        self.rows = [0] * len(idf)

    def learn(self, instances: Sequence[Instance], epochs: int) -> None:
        """Pass over all instances, each time in another order; one that changed nothing is left out once."""
        alphas = [[0.0] * self._classes for _ in instances]
        counts = Counter(label for _, label in instances)
        for label in range(self._classes):
            rarity = len(instances) / (self._classes * max(1, counts[label]))
            self._rests[label] = 0.5 / (self._cost * max(1.0, min(RAREST, rarity)))
        norms = [[self._norm(block, len(blocks)) for block in blocks] for blocks, _ in instances]
        order = list(range(len(instances)))
        settled: set[int] = set()
        seed = 1
        for epoch in range(epochs):
            for at in range(len(order) - 1, 0, -1):
                seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
                other = (seed >> 8) % (at + 1)
                order[at], order[other] = order[other], order[at]
            for at in order:
                if at in settled:
                    settled.remove(at)
                elif not self._step(instances[at], alphas[at], norms[at], 1e-2 if epoch else 0.0):
                    settled.add(at)

    def scores(self, blocks: Sequence[Sequence[int]]) -> list[float]:
        """The score of each class; above 0 speaks for it."""
        totals = [0.0] * self._classes
        for block in blocks:
            norm = self._norm(block, len(blocks)) / SCALE
            lanes = self._lanes(block)
            totals = [total + lane * norm for total, lane in zip(totals, lanes, strict=True)]
        return totals

    def lanes(self, feature: int) -> list[int]:
        """The weights of a feature, one for each class, in units of `SCALE`."""
        return self._lanes([feature])

    def _lanes(self, block: Sequence[int]) -> list[int]:
        rows = self.rows
        total = sum([rows[feature] for feature in block], self._bias)
        return [lane - _MIDDLE for lane in array("Q", total.to_bytes(8 * self._classes, "little"))]

    def _norm(self, block: Sequence[int], blocks: int) -> float:
        """What scales a block of an instance so that all blocks together have length 1."""
        length = sum([self._squares[feature] for feature in block])
        return 1 / math.sqrt(length * blocks) if length else 0.0

    def _step(self, instance: Instance, alphas: list[float], norms: Sequence[float], enough: float) -> bool:
        """Learn from one instance; whether that changed anything."""
        blocks, label = instance
        totals = [0.0] * self._classes
        for block, norm in zip(blocks, norms, strict=True):
            scale = norm / SCALE
            totals = [total + lane * scale for total, lane in zip(totals, self._lanes(block), strict=True)]
        rest = 0.5 / self._cost
        own = self._rests[label] if label < self._classes else rest
        steps = [0] * self._classes
        moved = False
        for number, score in enumerate(totals):
            alpha = alphas[number]
            mine = own if number == label else rest
            gap = (1.0 - score if number == label else 1.0 + score) - alpha * mine
            if gap <= 0.0 and alpha == 0.0:
                continue
            after = max(alpha + gap / (1.0 + mine), 0.0)
            if abs(after - alpha) > enough:
                alphas[number] = after
                steps[number] = round((after - alpha if number == label else alpha - after) * SCALE)
                moved = True
        if moved:
            self._move(blocks, norms, steps)
        return moved

    def _move(self, blocks: Sequence[Sequence[int]], norms: Sequence[float], steps: Sequence[int]) -> None:
        rows, squares = self.rows, self._squares
        for block, norm in zip(blocks, norms, strict=True):
            delta = _packed([round(step * norm) + _MIDDLE for step in steps]) - self._bias
            for feature in block:
                rows[feature] += delta * squares[feature]


def _packed(lanes: Sequence[int]) -> int:
    return int.from_bytes(array("Q", lanes).tobytes(), "little")
