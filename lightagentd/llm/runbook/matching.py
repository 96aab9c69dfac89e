"""Finds the runbook for a prompt, and the arguments in it: learned from examples, without a model.

`SkillIndex` is made from the loaded skills. A prompt goes through `recogniser.recognise` and `Tagger.tag`;
then the learned weights score each shipped skill, and `none`. An administrator's skill, which is not among
what was learned, counts by how like the prompt is to one of its examples. Below the threshold there is no
match, only what is `nearest`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lightagentd.llm.runbook.features import COURTESY, features, folded, hashed, words_in
from lightagentd.llm.runbook.names import Names
from lightagentd.llm.runbook.recogniser import LOOKED_AT_CHARS, Token, recognise
from lightagentd.llm.runbook.tagging import Named, Tagger
from lightagentd.llm.runbook.weights import Weights, load
from lightagentd.skills import Skill

NONE = "none"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_NAMES = Names()
_PHRASED = ("path", "priority")
"""Kinds that one word may mean: `root` is the path `/`."""
_COMMON = 24
"""A word of this rarity, such as `the`, says nothing."""
_ALIKE = 0.45
"""From this likeness to one of its examples on, an administrator's skill is meant."""
_MOST = 300
"""So many examples of an administrator's skill count."""
_NEAR = -1.0
"""A skill with a lesser score is not offered."""
_CHANGES = _words(
    "restart reload stop start kill delete remove install uninstall disable enable upgrade update configure "
    "create add edit set reset clear clean mask unmask renew apply extend rotate unban unlock unmount format "
    "increase reduce fix build"
)
_ORDER = re.compile(
    r"(?:^|[,;.!]\s*|\b(?:and|then)\s+)(?!do (?:i|we) (?:need|have) to\b|should (?:i|we)\b)"
    r"(?:(?:please|pls|just|now|hey|hi|ok|can|could|would|will|you|u|i|we|how|do|to|should|must|let's|go|"
    r"ahead|kindly|need|want)[, ]+)*(?P<verb>[a-z]+) (?:the |my |our )?(?P<object>[^\s?.,!:-]+)"
)
"""The verb that begins a clause, and what stands behind it."""
_NOUNS = _words(
    "time times history reason cause count counts status log logs errors error failed failing fails failure "
    "job jobs limit loop loops counter counters events due got date after took needed required pending "
    "anything another or and"
)
"""After one of these a verb was a noun: `reboot history`."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """The runbook that answers a prompt."""

    skill: str
    args: dict[str, str]
    effect: str
    confidence: float
    """From the threshold to 1."""


_FULL = "--full"
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_LEAD = re.compile(r"(?:(?:and|now|ok|okay|so|then)\b[,:]?\s+)+", re.IGNORECASE)
"""Words that lead from a report to the question, as in `Now check disk`."""
_BETWEEN_CLAUSES = re.compile(r"(?<=[,;:!?.)])\s+|\s+(?=\()")


class SkillIndex:
    """All runbooks, ready to match prompts. Skills without a script are left out."""

    def __init__(self, skills: Iterable[Skill], weights: Weights | None = None) -> None:
        self._weights = weights or load()
        self._tagger = Tagger(self._weights)
        self._skills = {skill.name: skill for skill in skills if skill.runbook is not None}
        self._titles = {_plain(name): name for name in self._skills}
        self._own: list[tuple[str, dict[str, int]]] = []
        for skill in self._skills.values():
            if skill.name not in self._weights.skills.classes:
                for text in (*(example.text for example in skill.examples[:_MOST]), skill.description):
                    self._titles.setdefault(_plain(text), skill.name)
                    self._own.append((skill.name, self._weighed(self._tokens(text, _NO_NAMES, None))))

    def match(self, prompt: str, *, now: datetime | None = None, names: Names = _NO_NAMES) -> Match | None:
        """The runbook for a prompt, or None. `now` is local time, for weekdays; `names` exist here. The word
        `--full` in the prompt asks for all of a report.
        """
        prompt = prompt[:LOOKED_AT_CHARS]
        words = prompt.split()
        if _FULL not in words:
            return self._match(prompt, now, names)
        found = self._match(" ".join(word for word in words if word != _FULL), now, names)
        if found is None or "full" not in self._skills[found.skill].args:
            return found
        return replace(found, args={**found.args, "full": "yes"})

    def _match(self, prompt: str, now: datetime | None, names: Names) -> Match | None:
        """For the whole prompt, else without what is pasted between fences, else for its last paragraph, else
        without the words that lead to it, else without clauses of nothing but unknown words.

        What uses the network is only for the person's own words: who writes into a log that is pasted must
        not choose a host that this machine asks. These are the first line, if it asks or announces something,
        else the last paragraph.
        """
        unfenced = _FENCED.sub(" ", prompt).strip()
        last = unfenced.rpartition("\n\n")[2].strip()
        lead = _LEAD.match(last)
        asked_for = last[lead.end() :] if lead else last
        texts = dict.fromkeys((prompt, unfenced, last, asked_for, self._without_asides(last)))
        found = next((found for text in texts if (found := self._match_text(text, now, names))), None)
        if found is None or found.effect != "reach" or "\n" not in prompt:
            return found
        first, _, rest = unfenced.partition("\n")
        asked = self._match_text(first, now, names)
        announces = bool(rest.strip()) and first.rstrip().endswith(("?", ":"))
        return asked if asked or announces else self._match_text(last, now, names)

    def _without_asides(self, prompt: str) -> str:
        clauses = _BETWEEN_CLAUSES.split(prompt)
        said = [(clause, words_in(COURTESY.sub(" ", folded(clause)))) for clause in clauses]
        known = [clause for clause, words in said if any(word in self._weights.words for word in words)]
        return " ".join(known).rstrip(",;: ")

    def _match_text(self, prompt: str, now: datetime | None, names: Names) -> Match | None:
        plain = _plain(prompt)
        tokens = self._tokens(prompt, names, now)
        if plain in self._titles:
            return self._matched(self._titles[plain], tokens, names, 1.0)
        if own := self._alike(tokens):
            return self._matched(own[0], tokens, names, own[1])
        name, evidence = self._judged(prompt, tokens)
        confidence = self._confidence(evidence)
        if name not in self._skills or confidence < self._weights.threshold:
            return None
        return self._matched(name, tokens, names, confidence)

    def judged(self, prompt: str, *, now: datetime) -> tuple[str, tuple[float, ...]]:
        """For those who measure: the skill or `none` that comes first, and the evidence for it."""
        return self._judged(prompt, self._tokens(prompt, _NO_NAMES, now))

    def arguments(self, skill: str, prompt: str, *, now: datetime) -> dict[str, str]:
        """For those who measure: the arguments in a prompt for a skill."""
        return self._arguments(
            self._skills[skill], self._tagger.tag(self._tokens(prompt, _NO_NAMES, now), _NO_NAMES, skill)
        )

    def nearest(self, prompt: str) -> list[str]:
        """For a prompt without a match: an example of each of the two nearest skills, if any is near."""
        prompt = prompt[:LOOKED_AT_CHARS]
        tokens = self._tokens(prompt, _NO_NAMES, None)
        ranked = self._ranked(tokens) if _is_latin(prompt) else []
        near = [
            self._skills[name].prompts for name, score in ranked[:3] if name in self._skills and score > _NEAR
        ]
        return [prompts[0] for prompts in near[:2] if prompts]

    def _tokens(self, prompt: str, names: Names, now: datetime | None) -> list[Token]:
        return self._tagger.tag(recognise(prompt, now or datetime.now().astimezone()), names)

    def _ranked(self, tokens: Sequence[Token]) -> list[tuple[str, float]]:
        scores = self._weights.skills.scores(features(tokens))
        return sorted(zip(self._weights.skills.classes, scores, strict=True), key=lambda item: -item[1])

    def _judged(self, prompt: str, tokens: Sequence[Token]) -> tuple[str, tuple[float, ...]]:
        ranked = self._ranked(tokens)
        name = ranked[0][0] if _is_latin(prompt) and not _orders(prompt) else NONE
        best, second = ranked[0][1], ranked[1][1]
        known = self._weights.skills.known(features(tokens))
        return name, (best, best - second, dict(ranked)[NONE], known, 1.0)

    def _confidence(self, evidence: Sequence[float]) -> float:
        """How likely the skill is the right one."""
        odds = math.fsum(
            weight * value for weight, value in zip(self._weights.confidence, evidence, strict=True)
        )
        return 1 / (1 + math.exp(-odds))

    def _weighed(self, tokens: Sequence[Token]) -> dict[str, int]:
        """The words of a text, and how much each says; a frequent one says nothing."""
        words = {word for token in tokens if token.kind in ("", "name") for word in words_in(token.raw)}
        return {word: max(0, self._weights.skills.rarity(hashed(word)) - _COMMON) ** 2 for word in words}

    def _alike(self, tokens: Sequence[Token]) -> tuple[str, float] | None:
        """The administrator's skill whose example is most like the prompt, and how much."""
        if not self._own:
            return None
        asked = self._weighed(tokens)
        likeness, name = max((_likeness(asked, example), name) for name, example in self._own)
        return (name, likeness) if likeness >= _ALIKE else None

    def _matched(self, name: str, tokens: Sequence[Token], names: Names, confidence: float) -> Match:
        skill = self._skills[name]
        args = self._arguments(skill, self._tagger.tag(tokens, names, name))
        return Match(skill=name, args=args, effect=skill.effect_of(args), confidence=round(confidence, 3))

    def _arguments(self, skill: Skill, tokens: Sequence[Token]) -> dict[str, str]:
        """The arguments of a skill: those with a shape first, then phrases, then names."""
        found: dict[str, str] = {}
        wanted: dict[str, str] = {}
        for name, spec in skill.args.items():
            wanted.setdefault(spec.kind, name)
        for token in tokens:
            if token.kind in wanted and wanted[token.kind] not in found:
                found[wanted[token.kind]] = token.value
            elif token.kind == "host" and "port" in wanted and "host" not in wanted and ":" in token.value:
                found.setdefault(wanted["port"], token.value.rpartition(":")[2])
        for kind, name in wanted.items():
            if name not in found and (meant := self._phrase(kind, tokens)) is not None:
                found[name] = meant
        for token in sorted(
            [token for token in tokens if isinstance(token, Named)], key=lambda token: token.weak
        ):
            for kind, value in token.candidates.items():
                if kind in wanted:
                    found.setdefault(wanted[kind], value)
                    break
        return found

    def _phrase(self, kind: str, tokens: Sequence[Token]) -> str | None:
        """The value of the longest phrase in the prompt that means one of this kind."""
        phrases = self._weights.phrases.get(kind)
        if not phrases:
            return None
        words = [folded(token.raw) if token.kind in ("", "name") else token.text for token in tokens]
        for length in (4, 3, 2, 1) if kind in _PHRASED else (4, 3, 2):
            for at in range(len(words) - length + 1):
                if (meant := phrases.get(" ".join(words[at : at + length]))) is not None:
                    return meant
        return None


def match(prompt: str, skills: Iterable[Skill]) -> Match | None:
    """Match one prompt; keep a `SkillIndex` to match many."""
    return SkillIndex(skills).match(prompt)


def _likeness(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The cosine between two texts."""
    both = sum([weight for word, weight in one.items() if word in other])
    return both / math.sqrt(sum(one.values()) * sum(other.values())) if both else 0.0


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", folded(text)))


def _is_latin(prompt: str) -> bool:
    """Whether most letters of a prompt are Latin ones."""
    letters = [char for char in prompt[:300] if char.isalpha()]
    return bool(letters) and 2 * sum(char < "\u0250" for char in letters) > len(letters)


def _orders(prompt: str) -> bool:
    """Whether a clause of the prompt begins with a verb that asks for a change."""
    orders = [(found["verb"], found["object"]) for found in _ORDER.finditer(prompt.casefold())]
    return any(verb in _CHANGES and what not in _NOUNS for verb, what in orders)
