"""On whose behalf something happens: the context variable that every event takes its header from.

Tasks and threads that asyncio starts inherit it, a worker gets it with each call (`EventContext.to_wire`),
and what outlives the call that happened to start it runs in `own_task`. An agent that has others work for it
is to run them `within(agent=..., session=...)`: trace, caller and correlation stay those of the prompt then.
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
    """On whose behalf something happens. Empty strings and None mean that there is no such thing."""

    agent: str = ""
    session: str = ""
    owner: int | None = None
    """The uid that owns the session."""
    caller: int | None = None
    """The uid on whose word it happens: who prompted, answered or commanded. None for the daemon itself."""
    request_id: str = ""
    trace_id: str = ""
    correlation_id: str = ""

    def to_wire(self) -> dict[str, Any]:
        """What a worker gets of it with a call; agent, session and owner are parts of every call."""
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
    """The context of the running task; an empty one in a thread or task that nobody gave one."""
    return context.get(EventContext())


@contextlib.contextmanager
def within(**changes: Any) -> Iterator[EventContext]:
    """Run the block with some fields of the context changed."""
    with using(replace(current_context(), **changes)) as changed:
        yield changed


@contextlib.contextmanager
def using(whole: EventContext) -> Iterator[EventContext]:
    """Run the block in this context, whatever the one around it is."""
    token = context.set(whole)
    try:
        yield whole
    finally:
        context.reset(token)


def act_for(caller: int) -> None:
    """From here on the running task does what a uid asked for: a peer's operation begins with this.

    A task that answers several calls answers those of one peer, so nothing has to be undone.
    """
    context.set(replace(current_context(), caller=caller))


def own_task(work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
    """Start a task that outlives its starter, with an empty context."""
    fresh = contextvars.copy_context()
    fresh.run(context.set, EventContext())
    return asyncio.get_running_loop().create_task(work, name=name, context=fresh)


def tell_whose(record: logging.LogRecord) -> bool:
    """A filter of a log handler's: `record.whose` says at the end of a line on whose behalf it was said."""
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
