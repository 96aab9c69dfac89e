"""What the screen shows folded, whole: the outputs of calls, and what the model thought last.

The transcript owns it. It holds some megabytes at the most; what is older is in the history.
"""

from __future__ import annotations

from lightagentd.cli.terminal import clean
from lightagentd.errors import NotFound

_MOST_CHARS = 32 << 20


class Folded:
    """`thoughts` is the newest text of the model's reasoning, without escape sequences."""

    def __init__(self) -> None:
        self.thoughts = ""
        self._outputs: dict[str, tuple[str, str]] = {}
        """By call id: the name of the call, and its output as it came."""

    def keep(self, call_id: str, name: str, text: str) -> None:
        """Keep an output, and drop the oldest ones beyond the limit."""
        self._outputs[call_id] = (name, text)
        while len(self._outputs) > 1 and sum(len(kept) for _, kept in self._outputs.values()) > _MOST_CHARS:
            del self._outputs[next(iter(self._outputs))]

    def find(self, word: str) -> tuple[str, str]:
        """The name and the cleaned output of a call: the newest one, the WORDth newest one, or the newest
        whose id or name begins so. Raises NotFound.
        """
        newest = [*reversed(self._outputs.items())]
        if word.isascii() and word.isdigit() and len(word) < 6:
            newest = newest[int(word) - 1 : int(word)] if int(word) else []
        elif word:
            newest = [one for one in newest if one[0].startswith(word) or one[1][0].startswith(word)]
        if not newest:
            raise NotFound(
                f"There is no output of {word[:60]!r} here." if word else "No call has ended here yet.",
                suggestion="/history has the messages; 'lactl trace show' has every call.",
            )
        name, text = newest[0][1]
        return name, clean(text)
