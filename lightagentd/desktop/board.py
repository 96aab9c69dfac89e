"""The content for the screen: the open questions, and the news not shown yet.

`DaemonLink` fills a `Board` and `Screen` shows it. The two do not know each other, so either side can be away
while the other works: the cards wait here. The board lives as long as the program.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

NEWS_LIMIT = 20
"""News that wait for a notification server; when more come, the oldest are dropped and counted."""
APPROVE, DENY = "approve", "deny"


@dataclass(frozen=True, kw_only=True)
class Card:
    """One notification. `key` is the id of the approval or the input for a question, else any unique text.

    `summary` and `body` are text without markup, safe to show. `answers` are the answers that have a button;
    with `choices`, those are the words. `how` is shown when no button says yes. `digest` is that of the call
    that an answer allows; with `approver` the approver takes that answer.
    """

    key: str
    summary: str
    body: str
    icon: str = "dialog-information"
    urgent: bool = False
    answers: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    how: str = ""
    expires_us: int = 0
    digest: str = ""
    approver: str = ""

    def choice(self, answer: str) -> str:
        """The words of a choice; empty for another answer."""
        return dict(zip(self.answers, self.choices, strict=False)).get(answer, "")


class Board:
    """The program owns it. `changed` is set with every change."""

    def __init__(self) -> None:
        self.questions: dict[str, Card] = {}
        self.news: deque[Card] = deque()
        self.dropped = 0
        self.changed = asyncio.Event()

    def ask(self, card: Card) -> None:
        """Show a question. A question that is there already stays unchanged."""
        if card.key not in self.questions:
            self.questions[card.key] = card
            self.changed.set()

    def settle(self, key: str) -> None:
        """A question is over, however it ended."""
        if self.questions.pop(key, None) is not None:
            self.changed.set()

    def keep_only(self, keys: Iterable[str]) -> None:
        """Settle all questions but these."""
        for key in self.questions.keys() - set(keys):
            self.settle(key)

    def settle_overdue(self, now_us: int) -> None:
        """Settle the questions whose time is over, with or without a daemon."""
        for card in [*self.questions.values()]:
            if card.expires_us <= now_us:
                self.settle(card.key)

    def tell(self, card: Card) -> None:
        """Show a card once."""
        if len(self.news) >= NEWS_LIMIT:
            self.news.popleft()
            self.dropped += 1
        self.news.append(card)
        self.changed.set()
