"""The kind of an event: topic, type, and the fields of its data.

A subclass declares all three, and so registers itself:

    class SessionRenamed(Kind, topic="session.renamed", type="renamed"):
        title: Text

A field with a default stands in the data only when it was given: events have no keys that say nothing. What
comes from outside, or may be large, is of one of the types below, which are looked at and never copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, InstanceOf

from lightagentd.events.model import EventContext, NewEvent, current_context

Text = InstanceOf[str]
"""Any text, also one that is not Unicode: it is made storable as it is stored (`model.dump_json`)."""
Object = InstanceOf[dict[str, Any]]
Objects = InstanceOf[list[dict[str, Any]]]

ANY = "*"
"""Stands for each part of a topic that a family has, or for any type."""

KINDS: dict[tuple[str, str], type[Kind]] = {}
"""By topic and type, every kind that is declared."""


def named(topic: str, event_type: str, data: Mapping[str, Any]) -> NewEvent:
    """An event of a kind that is known by name, such as one that waits in a file to be stored.

    Raises KeyError for a kind whose module was not imported, ValueError for data that are not its own.
    """
    return KINDS[topic, event_type].model_validate_json(json.dumps(data)).event()


class Kind(BaseModel):
    """The data of an event. `topic`, `type` and `source` (see `NewEvent`) are arguments of the class."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # most kinds are rare, and each costs memory and a part of the start
        hide_input_in_errors=True,  # it may be a secret
    )

    topic: ClassVar[str] = ""
    type: ClassVar[str] = ""
    made_by: ClassVar[str] = "daemon"
    """The source."""

    def __init_subclass__(
        cls,
        *,
        topic: str = "",
        type: str = "",  # noqa: A002 - as the event calls it
        types: Iterable[str] = (),
        source: str = "daemon",
        **kwargs: Any,
    ) -> None:
        """`types` are those of a family, which tells them apart by its `event_type`."""
        super().__init_subclass__(**kwargs)
        if not topic:
            return  # what several kinds have in common
        cls.topic, cls.type, cls.made_by = topic, type, source
        for one in types or (type,):
            if (topic, one) in KINDS:
                raise TypeError(f"{topic} {one} is declared twice")
            KINDS[topic, one] = cls

    @property
    def event_topic(self) -> str:
        """The topic of this event; a family's depends on its data."""
        return self.topic

    @property
    def event_type(self) -> str:
        """The type of this event; a family's depends on its data."""
        return self.type

    def data(self) -> dict[str, Any]:
        """What is stored: each field that was given, in the order of the declaration."""
        given = self.model_fields_set
        found = {name: value for name, value in self.__dict__.items() if name in given}
        return found if self.model_extra is None else found | self.model_extra

    def event(self, *, source: str = "", context: EventContext | None = None) -> NewEvent:
        """The event, in a context, or in that of the running task."""
        return NewEvent(
            topic=self.event_topic,
            type=self.event_type,
            data=self.data(),
            source=source or self.made_by,
            context=context or current_context(),
        )
