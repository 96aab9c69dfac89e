"""Holds back the part of an answer that may be a call, until it is known: nobody is shown a call as text.

Text is held from the first mark of a call, brace or code fence on, for as long as it can become a call. What
stands in another code fence, or behind a backtick, is shown to a person and is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import replace

from lightagentd.llm.json_calls import call_in_text
from lightagentd.llm.protocol import Finish, Part, TextDelta, ToolCall
from lightagentd.llm.written_calls import KEYS, MARKS, Written, is_marked, read_calls

MOST_HELD_CHARS = 1 << 20
"""How much text is held; more than a call has is text."""
_LOOK_CHARS = 100
_FENCE = "```"
_START = re.compile(r"`+|[{\[<]")
_FENCES = (f"{_FENCE}json", _FENCE, f"{_FENCE}tool_call")
_OBJECTS = tuple(f'{before}{{"{key}"' for before in ("", "[") for key in KEYS)
_BEGINNINGS = (*_OBJECTS, *(fence + one for fence in _FENCES for one in _OBJECTS))
"""How a call without a mark begins, without blanks."""
_BEHIND = (",", ";", f"{_FENCE}{_FENCE}json", f"{_FENCE}{_FENCE}tool_call", "</tool_call>")
"""What may stand behind an object of a call, without blanks."""
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class _Extent:
    """Follows held JSON as it comes, to see where something else stands behind it."""

    def __init__(self) -> None:
        self.end = 0
        """Behind the last value that is closed."""
        self._at = self._depth = 0
        self._in_string = self._escaped = False
        self._behind = ""
        """What came since `end`, without blanks."""

    def goes_on(self, more: str) -> bool:
        """Whether all that came may still be nothing but calls."""
        at = 0
        while at < len(more):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(more, at)
            stop = len(more) if found is None else found.start()
            if self.end and not self._depth and not self._may_follow(more[at:stop]):
                return False
            if found is None:
                break
            at = found.end()
            if not self._take(found[0], self._at + at):
                return False
        self._at += len(more)
        return True

    def _may_follow(self, more: str) -> bool:
        self._behind = (self._behind + "".join(more.split()))[:_LOOK_CHARS]
        return any(one.startswith(self._behind) for one in _BEHIND)

    def _take(self, char: str, behind: int) -> bool:
        if self._in_string:
            self._escaped = char == "\\"
            self._in_string = self._escaped
        elif char in "{[":
            self._depth += 1
            self._behind = ""
        elif not self._depth:
            return False
        elif char == '"':
            self._in_string = True
        else:
            self._depth -= 1
            self.end = self.end if self._depth else behind
        return True


class HeldText:
    """Turns the text of one answer into calls where it is one. `offered` are the names of the functions;
    `strict`: the answer is to be JSON itself, so that only an offered function makes it a call.
    """

    def __init__(self, offered: Set[str], *, strict: bool = False) -> None:
        self._offered = offered
        self._strict = strict
        self._text = ""
        """What is not shown: what may be the beginning of a call, or, while it is held, the call so far."""
        self._held: list[str] = []
        """What came after `_text` while that is held."""
        self._held_chars = 0
        self._extent: _Extent | None = None
        """Follows what is held without a mark."""
        self._said = self._in_fence = False
        """Whether there was text before, and whether it opened a code fence."""
        self._last = ""

    def feed(self, part: Part) -> Iterator[Part]:
        """Pass on a part of the answer, or hold it back."""
        if isinstance(part, TextDelta):
            yield from self._feed_text(part.text)
            return
        if isinstance(part, ToolCall):
            yield from self._shown(self._take_held())
        elif isinstance(part, Finish):
            is_held = self._held_chars > 0
            text = self._take_held()
            written = self._written(text) if is_held else Written()
            yield from written.calls
            if written.calls:
                part = replace(part, reason="tool_calls")
            elif written.attempt:
                part = replace(part, unread=written.attempt)
            else:
                yield from self._shown(text)
        yield part

    def _written(self, text: str) -> Written:
        alone = not self._said and not self._strict
        found = read_calls(text, self._offered, alone=alone)
        if not found.calls and alone and (call := call_in_text(text)) is not None:
            return Written(calls=(call,))  # in the form that was asked for: its result says what is wrong
        return found

    def _feed_text(self, text: str) -> Iterator[TextDelta]:
        while True:
            if self._held_chars:
                self._held.append(text)
                self._held_chars += len(text)
                if self._extent is None or self._extent.goes_on(text):
                    if self._held_chars > MOST_HELD_CHARS and self._extent is not None:
                        yield from self._shown(self._take_held())
                    return
                end, held = self._extent.end, self._take_held()
                self._in_fence = held.lstrip().startswith(_FENCE)
                yield from self._shown(held[:end])
                text = held[end:]
            self._text += text
            start = self._start()
            yield from self._shown(self._text[:start])
            self._text, text = "", self._text[start:]
            if not text:
                return
            if self._begins(text.lstrip(), "") is not True:
                self._text = text
                return
            self._extent = None if is_marked(text) else _Extent()
            self._held_chars = 1

    def _take_held(self) -> str:
        text = self._text + "".join(self._held)
        self._text, self._held, self._held_chars = "", [], 0
        return text

    def _shown(self, text: str) -> Iterator[TextDelta]:
        if text:
            self._said, self._last = True, text[-1]
            yield TextDelta(text)

    def _start(self) -> int:
        """Where a call begins in `_text`, or may begin; its length if nowhere. Blanks before all text belong
        to the call.
        """
        text, at = self._text, 0
        while (found := _START.search(text, at)) is not None:
            start = found.start()
            before = text[start - 1] if start else self._last
            if self._begins(text[start : start + _LOOK_CHARS], before) is not False:
                return start if self._said or text[:start].strip() else 0
            at = found.end()
            if found[0] == _FENCE:
                self._in_fence = not self._in_fence
        blank = not self._said and not text.strip()
        return 0 if blank else len(text)

    def _begins(self, text: str, before: str) -> bool | None:
        """Whether a call begins with a text; None if more of it has to be seen."""
        if text.startswith("`") and len(text) < len(_FENCE) and _FENCE.startswith(text):
            return None
        if before == "`" or self._in_fence:
            return False
        if text.startswith(MARKS):
            return True
        if any(mark.startswith(text) for mark in MARKS):
            return None
        if text.startswith("<"):
            return False
        head = "".join(text.split())
        if head.startswith(_BEGINNINGS):
            return True
        return None if len(text) < _LOOK_CHARS and any(one.startswith(head) for one in _BEGINNINGS) else False
