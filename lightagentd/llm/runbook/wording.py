"""Forms of words: stems, the unit for a service's name, and the correction of typos."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from lightagentd.llm.runbook.vocabulary import UNITS

_PROPER = {"networkmanager": "NetworkManager", "modemmanager": "ModemManager"}
_SHORT = {"udevd", "journald", "resolved", "networkd", "timesyncd", "logind"}
_IRREGULAR = {
    "nice": "nice",
    "boots": "boots",
    "log": "log",
    "logs": "log",
    "logging": "log",
    "logged": "logged",
    "dns": "dns",
    "ss": "ss",
    "su": "su",
    "used": "us",
    "using": "us",
    "use": "us",
    "uses": "us",
    "ran": "run",
    "held": "hold",
    "ate": "eat",
    "died": "die",
    "dying": "die",
    "dies": "die",
    "ok": "ok",
    "errs": "err",
    "erring": "err",
    "gone": "go",
    "full": "full",
    "filled": "fill",
    "filling": "fill",
    "ips": "ip",
    "taken": "tak",
    "took": "tak",
    "bytes": "byt",
    "os": "os",
    "cpus": "cpu",
    "vcpus": "cpu",
    "gpus": "gpu",
    "tls": "tls",
    "ports": "port",
    "ls": "ls",
    "news": "news",
    "crashloop": "crashloop",
    "dead": "dead",
    "being": "be",
    "driving": "driving",
    "needed": "need",
    "wrote": "writ",
    "written": "writ",
    "grown": "grow",
    "loading": "load",
    "loaded": "load",
    "goes": "go",
    "going": "go",
    "does": "do",
    "doing": "doing",
    "came": "com",
    "fell": "fall",
    "ps": "ps",
    "got": "get",
    "getting": "get",
    "gotten": "get",
    "went": "go",
    "patches": "patch",
    "patched": "patch",
    "broken": "broken",
    "expose": "expos",
    "grabbed": "grab",
    "hung": "hung",
}
_DOUBLED = re.compile(r"(.)\1+")
_VOWELS = frozenset("aeiouy")


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """One form for `fail`, `fails`, `failed`, `failing`; cheap, and only ever compared with itself."""
    known = _IRREGULAR.get(word)
    if known is not None:
        return known
    word = word.removesuffix("'s").replace("'", "")
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        base = word.removesuffix(suffix)
        if base != word and len(base) > 2 and _VOWELS & set(base):
            word = base[:-1] if base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def unit_name(word: str) -> str:
    """The unit for a service's name: `nginx` is `nginx.service`, a suffix stays."""
    lower = word.lower()
    if lower in _SHORT:
        return f"systemd-{lower}.service"
    name = _PROPER.get(lower, lower if lower in UNITS else word)
    return f"{name}.service"


class Speller:
    """Corrects one wrong, missing, doubled or swapped letter in a word of five letters; in four, a swap."""

    def __init__(self, targets: Iterable[str], known: Iterable[str]) -> None:
        """`targets` are the possible corrections, `known` the words that are right already."""
        words = {word for word in targets if word.isalpha() and len(word) > 3}
        self._targets = words | {form for word in words for form in _inflections(word)}
        self._known = set(known) | set(targets) | self._targets
        self._stems = {stem(word) for word in self._known}
        self._by_gap: dict[str, list[str]] = {}
        for word in sorted(self._targets):
            for gap in _gaps(word) | {_squashed(word)}:
                self._by_gap.setdefault(gap, []).append(word)

    def knows(self, word: str) -> bool:
        return word in self._known or stem(word) in self._stems

    def mend(self, word: str) -> str:
        """The known word that was probably meant, or the word itself."""
        if len(word) < 4 or not word.isalpha() or self.knows(word):
            return word
        found = sorted(
            {
                other
                for gap in _gaps(word) | {_squashed(word)}
                for other in self._by_gap.get(gap, ())
                if _one_slip(word, other)
            },
            key=lambda other: (other[0] != word[0], abs(len(other) - len(word)), other),
        )
        return found[0] if found else word


def _inflections(word: str) -> set[str]:
    root = word.removesuffix("e")
    return set() if word.endswith(("s", "ing", "ed")) else {f"{word}s", f"{root}ing", f"{root}ed"}


def _gaps(word: str) -> set[str]:
    return {word} | {word[:at] + word[at + 1 :] for at in range(len(word))}


def _squashed(word: str) -> str:
    """The word without doubled letters: `proccesor` and `processor` become the same."""
    return _DOUBLED.sub(r"\1", word)


def _one_slip(word: str, other: str) -> bool:
    if _squashed(word) == _squashed(other):
        return len(word) > 4
    if sorted(word) == sorted(other):
        differing = [at for at in range(len(word)) if word[at] != other[at]]
        return len(differing) == 2 and differing[1] - differing[0] == 1
    if min(len(word), len(other)) < 4 or abs(len(word) - len(other)) > 1:
        return False
    if len(word) == len(other):
        wrong = [at for at in range(len(word)) if word[at] != other[at]]
        if len(wrong) != 1 or len(word) < 5 or not 0 < wrong[0] < len(word) - 1:
            return False
        return len(word) > 6 or {word[wrong[0]], other[wrong[0]]} <= _VOWELS
    longer, shorter = (word, other) if len(word) > len(other) else (other, word)
    slips = [at for at in range(len(longer)) if longer[:at] + longer[at + 1 :] == shorter]
    return bool(slips) and (len(longer) > 5 or len(slips) > 1)
