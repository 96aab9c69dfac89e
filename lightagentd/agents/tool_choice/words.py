"""Splits prompts, names such as `list_interfaces`, and descriptions into terms.

A term is the stem of a word in lower case. A path, a URL or the like also counts as the word for its kind.
Only the beginning and the end of a prompt are read, so that a long prompt takes no more time than a short
one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from lightagentd.agents.tool_choice.stems import listed, stem

HEAD_CHARS, TAIL_CHARS = 3000, 1000
"""How much of a long prompt counts: people say what they want before or after what they paste."""
_WORD = re.compile(r"[^\W_]{1,40}")
_DOUBLED = re.compile(r"(.)\1+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STOP = listed(
    """
    a about above after all also am an and another any anybody anyone are around as at be because been
    before being below both but by can cannot could did do does doing done each either else etc ever every
    few for from had has have having he her here hers him his how i if in instead into is it its just
    kindly let like look made may maybe me might mine more much must my need no nobody not now of oh ok on
    once one only or other our out over own per please pls quite same she should so some somebody someone
    something soon still such than thank thanks that the their them then there these they thing things this
    those through to too under until upon us very want was we well were what whats when where whether which
    while who whom whose why will wish with within without would yes you your yours give give tell
    hello hi hey need needs really actually currently exactly
    """
)
"""Words that say nothing of what is to be done, or stand in every description."""
_ENDINGS = "conf|cfg|ini|txt|log|gz|xz|tar|tgz|zip|iso|img|pem|crt|key|json|ya?ml|toml|py|sh|sql|csv|xml|html"
_UNIT_ENDINGS = "service|socket|timer|target|mount|automount|slice|scope"
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"https?://\S+"), "url web"),
    (re.compile(r"(?<![\w.])(?:~|\.)?/dev/\w+"), "device path"),
    (re.compile(r"(?<![\w./:])(?:~|\.)?/(?!dev/)[\w.@+-]+"), "path file"),
    (re.compile(r"\*\.\w|\w\*(?!\*)"), "pattern path"),
    (re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "host address"),
    (re.compile(rf"(?i)[\w-]\.(?:{_ENDINGS})\b"), "file path"),
    (
        re.compile(
            rf"(?<![\w.@/-])(?:[a-z0-9-]+\.)+(?!(?:{_ENDINGS}|{_UNIT_ENDINGS})\b)[a-z]{{2,8}}(?![\w/(.])"
        ),
        "host name",
    ),
    (re.compile(rf"[\w@:-]\.(?:{_UNIT_ENDINGS})\b"), "unit service"),
    (re.compile(r"\b(?:org|com|net|io)\.[A-Za-z0-9]+\.\w+"), "bus dbus name"),
    (re.compile(r"\b(?:eth|enp|ens|eno|wlan|wlp|br|wg|tun)\d\w*\b"), "interface network"),
    (re.compile(r"(?<=\s)--?[a-z][\w-]*|;\s|\s\|\s|&&|\$\("), "command"),
    (re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{11,400}={1,2}"), "base64 encode"),
    (re.compile(r"\bSIG[A-Z]{3,5}\b"), "signal process"),
    (re.compile(r"(?i)\bpids?\b|\bprocess \d+"), "pid process"),
)
"""Shapes, and the words that they count as."""

_NAMES = re.compile(
    r"https?://\S+|(?<![\w./:])(?:~|\.)?/[\w.@+/-]+|(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
)
_QUESTION = re.compile(
    r"(?i)\W*(?:and |so |please |pls )*(?:what|whats|which|who|whose|whom|where|when|why|how|is|are|was|were|"
    r"does|do|did|has|have|had|any|show|list|look)\b"
)


def terms(text: str) -> Iterator[str]:
    """The terms of a text, in its order."""
    return map(stem, words(text))


def words(text: str) -> Iterator[str]:
    """The words of a text in lower case, in its order, without stop words."""
    for word in _WORD.findall(_HUMP.sub(" ", text)):
        word = word.casefold()
        if word not in _STOP and (len(word) > 1 or word.isdigit()):
            yield word


def once(term: str) -> str:
    """A term with doubled letters reduced to one, to compare spellings."""
    return _DOUBLED.sub(r"\1", term)


def phrases(text: str) -> Iterator[str]:
    """Each pair of adjacent words, as stems with a space."""
    stems = [stem(word.casefold()) for word in _WORD.findall(text)]
    return (f"{one} {two}" for one, two in itertools.pairwise(stems))


def shapes(text: str) -> Iterator[str]:
    """The words for the kinds of paths, URLs and the like in a text."""
    for pattern, said in _SHAPES:
        if pattern.search(text):
            yield from said.split()


def without_names(text: str) -> tuple[str, str]:
    """A text without its paths and addresses, and these: their words say little about the request."""
    return _NAMES.sub(" ", text), " ".join(_NAMES.findall(text))


def asks(text: str) -> bool:
    """Whether the text asks for a state and not for an action."""
    return _QUESTION.match(text) is not None


def asked(question: str) -> str:
    """The relevant parts of a question: its beginning and its end."""
    if len(question) <= HEAD_CHARS + TAIL_CHARS:
        return question
    return f"{question[:HEAD_CHARS]} {question[-TAIL_CHARS:]}"
