"""Makes one message of notices, within the bytes that a destination takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from lightagentd.notify.notices import Notice

_URGENT = frozenset({"approval", "question", "confirmation", "panic"})
_MANY = {
    "approval": "approvals wait",
    "question": "questions wait",
    "confirmation": "about changes that take themselves back",
    "triage": "units were looked into",
    "trigger": "results of triggers",
    "health": "about health",
    "budget": "about budgets",
    "panic": "about panic",
}
_CUT = "\n… (the rest is left out)"
Links = Mapping[str, Mapping[str, str]]
"""By the key of an approval: the link for each decision."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is sent. `text` is plain text; `whole` says whether it shows all of one notice."""

    id: str
    title: str
    text: str
    urgent: bool
    whole: bool
    notices: Sequence[Notice]
    links: Links


def message_of(
    number: str, notices: Sequence[Notice], *, links: Links, link: str, left_out: int, most_bytes: int
) -> Message:
    """One message, whose text has at most `most_bytes`. `link` is the address that ends it."""
    tail = [f"{left_out} older notices were left out: lactl events"] if left_out else []
    if link:
        key = notices[0].key or notices[0].id if len(notices) == 1 else ""
        tail.append(link.replace("{id}", quote(key, safe="")))
    end = "\n".join(["", *tail]) if tail else ""
    room = (most_bytes - len(end.encode())) // len(notices) - 1
    parts = [_part(one, links.get(one.key, {}), room, alone=len(notices) == 1) for one in notices]
    counts = Counter(one.about for one in notices)
    title = ", ".join(f"{count} {_MANY[about]}" for about, count in counts.items())
    return Message(
        id=number,
        title=notices[0].title if len(notices) == 1 else title,
        text=cut("\n".join(text for text, _ in parts) + end, most_bytes),
        urgent=any(one.about in _URGENT for one in notices),
        whole=len(notices) == 1 and notices[0].whole and parts[0][1],
        notices=notices,
        links=links,
    )


def _part(notice: Notice, links: Mapping[str, str], room: int, *, alone: bool) -> tuple[str, bool]:
    """The text of one notice, and whether nothing was cut. What says how to answer is never cut first."""
    ends = [notice.hint] if notice.hint else []
    ends += [f"{decision.capitalize()}: {url}" for decision, url in links.items()]
    end = "".join(f"\n{one}" for one in ends)
    head = "" if alone else f"* {notice.title}\n"
    text = cut(head + notice.text, room - len(end.encode()))
    return text + end, text == head + notice.text


def cut(text: str, most_bytes: int) -> str:
    """The text, or as much of its beginning as fits with a remark."""
    whole = text.encode()
    if len(whole) <= most_bytes:
        return text
    room = max(0, most_bytes - len(_CUT.encode()))
    return whole[:room].decode("utf-8", "ignore") + (_CUT if most_bytes >= len(_CUT.encode()) else "")
