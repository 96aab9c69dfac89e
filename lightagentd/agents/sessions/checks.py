"""What a prompt and a title may be."""

from __future__ import annotations

from collections.abc import Callable

from lightagentd.agents.sessions.session import TITLE_MAX_CHARS, Session
from lightagentd.errors import InvalidArgument, QueueFull
from lightagentd.events.journal.entry import plain
from lightagentd.host.users import called

SESSION_WAITING, OWNER_WAITING = 2, 8
"""How many times the largest prompt may wait in one session, and of one owner in all."""


def check_room(session: Session, text: str, waiting_of: Callable[[int], int], max_bytes: int) -> None:
    """Limit the total size of waiting prompts, which are kept in memory; one may always wait.

    `waiting_of` gives the bytes that wait for an owner. Raises QueueFull.
    """
    size_bytes = len(text.encode("utf-8", "replace"))
    owner = session.record.owner
    for waiting_bytes, times, where in (
        (session.waiting_bytes, SESSION_WAITING, "in this session"),
        (waiting_of(owner), OWNER_WAITING, f"of {called(owner)}"),
    ):
        if waiting_bytes and waiting_bytes + size_bytes > times * max_bytes:
            raise QueueFull(
                f"The prompts {where} that wait have {waiting_bytes} bytes already; with this one they would"
                f" have more than {times * max_bytes}.",
                suggestion="Wait for their answers, or cancel them.",
            )


def check_title(title: str) -> str:
    """The cleaned title. Raises InvalidArgument if it is empty, too long or not one line."""
    title = title.strip()
    if not title or len(title) > TITLE_MAX_CHARS or plain(title) != title:
        raise InvalidArgument(
            f"A title is one line of 1 to {TITLE_MAX_CHARS} characters.",
            field="title",
            suggestion="Give it without line breaks and control characters.",
        )
    return title


def check_prompt(text: str, max_bytes: int) -> None:
    """Raises InvalidArgument for a prompt that is empty, too long or holds a NUL byte."""
    if not text.strip():
        raise InvalidArgument("The prompt is empty.", field="text", suggestion="Say what you want to know.")
    if "\0" in text:
        raise InvalidArgument(
            "The prompt holds a NUL byte.",
            field="text",
            suggestion="Remove it, for example with: tr -d '\\0'",
        )
    if len(text.encode("utf-8", "replace")) > max_bytes:
        raise InvalidArgument(
            f"The prompt is larger than {max_bytes} bytes.", field="text", suggestion="Send less at once."
        )
