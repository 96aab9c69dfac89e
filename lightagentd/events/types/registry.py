"""All event types: the modules that declare them, and the type of a stored event.

Code that only makes events imports the module of their types; code about all types imports this one.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from types import ModuleType

from lightagentd.errors import InvalidArgument
from lightagentd.events.model import FROM_TOOL, Event
from lightagentd.events.types import (
    agent,
    approval,
    assessment,
    confirmation,
    daemon,
    deliberation,
    flow,
    history,
    hook,
    input,  # noqa: A004 - as its topic is called
    memory,
    plan,
    policy,
    session,
    token,
    tool,
    trigger,
)
from lightagentd.events.types.event_type import ANY, TYPES, EventType

MODULES: tuple[ModuleType, ...] = (
    agent,
    deliberation,
    session,
    tool,
    trigger,
    flow,
    hook,
    assessment,
    plan,
    approval,
    confirmation,
    input,
    policy,
    memory,
    token,
    daemon,
    history,
)
"""In the order in which they are described to people."""


def all_types() -> Mapping[tuple[str, str], type[EventType]]:
    """By topic and type; `tool.*` stands for the topics of all tools, the type `*` for all their types."""
    order = [module.__name__ for module in MODULES]
    return dict(sorted(TYPES.items(), key=lambda item: order.index(item[1].__module__)))


def type_of(event: Event) -> type[EventType] | None:
    """What an event was declared as; None when it was not."""
    found = TYPES.get((event.topic, event.type))
    if found is not None or not event.topic.startswith("tool."):
        return found
    if event.source == FROM_TOOL:
        return tool.Emitted if event.type != tool.INVOCATION else None
    return TYPES.get((f"tool.{ANY}", event.type)) if event.topic.count(".") == 1 else None


def check_topics(topics: Iterable[str]) -> None:
    """Raises InvalidArgument for one that no event can have, nor the beginning of one."""
    for topic in topics:
        if topic not in _topics() and not topic.startswith("tool."):
            near = difflib.get_close_matches(topic, sorted(_topics()), 1, 0.5)
            raise InvalidArgument(
                f"No event has the topic {topic[:60]!r}.",
                suggestion=(f"Did you mean {near[0]}? " if near else "")
                + "'lactl events schema' has all topics.",
                field="topic",
            )


@functools.cache
def _topics() -> frozenset[str]:
    """All declared topics, and their beginnings before a dot."""
    parts = (topic.split(".") for topic, _ in TYPES)
    return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each) + 1))


def check(event: Event) -> None:
    """Check that an event is as it was declared. Raises ValueError with the reason.

    Data that was taken away cannot be wrong.
    """
    declared = type_of(event)
    if declared is None:
        raise ValueError(f"no type of event is {event.topic} {event.type} of {event.source}")
    if event.data is not None:
        declared.model_validate_json(json.dumps(event.data))
