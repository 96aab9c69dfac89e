"""Finds the texts whose words fit a question best."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from lightagentd.text.ranking import Ranking

_K1, _B = 1.2, 0.75
"""How soon a word's repetition stops to count, and how much a long text has to make up for."""
_WORD = re.compile(r"[^\W_]+")
_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
"""Scripts that write words without spaces between them, or nearly so: pairs of characters stand for words."""


def words(text: str) -> list[str]:
    """The words of a text, folded: without case, accents and the s of a plural."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", plain)):
        if _WITHOUT_SPACES.search(word):
            found += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        elif len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
            found.append(word[:-1])
        else:
            found.append(word)
    return found


def scores(query: str, texts: Sequence[Counter[str]]) -> list[float]:
    """The score of each text, given as counted words, for a query; 0 when they share no word."""
    asked = set(words(query))
    ranking = Ranking(texts, k1=_K1, b=_B, terms=asked)
    found = [0.0] * len(texts)
    for word in asked:
        for at, score in ranking.scores(word):
            found[at] += score
    return found
