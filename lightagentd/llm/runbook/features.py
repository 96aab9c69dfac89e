"""What of a prompt is weighed: words, pairs of words, and runs of 1 to 4 letters within words.

A feature is the CRC-32 of its text. Training (`packaging/learning`) and matching use the same functions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from zlib import crc32

from lightagentd.llm.runbook.recogniser import Token

NAME = "<name>"
"""Stands in a text for a name: of a unit, a user, a package, an interface or a container."""
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_DIGITS = re.compile(r"\d+")
_MOST_WORDS = 300
COURTESY = re.compile(
    r"\b(?:please|pls|plz|kindly|hey|hi|hello|dear|thanks?|k?thx(?:bye)?|tia|cheers|bitte|danke|hallo|merci|"
    r"bonjour|gracias|hola|obrigado|ola|por favor|s il (?:vous|te) plait|for me|bot|robot|mate|dude|buddy|"
    r"(?:my )?(?:dear )?(?:friend|colleague)s?|mein freund|mon ami|amigo|asap|"
    r"(?:can|could|would|will) (?:you|u|ya)(?: mind| please)*)\b"
)
"""Words that say nothing of what is asked."""


def folded(text: str) -> str:
    """A text without case and accents."""
    text = text.casefold().replace("'", "")
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFKD", text)
    return "".join([char for char in parts if not unicodedata.combining(char)])


def words_in(raw: str) -> list[str]:
    """The words of a chunk: `crash-loop` and `CrashLoop` have two."""
    return [_DIGITS.sub("0", folded(word)) for word in _WORD.findall(_HUMP.sub(" ", raw.replace("'", "")))]


def features(tokens: Iterable[Token]) -> tuple[list[int], list[int]]:
    """The features of a prompt in two blocks, words and letters; each is named once."""
    words: set[str] = set()
    letters: set[str] = set()
    before = "^"
    for token in _without_courtesy(list(tokens)):
        if token.kind:
            words.update(_details(token))
            parts: Sequence[str] = (token.text,)
        else:
            parts = words_in(token.raw)
        for part in parts:
            words.add(part)
            words.add(f"{before} {part}")
            before = part
            if part[0] != "<":
                spaced = f" {part[:30]} "
                letters.update(
                    [
                        spaced[at : at + length]
                        for length in (1, 2, 3, 4)
                        for at in range(len(spaced) - length + 1)
                    ]
                )
        if len(words) > _MOST_WORDS:
            break
    words.add(f"{before} $")
    return sorted({hashed(word) for word in words}), sorted({hashed(f"#{run}") for run in letters})


def _without_courtesy(tokens: list[Token]) -> list[Token]:
    """The tokens without polite phrases, unless there is nothing else."""
    text, at = "", []
    for token in tokens:
        at.append(len(text))
        text += f"{token.text if token.kind else folded(token.raw)} "
    spans = [found.span() for found in COURTESY.finditer(text)]
    kept = [
        token
        for token, start in zip(tokens, at, strict=True)
        if not any(begin <= start < end for begin, end in spans)
    ]
    return kept or tokens


def _details(token: Token) -> Iterable[str]:
    """What the value of an argument adds: the first folder of a path, its ending, the port of a host."""
    if token.text == NAME:
        yield from words_in(token.raw)
    elif token.kind == "path":
        first = token.value.split("/")[1]
        yield f"<path:/{first}"
        ending = token.value.rpartition("/")[2].rpartition(".")[2]
        if ending:
            yield f"<path:{ending.lower()}"
    elif token.kind == "host" and ":" in token.value:
        yield "<host:port>"
    elif token.kind == "port":
        yield f"<port:{token.value}"
    elif token.kind == "unit":
        yield f"<unit:{token.value.rpartition('.')[2]}"


def hashed(text: str) -> int:
    """The feature of a text."""
    return crc32(text.encode("utf-8", "replace"))
