"""The learned weights: `weights.bin` beside this module, written by `make generate` (`packaging/learning`).

The file has one line of JSON, then for each of two linear classifiers its features (CRC-32, ascending), their
inverse document frequencies and the weights of each class, a byte each. The first classifier says which skill
answers a prompt, the second which kind of name a word is. A score above 0 speaks for a class.

`load` reads it all, some 2 MiB, at its first use and for good.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("weights.bin")


class Linear:
    """A linear classifier over hashed features."""

    def __init__(self, classes: Sequence[str], scale: float, data: tuple[bytes, bytes, bytes]) -> None:
        """`data` has the features, their frequencies, and the weights in rows; a weight of 1 is `scale`."""
        self.classes = tuple(classes)
        self._scale = scale
        self._features = array("I", data[0])
        if sys.byteorder != "little":
            self._features.byteswap()
        self._idf = data[1]
        self._rows = array("b", data[2])

    def rarity(self, feature: int) -> int:
        """The inverse document frequency of a feature; for one that was never learned, that of the rarest."""
        at = self._at(feature)
        return self._idf[at] if at >= 0 else max(self._idf, default=1)

    def known(self, blocks: Sequence[Sequence[int]]) -> float:
        """The share of the features that were learned."""
        total = sum(map(len, blocks))
        return sum(self._at(feature) >= 0 for block in blocks for feature in block) / total if total else 0.0

    def scores(self, blocks: Sequence[Sequence[int]]) -> list[float]:
        """The score of each class for features in blocks of equal weight."""
        width = len(self.classes)
        totals = [0.0] * width
        for block in blocks:
            known = [at for at in map(self._at, block) if at >= 0]
            squares = sum([self._idf[at] ** 2 for at in known])
            if not squares:
                continue
            norm = self._scale / math.sqrt(squares * len(blocks))
            rows = [self._rows[at * width : (at + 1) * width] for at in known]
            totals = [
                total + sum(lane) * norm for total, lane in zip(totals, zip(*rows, strict=True), strict=True)
            ]
        return totals

    def _at(self, feature: int) -> int:
        at = bisect_left(self._features, feature)
        return at if at < len(self._features) and self._features[at] == feature else -1


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All that was learned."""

    skills: Linear
    """Its classes are skills and `none`."""
    kinds: Linear
    """Its classes are the kinds of names."""
    words: frozenset[str]
    """Words that people use otherwise than as names."""
    marked: frozenset[str]
    """Words that are names at least now and then."""
    phrases: Mapping[str, Mapping[str, str]]
    """By kind, phrases and the value that they mean: `root partition` is the path `/`."""
    confidence: tuple[float, float, float, float, float]
    """What the best score, its distance from the next, that of `none`, the share of known features, and 1
    count in the logarithm of the odds of a match."""
    threshold: float
    """The least confidence of a match."""


@cache
def load(path: Path = FILE) -> Weights:
    """Read the file, once."""
    line, _, data = path.read_bytes().partition(b"\n")
    head = json.loads(line)
    at = 0
    linears = []
    for part in ("skills", "kinds"):
        classes, count = head[part]["classes"], head[part]["features"]
        pieces = []
        for size in (4 * count, count, len(classes) * count):
            pieces.append(data[at : at + size])
            at += size
        linears.append(Linear(classes, head[part]["scale"], (pieces[0], pieces[1], pieces[2])))
    return Weights(
        skills=linears[0],
        kinds=linears[1],
        words=frozenset(head["words"].split()),
        marked=frozenset(head["marked"].split()),
        phrases=head["phrases"],
        confidence=tuple(head["confidence"]),
        threshold=head["threshold"],
    )
