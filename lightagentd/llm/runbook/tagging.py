"""Finds the plain names in a prompt: units, users, packages, interfaces, containers and hosts.

A word is a name when it exists on this machine (`names`), or when what was learned from marked examples says
so by the word and those around it. It may be several kinds at once, such as a unit and a package: the skill
that answers takes the one that it has an argument for.
"""

from __future__ import annotations

import string
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from lightagentd.llm.runbook.features import COURTESY, NAME, words_in
from lightagentd.llm.runbook.names import Names
from lightagentd.llm.runbook.recogniser import Token
from lightagentd.llm.runbook.weights import Weights

KINDS = ("unit", "user", "package", "interface", "container", "host", "pid", "port")
"""What the learned classifier tells apart."""
SHOWN = ("interface", "container", "user")
"""A name that is only one of these on this machine stands in the text as that kind: `<interface>`."""
_MOST = 60
"""So many words of a prompt are looked at."""
_SURE, _LIKELY = -0.15, -0.4
"""The least score of a name that does not exist here, and of an ordinary word that does."""
_WEAK = -0.35
"""From this score on a word that is not used otherwise is a name where the skill lacks one."""
_MENDED, _LONGEST_MENDED = 4, 30


@dataclass(frozen=True, kw_only=True)
class Named(Token):
    """A token that is a name."""

    candidates: dict[str, str]
    """The kinds that it may be, and the value of each; the likeliest kind first."""
    chunk: Token
    """As it was recognised."""
    weak: bool = False
    """Whether it is more likely something else, so that it stays a word of the prompt."""

    @classmethod
    def of(cls, chunk: Token, candidates: dict[str, str], *, weak: bool = False, text: str = NAME) -> Named:
        named = chunk if weak else replace(chunk, text=text, kind="name")
        return cls(**vars(named), chunk=chunk, candidates=candidates, weak=weak)


class Tagger:
    """Finds names by what was learned."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def tag(self, tokens: Sequence[Token], names: Names, skill: str = "") -> list[Token]:
        """The tokens, with `Named` ones for chunks that are names; better if the skill is known."""
        plain = [token.chunk if isinstance(token, Named) else token for token in tokens]
        return [
            token if token.kind or at >= _MOST else self._tagged(plain, at, names, skill)
            for at, token in enumerate(plain)
        ]

    def _tagged(self, tokens: Sequence[Token], at: int, names: Names, skill: str) -> Token:
        token, words = tokens[at], self._weights.words
        if COURTESY.fullmatch(token.text):
            return token
        usual = usage(token.raw, words)
        # Nobody says uplink0 but for what is called so.
        is_word = usual != "new" and token.raw.removesuffix("'s").isalpha()
        here = {} if token.text.isdigit() else names.find(token.raw, lambda _: is_word)
        if usual == "used" and not here and token.text not in self._weights.marked:
            return token
        well_spelled = mended(token, words)
        marks = self._weights.kinds.scores([context(tokens, at, usual, skill=skill)])
        scores = dict(zip(KINDS, marks, strict=True))
        ranked = sorted(KINDS, key=lambda kind: -scores[kind])
        found: dict[str, str] = {}
        for kind in [*ranked, *(kind for kind in here if kind not in scores)]:
            known = here.get(kind)
            if known is not None and (not known.ordinary or scores.get(kind, -1.0) > _LIKELY):
                found[kind] = known.value
            elif scores.get(kind, -1.0) > _SURE and (known is None or known.ordinary):
                found[kind] = self._value(kind, token)
        if found:
            shown = [kind for kind, known in here.items() if not known.ordinary]
            is_shown = len(shown) == 1 and shown[0] in SHOWN and "unit" not in here
            return Named.of(token, found, text=f"<{shown[0]}>" if is_shown else NAME)
        if usual == "new":
            found = {kind: self._value(kind, token) for kind in ranked if scores[kind] > _WEAK}
        return Named.of(token, found, weak=True) if found else well_spelled

    def _value(self, kind: str, token: Token) -> str:
        meant = self._weights.phrases.get(kind, {}).get(token.text)
        if meant is not None:
            return meant
        raw = token.raw.removesuffix("'s")
        return f"{raw}.service" if kind == "unit" else raw


def usage(raw: str, words: Container[str]) -> str:
    """Whether people use a chunk otherwise than as a name: `used`, `misspelled`, or `new`."""
    parts = words_in(raw)
    if all(part in words or part.isdigit() for part in parts):
        return "used"
    return "misspelled" if _mended(parts, words) else "new"


def mended(token: Token, words: Container[str]) -> Token:
    """The token, with one wrong letter mended if that makes it a word that people use."""
    parts = words_in(token.raw)
    word = "" if all(part in words for part in parts) else _mended(parts, words)
    return replace(token, text=word, raw=word) if word else token


def _mended(parts: Sequence[str], words: Container[str]) -> str:
    return next((slip for slip in slips(parts[0]) if slip in words), "") if len(parts) == 1 else ""


def context(
    tokens: Sequence[Token], at: int, usual: str, *, skill: str = "", hidden: bool = False
) -> list[int]:
    """The features of a word in its prompt; with `hidden` only its shape and the words around it."""
    text = tokens[at].text.removesuffix("'s")
    before = [token.text for token in tokens[max(0, at - 2) : at]]
    after = [token.text for token in tokens[at + 1 : at + 3]]
    one, two = ([*before[::-1], "^", "^"])[:2]
    next_one, next_two = ([*after, "$", "$"])[:2]
    shape = usual + "".join([mark for mark in "-_@." if mark in text])
    if any(map(str.isdigit, text)):
        shape += f"{len(text)}" if text.isdigit() else "0"
    found = [
        "bias",
        f"shape {shape}",
        f"-1 {one}",
        f"+1 {next_one}",
        f"-2 {two}",
        f"+2 {next_two}",
        f"-21 {two} {one}",
        f"+12 {next_one} {next_two}",
        f"-+ {one} {next_one}",
        f"-1s {one} {shape}",
        f"+1s {next_one} {shape}",
        *(f"near {word}" for word in {token.text for token in tokens if token.start != tokens[at].start}),
    ]
    if skill:
        found += [f"{skill} {shape}", f"{skill} -1 {one}", f"{skill} +1 {next_one}"]
    if not hidden:
        found += [f"is {text}", f"begins {text[:3]}", f"ends {text[-3:]}", f"last {text.rpartition('-')[2]}"]
    return sorted({crc32(part.encode("utf-8", "replace")) for part in found})


def slips(word: str) -> Iterator[str]:
    """The words that differ by a letter: a swapped, superfluous, wrong or missing one."""
    if not _MENDED <= len(word) <= _LONGEST_MENDED:
        return
    halves = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    for left, right in halves:
        if len(right) > 1:
            yield left + right[1] + right[0] + right[2:]
        if right:
            yield left + right[1:]
        if len(word) > _MENDED:
            for letter in string.ascii_lowercase:
                yield left + letter + right
                if right:
                    yield left + letter + right[1:]
