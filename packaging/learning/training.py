"""Learns the weights of the matcher (`lightagentd/llm/runbook/weights.bin`) from the examples of the skills.

`learned` makes the content of the file. All sums are of whole numbers, so that it is the same on each version
of Python. An example with a marked name is learned twice: with `<name>` in the place of the name, as where it
is recognised, and as it stands.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from lightagentd.llm import runbook
from lightagentd.llm.runbook.features import features, folded, words_in
from lightagentd.llm.runbook.names import Names
from lightagentd.llm.runbook.recogniser import Token, merged, recognise
from lightagentd.llm.runbook.tagging import KINDS, SHOWN, Tagger, context, mended, slips, usage
from lightagentd.llm.runbook.weights import Linear, Weights

from .asides import aside
from .examples import NONE, Example, Mark, files_of, read_examples
from .foreign import made_up
from .svm import SCALE, Instance, Machine

UNIT_SUFFIX = re.compile(r"\.(?:service|timer|socket|mount|target|slice|path|swap)$")
NOW = datetime(2025, 11, 22, 15, 30, tzinfo=UTC)
"""Weekdays in examples count back from here."""
CONFIDENCE = (-0.26, 2.5, -1.02, 8.77, -10.14)
THRESHOLD = 0.6
"""These two are what `python -m learning` (packaging/learning/__main__.py) finds by cross-validation."""
COST, EPOCHS = 2.0, 6
KIND_COST, KIND_EPOCHS = 1.0, 3
ASIDE_EACH = 3
"""One of so many examples is learned with an aside too."""
LARGEST_BYTES = 2 << 20
_SPARE_BYTES = 400_000
_SELDOM, _OFTEN = 5, 15
"""A word that occurs so seldom is misspelled if one with another letter occurs so much more often."""
_PHRASES = ("path", "priority")
"""Kinds whose marks need not be what the value says: `root partition`."""
_NO_NAMES = Names()
Blocks = tuple[Sequence[int], ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A classifier as it stands in the file."""

    classes: Sequence[str]
    scale: float
    features: array[int]
    idf: bytes
    rows: array[int]

    def linear(self) -> Linear:
        return Linear(self.classes, self.scale, self.data())

    def data(self) -> tuple[bytes, bytes, bytes]:
        return self.features.tobytes(), self.idf, self.rows.tobytes()


@dataclass(frozen=True, kw_only=True)
class Lists:
    """What is learned beside the weights."""

    words: frozenset[str]
    marked: frozenset[str]
    phrases: dict[str, dict[str, str]]
    spelled: dict[str, str] = field(default_factory=dict)
    """Words that were met, without wrong letters."""


def tokens_of(example: Example) -> list[Token]:
    return list(_recognised(example.text))


@cache
def _recognised(text: str) -> tuple[Token, ...]:
    return tuple(recognise(text, NOW))


def with_names(example: Example, tokens: list[Token], *, shown: bool = False) -> list[Token]:
    """The tokens with `<name>` for what is marked as a name, or with its kind where that may be `shown`."""
    for mark in example.marks:
        if mark.name in KINDS and not any(
            token.kind and token.start < mark.end and token.end > mark.start for token in tokens
        ):
            kind = mark.name if shown and mark.name in SHOWN else "name"
            tokens = merged(tokens, mark.start, mark.end, kind, mark.value)
    return tokens


def well_spelled(token: Token, lists: Lists) -> Token:
    if token.kind or token.text in lists.marked:
        return token
    if token.raw not in lists.spelled:
        lists.spelled[token.raw] = mended(token, lists.words).raw
    raw = lists.spelled[token.raw]
    return token if raw == token.raw else replace(token, text=raw, raw=raw)


def lists_of(examples: Iterable[Example]) -> Lists:
    plain: Counter[str] = Counter()
    marked: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    takers: dict[str, set[str]] = defaultdict(set)
    meant: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for example in examples:
        tokens = tokens_of(example)
        for token in tokens:
            if not token.kind:
                is_marked = any(mark.start <= token.start < mark.end for mark in example.marks)
                if is_marked:
                    marked[token.text] += 1
                elif example.skill != NONE:
                    plain.update(set(words_in(token.raw)))
                else:
                    foreign.update(set(words_in(token.raw)))
        for mark in example.marks:
            words = " ".join(folded(word) for word in example.text[mark.start : mark.end].split())
            value = mark.value
            if mark.name == "unit" and not UNIT_SUFFIX.search(value):
                value += ".service"
            if mark.name in _PHRASES or (mark.name in KINDS and value not in (words, f"{words}.service")):
                meant[mark.name, words][value] += 1
            takers[mark.name].add(example.skill)
    phrases: dict[str, dict[str, str]] = defaultdict(dict)
    said = [
        (example.skill, example.marks, f" {folded(example.text)} ")
        for example in examples
        if example.skill != NONE
    ]
    for (kind, words), values in sorted(meant.items()):
        value, times = min(values.items(), key=lambda item: (-item[1], item[0]))
        if words.startswith("/") or (value == words and kind != "priority"):
            continue
        plainly = sum(
            f" {words} " in text
            for skill, marks, text in said
            if skill in takers[kind] and not any(mark.name == kind for mark in marks)
        )
        if 2 * times > plainly or " " in words:
            phrases[kind][words] = value
    for word, number in foreign.items():
        if word not in marked:
            plain[word] += number
    words = frozenset(
        word
        for word, count in plain.items()
        if 1 < count > marked[word] / 2
        and (count > _SELDOM or not any(plain[slip] > _OFTEN * count for slip in slips(word)))
    )
    return Lists(
        words=words,
        marked=frozenset(word for word in marked if word in words or marked[word] > 1),
        phrases=dict(phrases),
    )


def learn_skills(examples: Sequence[Example], classes: Sequence[str], lists: Lists, tagger: Tagger) -> Part:
    """What no skill answers has no marks: there the names are those that a tagger finds."""
    number = {name: at for at, name in enumerate(classes)}
    learned: list[tuple[Blocks, int]] = []
    for at, example in enumerate(examples):
        found = tokens_of(example)
        tokens = [well_spelled(token, lists) for token in found]
        if example.skill == NONE:
            named = tagger.tag(found, _NO_NAMES)
        else:
            named = [well_spelled(token, lists) for token in with_names(example, found)]
        variants = [tokens] if named == tokens else [named, tokens]
        if any(mark.name in SHOWN for mark in example.marks):
            shown = with_names(example, found, shown=True)
            variants += [[well_spelled(token, lists) for token in shown]]
        if at % ASIDE_EACH == 0:
            before, after = aside(at // ASIDE_EACH)
            variants.append([*recognise(before, NOW), *variants[0], *recognise(after, NOW)])
        learned += [(features(variant), number[example.skill]) for variant in variants]
    most = (LARGEST_BYTES - _SPARE_BYTES) // (5 + len(classes))
    return _learned(learned, classes, cost=COST, epochs=EPOCHS, least=2, most=most)


def learn_kinds(examples: Sequence[Example], lists: Lists) -> Part:
    learned: list[tuple[Blocks, int]] = []
    usages: dict[str, str] = {}
    for number, example in enumerate(examples):
        if example.skill == NONE:
            continue  # names are not marked there
        tokens = tokens_of(example)
        for at, token in enumerate(tokens):
            if token.kind:
                continue
            kind = next((mark.name for mark in example.marks if _names(mark, token)), "")
            label = KINDS.index(kind) if kind in KINDS else len(KINDS)
            usual = usages.setdefault(token.raw, "") or usage(token.raw, lists.words)
            usages[token.raw] = usual
            if label < len(KINDS) or number % 2:
                learned.append(((context(tokens, at, usual),), label))
            if label < len(KINDS) or number % 2 == 0:
                learned.append(((context(tokens, at, usual, skill=example.skill),), label))
            if label < len(KINDS) and not token.text.isdigit():
                learned.append(((context(tokens, at, "new", hidden=True),), label))
                learned.append(((context(tokens, at, "new", skill=example.skill, hidden=True),), label))
    return _learned(learned, KINDS, cost=KIND_COST, epochs=KIND_EPOCHS, least=3, most=14_000)


def _names(mark: Mark, token: Token) -> bool:
    """Whether a token is the word of a mark that says the name."""
    if not mark.start <= token.start < mark.end:
        return False
    return (token.end == mark.end and token.start == mark.start) or token.text in mark.value.lower()


def _learned(
    learned: Sequence[tuple[Blocks, int]],
    classes: Sequence[str],
    *,
    cost: float,
    epochs: int,
    least: int,
    most: int,
) -> Part:
    """Learn, and keep the features with the greatest weights."""
    counts: Counter[int] = Counter()
    for blocks, _ in learned:
        for block in blocks:
            counts.update(block)
    known = sorted(part for part, count in counts.items() if count >= least)
    at = {part: number for number, part in enumerate(known)}
    idf = [_rarity(len(learned), counts[part]) for part in known]
    machine = Machine(idf, len(classes), cost)
    instances: list[Instance] = [
        (tuple([at[part] for part in block if part in at] for block in blocks), label)
        for blocks, label in learned
    ]
    machine.learn(instances, epochs)
    lanes = [machine.lanes(number) for number in range(len(known))]
    useful = sorted(range(len(known)), key=lambda n: (-counts[known[n]] * sum(map(abs, lanes[n])), n))
    kept = sorted(useful[:most])
    sizes = sorted(abs(lane) for number in kept for lane in lanes[number])
    step = max(1, sizes[-1 - len(sizes) // 10_000] // 127)
    return Part(
        classes=classes,
        scale=step / SCALE,
        features=array("I", [known[number] for number in kept]),
        idf=bytes(idf[number] for number in kept),
        rows=array(
            "b", [max(-127, min(127, round(lane / step))) for number in kept for lane in lanes[number]]
        ),
    )


def _rarity(total: int, count: int) -> int:
    return min(255, round(8 * (1 + math.log(total / count))))


def learned(folder: Path) -> bytes:
    """The content of the file of weights, from the examples below a folder of skills."""
    examples = read_examples(folder)
    skills, kinds, lists = parts_of(examples)
    head = {
        "made of": digest(folder),
        "skills": {"classes": skills.classes, "features": len(skills.features), "scale": skills.scale},
        "kinds": {"classes": kinds.classes, "features": len(kinds.features), "scale": kinds.scale},
        "words": " ".join(sorted(lists.words)),
        "marked": " ".join(sorted(lists.marked)),
        "phrases": lists.phrases,
        "confidence": CONFIDENCE,
        "threshold": THRESHOLD,
    }
    line = json.dumps(head, sort_keys=True).encode() + b"\n"
    return line + b"".join([*skills.data(), *kinds.data()])


def digest(folder: Path) -> str:
    """What the weights are made of: the examples, and the code that learns from them."""
    code = [
        Path(runbook.__file__).with_name(f"{name}.py")
        for name in ("features", "recogniser", "tagging", "times")
    ]
    found = hashlib.sha256()
    for path in [*files_of(folder), *sorted(Path(__file__).parent.glob("*.py")), *code]:
        if path.name != "__main__.py":
            found.update(path.read_bytes())
    return found.hexdigest()


def parts_of(examples: Sequence[Example]) -> tuple[Part, Part, Lists]:
    classes = sorted({NONE, *(example.skill for example in examples)})
    lists = lists_of(examples)
    kinds = learn_kinds(examples, lists)
    tagger = Tagger(as_weights(kinds, kinds, lists))
    return learn_skills([*examples, *made_up()], classes, lists, tagger), kinds, lists


def as_weights(skills: Part, kinds: Part, lists: Lists) -> Weights:
    return Weights(
        skills=skills.linear(),
        kinds=kinds.linear(),
        words=lists.words,
        marked=lists.marked,
        phrases=lists.phrases,
        confidence=CONFIDENCE,
        threshold=THRESHOLD,
    )
