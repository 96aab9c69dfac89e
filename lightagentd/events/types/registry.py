"""Every kind of event: the modules that declare them, and the kind of an event that is stored.

What only makes events imports the module of its kinds; whoever asks about all of them imports this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import ModuleType

from lightagentd.events.model import FROM_TOOL, Event
from lightagentd.events.types import (
    agent,
    approval,
    daemon,
    history,
    input,  # noqa: A004 - as its topic is called
    memory,
    plan,
    policy,
    session,
    tool,
)
from lightagentd.events.types.event_type import ANY, KINDS, Kind

MODULES: tuple[ModuleType, ...] = (
    agent,
    session,
    tool,
    plan,
    approval,
    input,
    policy,
    memory,
    daemon,
    history,
)
"""In the order in which they are described to people."""


def all_kinds() -> Mapping[tuple[str, str], type[Kind]]:
    """By topic and type; `tool.*` stands for the topics of all tools, the type `*` for all their types."""
    return KINDS


def kind_of(event: Event) -> type[Kind] | None:
    """What an event was declared as; None when it was not."""
    found = KINDS.get((event.topic, event.type))
    if found is not None or not event.topic.startswith("tool."):
        return found
    if event.source == FROM_TOOL:
        return tool.Emitted if event.type != tool.INVOCATION else None
    return KINDS.get((f"tool.{ANY}", event.type)) if event.topic.count(".") == 1 else None


def check(event: Event) -> None:
    """Whether an event is as it was declared. Raises ValueError that says what is not.

    Data that was taken away cannot be wrong.
    """
    kind = kind_of(event)
    if kind is None:
        raise ValueError(f"no kind of event is {event.topic} {event.type} of {event.source}")
    if event.data is not None:
        kind.model_validate_json(json.dumps(event.data))
