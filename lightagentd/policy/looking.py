"""Looks for what guards are about in a text, and takes out of it what they redact.

A text is looked at without disguises (`folding`), and so is each word of it that is Base64, once decoded.
Patterns are searched line by line, in windows of a long line. All the searching of one pattern in one text
is bounded (`text.bounded`); after a stop the whole text counts as a match.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lightagentd.events.model import Event
from lightagentd.policy.folding import Folded, fold
from lightagentd.policy.guards import Guard, GuardAction, Guards, LoadedGuard, On, compiled
from lightagentd.policy.patterns import REGEX_TEXT_MAX_CHARS
from lightagentd.policy.text_classes import CLASSES, SECRET, Span, numbers_in
from lightagentd.redaction import MARKER, Redactor
from lightagentd.text.bounded import TakesTooLongError, bounded

LONGEST_MATCH = 512
"""So many characters of a match of a pattern are sure to be found in a line that is looked at in windows."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_BASE64_BYTES = 256 << 10
"""So much of a text is decoded."""
_URL_SAFE = str.maketrans("-_", "+/")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One match: its place, and what stands there once it is redacted."""

    start: int
    end: int
    label: str
    unsure: bool = False
    """Whether the search took too long, so that this is all of the text."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One guard that found something in a text."""

    guard: LoadedGuard
    found: Sequence[Found]

    @property
    def unsure(self) -> bool:
        return any(one.unsure for one in self.found)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What guards say to a text. `sha256` is that of all of it, as it was: nobody can guess a card by it."""

    text: str
    """What is left of it; the same where nothing is redacted."""
    hits: tuple[Hit, ...] = ()
    sha256: str = ""

    def first(self, action: GuardAction) -> LoadedGuard | None:
        """The first guard with this action that found something."""
        return next((hit.guard for hit in self.hits if hit.guard.guard.action is action), None)


class Looked:
    """A text that several guards look at."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._classes: dict[str, list[Span]] = {}
        self._numbered: list[tuple[int, int, str]] | None = None

    @functools.cached_property
    def _folded(self) -> Folded:
        return fold(self.text)

    @functools.cached_property
    def _decoded(self) -> list[tuple[Span, Looked]]:
        """The words that are Base64 of a text, and these texts."""
        found, left = [], _BASE64_BYTES
        for word in _BASE64.finditer(self._folded.alike):
            if len(word[0]) > left:
                break
            if text := _from_base64(word[0]):
                found.append((self._folded.span(*word.span()), Looked(text)))
                left -= len(word[0])
        return found

    def found(self, guard: LoadedGuard, *, decode: bool = True) -> Iterator[Found]:
        """The matches of a guard."""
        for name in guard.guard.match or ():
            label = f"[{name.replace('-', ' ')}]"
            yield from (Found(start=start, end=end, label=label) for start, end in self._of_class(name))
        label = f"[{guard.name}]"
        for pattern in guard.patterns:
            try:
                with bounded():
                    places = list(self._of_re(pattern))
                yield from (Found(start=start, end=end, label=label) for start, end in places)
            except TakesTooLongError:
                yield Found(start=0, end=len(self.text), label=label, unsure=True)
        for (start, end), text in self._decoded if decode else ():
            for one in text.found(guard, decode=False):
                yield Found(start=start, end=end, label=one.label, unsure=one.unsure)
                break

    def _of_class(self, name: str) -> list[Span]:
        if name == SECRET:  # the redactor went before, and left marks
            return [mark.span() for mark in MARKER.finditer(self.text)]
        if name not in self._classes:
            folded = self._folded
            self._classes[name] = [folded.span(*one) for one in CLASSES[name](folded.alike, self._numbers)]
        return self._classes[name]

    def _numbers(self) -> list[tuple[int, int, str]]:
        if self._numbered is None:
            self._numbered = list(numbers_in(self._folded.alike))
        return self._numbered

    def _of_re(self, pattern: re.Pattern[str]) -> Iterator[Span]:
        folded = self._folded
        for text in dict.fromkeys((folded.plain, folded.alike)):
            for start, line in _windows(text):
                for match in pattern.finditer(line):
                    if match[0]:
                        yield folded.span(start + match.start(), start + match.end())


def load_guard(guard: Guard, file: str, line: int, until_s: float) -> LoadedGuard:
    """The guard ready for use. Raises ValueError for the first example that fails, or at which
    `time.thread_time` passed `until_s`.
    """
    loaded = LoadedGuard(guard=guard, file=file, line=line, patterns=compiled(guard.pattern or ()))
    examples = guard.examples
    for kind, wanted, texts in (("match", True, examples.match), ("not_match", False, examples.not_match)):
        for number, text in enumerate(texts, 1):
            verdict = judge((loaded,), text, Redactor())
            where = f"examples, {kind}, example {number}"
            if time.thread_time() > until_s or any(hit.unsure for hit in verdict.hits):
                raise ValueError(f"{where}: to look for the patterns takes too long")
            if bool(verdict.hits) is not wanted:
                says = "finds something" if verdict.hits else "finds nothing"
                raise ValueError(f"{where}: the guard {says} in this text")
    return loaded


def judge(guards: Guards, text: str, redactor: Redactor) -> Verdict:
    """What guards say to a text. Never raises."""
    whole = text
    if any(SECRET in (one.guard.match or ()) for one in guards):
        text = redactor.text(text)
    looked = Looked(text)
    hits = [Hit(guard=one, found=found) for one in guards if (found := list(looked.found(one)))]
    if not hits:
        return Verdict(text=text)
    redacted = [one for hit in hits if hit.guard.guard.action is GuardAction.REDACT for one in hit.found]
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    return Verdict(text=without(text, redacted), hits=tuple(hits), sha256=digest)


def strictest(verdict: Verdict) -> str:
    """What would happen to the text: the strictest action, or `pass`."""
    found = [action for action in GuardAction if verdict.first(action) is not None]
    return found[0].value if found else "pass"


def texts_of(event: Event) -> list[tuple[On, str]]:
    """The texts in a stored message, and what guards look at them as."""
    data = event.data or {}
    text, chars = str(data.get("content", "")), data.get("question_chars") or None
    parts = {
        "user": [(On.PROMPT, text[:chars]), (On.ATTACHMENT, text[chars:] if chars else "")],
        "assistant": [(On.ANSWER, text)],
        "tool": [(On.TOOL_RESULT, text)],
    }
    return [(on, part) for on, part in parts.get(str(data.get("role")), []) if part]


def without(text: str, found: Iterable[Found]) -> str:
    """The text with what was found replaced. A mark of the redactor says already what it was."""
    parts, place = [], 0
    for one in sorted(found, key=lambda one: (one.start, -one.end)):
        if one.start >= place:
            is_mark = one.label == f"[{SECRET}]"
            parts += [text[place : one.start], text[one.start : one.end] if is_mark else one.label]
        place = max(place, one.end)
    return "".join([*parts, text[place:]])


def _windows(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, the long ones in parts that overlap, with the places where they begin."""
    start = 0
    for line in text.split("\n"):
        for place in range(0, max(1, len(line) - LONGEST_MATCH), REGEX_TEXT_MAX_CHARS - LONGEST_MATCH):
            yield start + place, line[place : place + REGEX_TEXT_MAX_CHARS]
        start += len(line) + 1


def _from_base64(word: str) -> str:
    """The text that a word of Base64 or Base64url holds; empty if it holds none."""
    word = word.rstrip("=").translate(_URL_SAFE)
    word = word[: len(word) - (len(word) % 4 == 1)]
    try:
        return base64.b64decode(word + "=" * (-len(word) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""
