"""Ranks functions by the words of a prompt: BM25 over weighted fields, with synonyms. No model is asked.

An index is made once from a toolbox and holds no resources. The frequencies of a term in the fields of a
function are weighted and added up before they saturate. Each word of the prompt counts once, with its best
meaning. The weights were tuned on `tests/agents/tool_choice/prompts.txt`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.agents.tool_calls.described import ActionInfo, ToolInfo
from lightagentd.agents.tool_choice.stems import stem
from lightagentd.agents.tool_choice.synonyms import MEANT
from lightagentd.agents.tool_choice.words import (
    asked,
    asks,
    once,
    phrases,
    shapes,
    terms,
    without_names,
    words,
)
from lightagentd.text.ranking import Ranking
from lightagentd.tool import Effect

_TOOL, _ACTION, _SUMMARY, _REST, _TOOL_TEXT, _ARGUMENT, _ARGUMENT_TEXT = 2.6, 4.6, 2.25, 1.0, 0.75, 1.6, 0.9
"""How much a word counts by where it stands."""
_SATURATION, _LENGTH = 1.2, 0.25
"""k1 and b of BM25."""
_MEANT, _SHAPED, _IN_NAME = 0.65, 1.0, 0.12
"""How much a synonym counts, what a thing in the prompt looks like, and a word in a path or an address,
against a word that stands in the prompt."""
_COVERED, _TOPIC = 0.4, 0.36
"""How much it counts that the words of a function's name are asked for, and that its tool's topic is."""
_UNASKED_CHANGE = 0.45
"""What is left of the score of what changes something where the prompt asks what is."""
_REPEATED = 0.975
"""What is left of the score with each better function of the same tool: others are to be seen, too."""
_RERANKED = 300
"""How many of those with the best words are looked at as a whole; no more are ever given."""
_KIN, _KIN_CHARS = 0.25, 6
"""How much a term counts that begins with as many letters as one that no function has."""
_QUESTION = "?"
_TO_LOOK: dict[str, float] = {
    "list": 0.3,
    "show": 0.3,
    "get": 0.3,
    "stat": 0.3,
    "info": 0.3,
    "query": 0.3,
    "status": 0.3,
}
"""What a question may mean beside its words."""
_MAX_TERMS = 200
"""More different words of one prompt do not count."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A matching function, with the words of the prompt that matched."""

    function: str
    score: float
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is known of one function beside its terms."""

    function: str
    tool: str
    name: frozenset[str]
    topic: frozenset[str]
    changes: bool


class ToolIndex:
    """The words of all functions of a toolbox."""

    def __init__(self, tools: Mapping[str, ToolInfo]) -> None:
        found = {action.function: (tool, action) for tool in tools.values() for action in tool.actions}
        self._known = [_known(tool, action) for tool, action in found.values()]
        documents = [_document(tool, action) for tool, action in found.values()]
        self._ranking = Ranking(documents, k1=_SATURATION, b=_LENGTH)
        self._by_beginning: defaultdict[str, list[str]] = defaultdict(list)
        for term in self._ranking:
            if len(term) >= _KIN_CHARS:
                self._by_beginning[term[:_KIN_CHARS]].append(term)
        self._by_spelling = {once(term): term for term in (*MEANT, *self._ranking)}

    def rank(self, prompt: str, *, among: Collection[str] | None = None, limit: int = _RERANKED) -> list[Hit]:
        """The functions of `among` that match a prompt, the best first."""
        said = asked(prompt)
        query: dict[str, dict[str, float]] = {}
        for word, meanings in _query(said, self._mend).items():
            query[word] = self._with_kin(meanings)
        if question := asks(said):
            query[_QUESTION] = _TO_LOOK
        found: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for word, meanings in query.items():
            for number, score in self._scores(meanings).items():
                found[number][word] = score
        meant = {term for meanings in query.values() for term in meanings}
        sums = sorted(
            (-sum(scores.values()), number)
            for number, scores in found.items()
            if among is None or self._known[number].function in among
        )
        scored = [
            (negative * _fit(self._known[number], meant, question=question), number)
            for negative, number in sums[:_RERANKED]
        ]
        return [
            Hit(function=self._known[number].function, score=score, words=_shown(found[number]))
            for score, number in self._spread(sorted(scored))[:limit]
        ]

    def _mend(self, term: str) -> str:
        """A known term for an unknown one with other doubled letters: `address` for `adress`."""
        known = term in self._ranking or term in MEANT
        return term if known else self._by_spelling.get(once(term), term)

    def _with_kin(self, meanings: dict[str, float]) -> dict[str, float]:
        """For a term that no function has, also known terms with the same beginning: `connection` for
        `connecting`.
        """
        unknown = [term for term in meanings if term not in self._ranking and len(term) >= _KIN_CHARS]
        kin = {
            other: meanings[term] * _KIN
            for term in unknown
            for other in self._by_beginning.get(term[:_KIN_CHARS], ())
        }
        return {**kin, **meanings} if kin else meanings

    def _scores(self, meanings: Mapping[str, float]) -> dict[int, float]:
        """For each function that has a meaning of the word, the best score."""
        best: dict[int, float] = {}
        for term, weight in meanings.items():
            for number, score in self._ranking.scores(term, weight):
                if score > best.get(number, 0.0):
                    best[number] = score
        return best

    def _spread(self, scored: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
        """The best first, with fewer of one tool in a row."""
        seen: Counter[str] = Counter()
        found = []
        for negative, number in scored:
            tool = self._known[number].tool
            found.append((-negative * _REPEATED ** seen[tool], number))
            seen[tool] += 1
        return sorted(found, key=lambda one: (-one[0], one[1]))


def _shown(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for word in found if word != _QUESTION)


def _fit(known: _Known, meant: Collection[str], *, question: bool) -> float:
    """A factor for the score: how well the function as a whole matches the request."""
    covered = sum(term in meant for term in known.name) / len(known.name) if known.name else 0.0
    factor = 1 - _COVERED + _COVERED * covered
    if not known.topic.isdisjoint(meant):
        factor *= 1 + _TOPIC
    return factor * _UNASKED_CHANGE if question and known.changes else factor


def _known(tool: ToolInfo, action: ActionInfo) -> _Known:
    return _Known(
        function=action.function,
        tool=tool.name,
        name=frozenset(terms(action.function)),
        topic=frozenset([*terms(tool.name), *terms(tool.description)]),
        changes=action.effect is Effect.CHANGE,
    )


def _document(tool: ToolInfo, action: ActionInfo) -> dict[str, float]:
    """The terms of one function, each with its weight."""
    weights: defaultdict[str, float] = defaultdict(float)

    def add(text: str, weight: float) -> None:
        for term in terms(text):
            weights[term] += weight

    summary, _, rest = action.description.partition("\n\n")
    add(tool.name, _TOOL)
    add(action.name, _ACTION)
    add(summary, _SUMMARY)
    add(rest, _REST)
    add(tool.description, _TOOL_TEXT)
    properties = action.schema.get("properties")
    for name, described in properties.items() if isinstance(properties, dict) else ():
        add(name, _ARGUMENT)
        add(_text_of(described), _ARGUMENT_TEXT)
    return weights


def _text_of(described: Any) -> str:
    """The text of an argument's schema: its description and its allowed values."""
    if not isinstance(described, dict):
        return ""
    values = described.get("enum")
    chosen = " ".join(map(str, values[:50])) if isinstance(values, list) else ""
    return f"{described.get('description', '')} {chosen}"


def _query(said: str, mend: Callable[[str], str]) -> dict[str, dict[str, float]]:
    """For each word of a prompt the terms that it may mean, with weights. `mend` corrects terms."""
    text, names = without_names(said)
    found: dict[str, dict[str, float]] = {}
    seen: set[str] = set()

    def add(word: str, weight: float, *, meant: bool = False) -> None:
        term = mend(stem(word))
        if term not in seen and len(found) < _MAX_TERMS:
            seen.add(term)
            others = dict.fromkeys(MEANT.get(term, ()), _MEANT * weight) if meant else {}
            found[word] = {**others, term: weight}

    for word in words(text):
        add(word, 1.0, meant=True)
    for phrase in phrases(text):
        if phrase in MEANT:
            found[phrase] = dict.fromkeys(MEANT[phrase], _MEANT)
    for word in shapes(said):
        add(word, _SHAPED)
    for word in words(names):
        add(word, _IN_NAME)
    return found
