"""A text from elsewhere inside a prompt: in a fence that it cannot close, labelled with what it is.

lactl does that with standard input, the daemon with what is attached. What a session is called and which
runbook answers is taken from the question alone. `lactl` imports this module for each prompt, so it imports
nothing heavy.
"""

from __future__ import annotations

import re

_TICKS = re.compile(r"`{3,}")


def fenced(label: str, text: str) -> str:
    """The text between two lines of more backticks than it has anywhere; `label` is one line.

    A backtick in a label would make the first line no fence (CommonMark 0.31, 4.5), so it becomes a quote.
    """
    fence = "`" * (max(map(len, _TICKS.findall(text)), default=2) + 1)
    return f"{fence}{label.replace('`', chr(39))}\n{text}\n{fence}"


def question_of(prompt: str) -> str:
    """What the author of a prompt said himself, before what was fenced; all of it if that is nothing."""
    return prompt.partition("\n\n```")[0].strip() or prompt
