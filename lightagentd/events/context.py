"""On whose behalf something happens: the context variable behind the header of every event.

Tasks and threads that asyncio starts inherit it, and a worker gets it with each call
(`EventContext.to_wire`). Work that outlives the call that started it runs in `own_task`. An agent that
delegates work runs the others `within(agent=..., session=...)`: trace, caller and correlation stay those of
the prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import secrets
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class EventContext:
    """On whose behalf something happens. Empty strings and None mean that the field does not apply."""

    agent: str = ""
    session: str = ""
    owner: int | None = None
    """The uid that owns the session."""
    caller: int | None = None
    """The uid on whose word it happens: who prompted, answered or commanded. None for the daemon itself."""
    request_id: str = ""
    trace_id: str = ""
    correlation_id: str = ""
    client: str = ""
    """The ID of the token with which it was asked for, or `uid:UID` for a client of the gateway without one;
    what models use is counted for it. No event has it."""

    def to_wire(self) -> dict[str, Any]:
        """The part that a worker gets with a call; agent, session and owner are fields of every call."""
        return {
            "caller": self.caller,
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "correlation_id": self.correlation_id,
        }

    @staticmethod
    def from_wire(value: Any, *, agent: str, session: str, owner: int) -> EventContext:
        """The context of a call in a worker; values that are missing or of another type are empty."""
        found: Mapping[str, Any] = value if isinstance(value, dict) else {}
        caller = found.get("caller")
        ids = {name: found.get(name) for name in ("request_id", "trace_id", "correlation_id")}
        return EventContext(
            agent=agent,
            session=session,
            owner=owner,
            caller=caller if type(caller) is int else None,
            **{name: one for name, one in ids.items() if isinstance(one, str)},
        )


context: ContextVar[EventContext] = ContextVar("lightagent_event_context")
context.set(EventContext())


def current_context() -> EventContext:
    """The context of the running task; an empty one if nothing was set."""
    return context.get(EventContext())


@contextlib.contextmanager
def within(**changes: Any) -> Iterator[EventContext]:
    """Run the block with some fields of the context changed."""
    with using(replace(current_context(), **changes)) as changed:
        yield changed


@contextlib.contextmanager
def using(whole: EventContext) -> Iterator[EventContext]:
    """Run the block in this context, regardless of the surrounding one."""
    token = context.set(whole)
    try:
        yield whole
    finally:
        context.reset(token)


def act_for(caller: int, correlation_id: str = "", client: str = "") -> None:
    """From here on the running task acts for a uid: every operation of a peer begins with this.

    A task that answers several calls answers only those of one peer, so nothing has to be undone.
    """
    present = current_context()
    correlation_id = correlation_id or present.correlation_id
    context.set(replace(present, caller=caller, correlation_id=correlation_id, client=client))


def own_task(work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
    """Start a task that outlives its starter, with an empty context."""
    fresh = contextvars.copy_context()
    fresh.run(context.set, EventContext())
    return asyncio.get_running_loop().create_task(work, name=name, context=fresh)


def tell_whose(record: logging.LogRecord) -> bool:
    """A filter for log handlers: `record.whose` says at the end of a line on whose behalf it was logged."""
    own = asdict(current_context())
    told = [f"{name}={value}" for name, value in own.items() if value not in ("", None)]
    record.whose = f" [{' '.join(told)}]" if told else ""
    return True


_TOKENS_AT_ONCE = 64
_tokens: deque[str] = deque()
"""Random digits that wait to be used: asking the kernel for each id costs a fifth of a small event."""


def new_id(prefix: str) -> str:
    """A fresh id: the prefix, an underscore and 16 random hexadecimal digits."""
    try:
        token = _tokens.pop()
    except IndexError:
        fresh = secrets.token_hex(8 * _TOKENS_AT_ONCE)
        _tokens.extend(fresh[start : start + 16] for start in range(0, len(fresh), 16))
        token = _tokens.pop()
    return f"{prefix}_{token}"
