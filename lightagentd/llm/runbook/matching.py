"""Matches a prompt to a runbook and extracts its arguments: lexical, deterministic, without a model.

`SkillIndex` is built once from the loaded skills and holds no resources. A prompt goes through
`arguments.extract`, then `intent` refuses requests for changes and other subjects, then each skill is scored
by the weighted words of its front matter, and a little by its description and examples. The confidence falls
with each word that no skill and no list knows; below `THRESHOLD`, or when two skills are equally likely,
there is no match.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lightagentd.llm.runbook.arguments import extract
from lightagentd.llm.runbook.elsewhere import ANCHORS, ELSEWHERE, HOMONYMS, OFF_TOPIC
from lightagentd.llm.runbook.intent import asks_to_change
from lightagentd.llm.runbook.names import Names
from lightagentd.llm.runbook.offtopic import is_foreign, is_other_talk
from lightagentd.llm.runbook.tokens import Token, asks, clauses_of, tokenize
from lightagentd.llm.runbook.vocabulary import CHANGE_VERBS, GROUPS, NEUTRAL, UNITS, words
from lightagentd.llm.runbook.weights import PROMPTS, WORDS
from lightagentd.llm.runbook.wording import Speller, stem
from lightagentd.skills import Skill

THRESHOLD = 0.6
"""The least confidence of a match; tuned on the phrasings of `tests/llm/runbook/test_matching.py`."""
_ENOUGH = 2.8
"""The least score: one word that decides alone, or two that need company."""
_ALONE = 3.9
"""From this score on, of two equally likely skills the one that is named first in the prompt wins."""
_DOUBT, _DOUBT_UNASKED, _DOUBT_ELSEWHERE = 2.8, 3.5, 0.7
"""How much an unknown word weighs against a match: in a question, else, and in a clause without evidence."""
_DOUBT_ANCHORED = 0.6
"""The same where an administrator's word stands in the prompt."""
_MOST = 12.0
"""More evidence than this does not outweigh more unknown words."""
_NO_NAMES = Names()
_NO_SKILL = ""
"""Stands among the skills for what none of them answers."""
_BARE_ARGUMENT = 3
"""An argument alone, such as a unit, decides only in prompts of so many words that are not fillers."""
_BEFORE_NAMES = words("user did has by account named is was")
_BEFORE_DOING = words("what who are keeps been process something anything")
"""After one of these an unknown word is a person's name, or says what something does."""
_VAGUE = frozenset(("<unit>", "<host>", "<path>"))
_ANCHORING = frozenset(("<unit>", "<host>", "<path>", "<pid>", "<interface>", "<flag>"))
_ANCHOR_STEMS = frozenset(stem(word) for word in ANCHORS)
_HOMONYM_STEMS = frozenset(stem(word) for word in HOMONYMS)
_FILLERS = words(
    "the a an my our your this that these those is are was were it its of all any some actually "
    "currently now please so very too really just still"
)
_TIME_WORDS = words(
    "yesterday today tonight morning afternoon evening midnight hour hours minute minutes second "
    "seconds week weeks month months days since last monday tuesday wednesday thursday friday "
    "saturday sunday weekend noon overnight process partition filesystem directory folder service "
    "daemon reboot restart"
)


@dataclass(frozen=True, kw_only=True)
class Match:
    """The runbook that answers a prompt."""

    skill: str
    args: dict[str, str]
    effect: str
    confidence: float
    """From `THRESHOLD` to 1."""


@dataclass(kw_only=True)
class _Evidence:
    score: float = 0.0
    at: set[int] = field(default_factory=set)
    """Positions of the tokens that count for the skill."""


class SkillIndex:
    """The words of all runbooks, ready to match prompts. Skills without a script are left out."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._skills = {skill.name: skill for skill in skills if skill.runbook is not None}
        self._phrases: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        self._examples: dict[str, str] = {}
        spelled: set[str] = set(_TIME_WORDS)
        for skill in self._skills.values():
            for phrase, weight in _words_of(skill).items():
                spelled.update(token.word for token in tokenize(phrase))
                weights = self._phrases[_stems(tokenize(phrase))]
                weights[skill.name] = max(weight, weights.get(skill.name, weight), key=abs)
            for example in _prompts_of(skill):
                self._examples.setdefault(_normal(example), skill.name)
        self._learn_elsewhere()
        self._learn_texts()
        self._known = {word for phrase in self._phrases for word in phrase} | {stem(word) for word in NEUTRAL}
        self._longest = max((len(phrase) for phrase in self._phrases), default=1)
        plain = NEUTRAL | CHANGE_VERBS | OFF_TOPIC | ANCHORS | HOMONYMS | words(" ".join(ELSEWHERE.values()))
        self._speller = Speller(spelled | CHANGE_VERBS | UNITS, plain)

    def match(self, prompt: str, *, now: datetime | None = None, names: Names = _NO_NAMES) -> Match | None:
        """The runbook for a prompt, or None. `now` is local time, for weekdays and dates."""
        found = extract(prompt, self._speller, now or datetime.now().astimezone(), names)
        tokens = tokenize(found.text)
        exact = self._examples.get(_normal(prompt))
        if exact is not None:
            return self._matched(exact, found.values, 1.0)
        if not tokens or is_foreign(found.text) or is_other_talk(tokens) or asks_to_change(tokens):
            return None
        evidence = self._weigh(tokens)
        ranked = sorted(
            evidence.items(), key=lambda item: (-round(item[1].score, 1), min(item[1].at, default=0), item[0])
        )
        if not ranked or ranked[0][0] == _NO_SKILL or ranked[0][1].score < _ENOUGH:
            return None
        name, best = ranked[0]
        if len(ranked) > 1 and best.score < _ALONE and best.score - ranked[1][1].score < 0.1:
            return None
        if len(best.at) == 1 and tokens[min(best.at)].text in _VAGUE and _content(tokens) > _BARE_ARGUMENT:
            return None
        confidence = self._confidence(tokens, best)
        return self._matched(name, found.values, confidence) if confidence >= THRESHOLD else None

    def _learn_texts(self) -> None:
        """Words of descriptions and examples count too: much where a skill names no words, else a little."""
        users: dict[str, dict[str, float]] = defaultdict(dict)
        for skill in self._skills.values():
            share = 1.0 if skill.name not in WORDS else 0.2
            for text, weight in ((skill.description, 1.5), *((prompt, 3.0) for prompt in _prompts_of(skill))):
                for token in tokenize(text):
                    word = stem(token.text)
                    if (
                        token.text not in NEUTRAL
                        and word.isalpha()
                        and len(word) > 1
                        and word not in _FILLERS
                    ):
                        users[word][skill.name] = max(users[word].get(skill.name, 0.0), weight * share)
        for word, weights in users.items():
            for name, weight in weights.items():
                self._phrases[(word,)].setdefault(name, weight / len(weights))

    def _learn_elsewhere(self) -> None:
        """Phrases that no skill answers, except those that a skill names, such as an administrator's own."""
        named = set(self._phrases)
        told = [
            {
                stem(token.text)
                for text in (skill.description, *_prompts_of(skill))
                for token in tokenize(text)
            }
            for skill in self._skills.values()
            if skill.name not in WORDS
        ]
        for weight, phrases in ELSEWHERE.items():
            for phrase in map(_stems, map(tokenize, phrases.split(","))):
                if phrase not in named and not any(texts.issuperset(phrase) for texts in told):
                    self._phrases[phrase][_NO_SKILL] = weight

    def _weigh(self, tokens: Sequence[Token]) -> dict[str, _Evidence]:
        evidence: dict[str, _Evidence] = defaultdict(_Evidence)
        positions = [at for at, token in enumerate(tokens) if token.text not in _FILLERS]
        forms = [_forms(tokens[at]) for at in positions]
        seen: set[tuple[str, ...]] = set()
        for start in range(len(positions)):
            runs: list[tuple[str, ...]] = [()]
            for end in range(start, min(start + self._longest, len(positions))):
                runs = [(*run, form) for run in runs for form in forms[end]]
                for run in runs:
                    weights = self._phrases.get(run)
                    if weights is None or run in seen:
                        continue
                    seen.add(run)
                    for name, weight in weights.items():
                        evidence[name].score += weight
                        if weight > 0:
                            evidence[name].at.update(positions[start : end + 1])
        return evidence

    def _confidence(self, tokens: Sequence[Token], best: _Evidence) -> float:
        doubt = 0.0
        each = _DOUBT if asks(tokens) else _DOUBT_UNASKED
        elsewhere = _DOUBT_ELSEWHERE
        if _is_technical(tokens):
            each, elsewhere = _DOUBT_ANCHORED, _DOUBT_ANCHORED / 2
        proof = {id(tokens[at]) for at in best.at}
        for clause in clauses_of(tokens):
            weight = each if any(id(token) in proof for token in clause) else elsewhere
            doubt += weight * sum(not self._is_known(clause, at) for at in range(len(clause)))
        score = min(best.score, _MOST)
        return score / (score + doubt)

    def _is_known(self, clause: Sequence[Token], at: int) -> bool:
        text = clause[at].text
        if not text.isalpha() or len(text) < 2:
            return True
        if text in NEUTRAL or text in CHANGE_VERBS or stem(text) in self._known:
            return True
        if text.endswith("ly") and len(text) > 4:
            return True  # an adverb says how, not what
        before = clause[at - 1].text if at else ""
        return before in _BEFORE_NAMES or (text.endswith("ing") and before in _BEFORE_DOING)

    def _matched(self, name: str, values: Mapping[str, str], confidence: float) -> Match:
        skill = self._skills[name]
        args = {}
        for arg, spec in skill.args.items():
            value = values.get(spec.kind)
            if spec.kind == "port" and value is None:
                value = values.get("host", "").rpartition(":")[2] or None
                value = value if value and value.isdigit() else None
            if value is not None and not (spec.kind == "port" and "pid" in values) and arg not in args:
                args[arg] = value
        if "host" in args and "path" in args:
            del args["path"]
        return Match(skill=name, args=args, effect=skill.effect_of(args), confidence=round(confidence, 3))


def match(prompt: str, skills: Iterable[Skill]) -> Match | None:
    """Match one prompt; keep a `SkillIndex` to match many."""
    return SkillIndex(skills).match(prompt)


def _content(tokens: Sequence[Token]) -> int:
    return sum(token.text not in _FILLERS and token.text not in ",.;:!?" for token in tokens)


def _forms(token: Token) -> tuple[str, ...]:
    """The word's stem and its groups, or the placeholder and the word in it."""
    if token.text.startswith("<"):
        return (token.text, stem(token.original)) if token.original else (token.text,)
    return (stem(token.text), *(group for group, members in GROUPS.items() if token.text in members))


def _is_technical(tokens: Sequence[Token]) -> bool:
    """Whether it has a word that only administrators use, or two that they use too."""
    stems = {stem(token.word) for token in tokens}
    return (
        any(token.text in _ANCHORING for token in tokens)
        or bool(stems & _ANCHOR_STEMS)
        or len(stems & _HOMONYM_STEMS) > 1
    )


def _stems(tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(_forms(token)[0] for token in tokens if token.text not in _FILLERS)


def _normal(text: str) -> str:
    return " ".join(token.text for token in tokenize(text) if token.text not in ",.;:!?")


def _words_of(skill: Skill) -> dict[str, int]:
    listed = WORDS.get(skill.name, {})
    return {phrase.strip(): n for n in sorted(listed, key=abs) for phrase in listed[n].split(",")}


def _prompts_of(skill: Skill) -> tuple[str, ...]:
    return tuple(example.text for example in skill.examples) or PROMPTS.get(skill.name, ())
