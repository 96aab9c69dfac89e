"""Ranks documents by the terms that they hold: Okapi BM25.

See Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009). A document is its
terms with their frequencies; where these are weighted by the field that a term stands in and added up, the
method is BM25F (section 3.6). A ranking is made once from its documents and holds no resources.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence


class Ranking:
    """For each term the documents that hold it, in arrays. Documents are known by their number."""

    def __init__(
        self,
        documents: Sequence[Mapping[str, float]],
        *,
        k1: float,
        b: float,
        terms: Collection[str] | None = None,
    ) -> None:
        """`k1`: how soon repetition stops to count; `b`: how much a long document makes up for.

        With `terms`, only these can be asked for.
        """
        lengths = [sum(document.values()) for document in documents]
        average = (sum(lengths) / len(lengths) if lengths else 0.0) or 1.0
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        for number, document in enumerate(documents):
            norm = k1 * (1 - b + b * lengths[number] / average)
            for term in document if terms is None else [term for term in terms if term in document]:
                numbers, scores = self._postings.setdefault(term, (array("I"), array("f")))
                numbers.append(number)
                scores.append(document[term] * (k1 + 1) / (document[term] + norm))
        self._rarity = {
            term: math.log(1 + (len(documents) - len(numbers) + 0.5) / (len(numbers) + 0.5))
            for term, (numbers, _) in self._postings.items()
        }

    def __contains__(self, term: str) -> bool:
        return term in self._postings

    def __iter__(self) -> Iterator[str]:
        """The terms that a document holds."""
        return iter(self._postings)

    def scores(self, term: str, weight: float = 1.0) -> Iterator[tuple[int, float]]:
        """The documents that hold a term, each with what the term adds to its score."""
        if term in self._postings:
            factor = weight * self._rarity[term]
            for number, score in zip(*self._postings[term], strict=True):
                yield number, factor * score
