"""What an event type is: topic, type, the fields of its data, and what the journal says of it.

A subclass declares all three, and so registers itself:

    class SessionRenamed(EventType, topic="session.renamed", type="renamed"):
        catalog = …
        title: Text

`catalog` is what `journalctl -x` explains (https://systemd.io/CATALOG/): its first line is the subject, `> `
begins a paragraph about what to do next, and `@AGENT@` stands for the field LIGHTAGENT_AGENT of the entry.
`make generate` writes the file of all of them.

A field with a default stands in the data only when it was given: events have no keys that say nothing. What
comes from outside, or may be large, is of one of the types below, which are looked at and never copied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, InstanceOf

from lightagentd.events.model import Event, EventContext, NewEvent, current_context

Text = InstanceOf[str]
"""Any text, also one that is not Unicode: it is made storable as it is stored (`model.dump_json`)."""
Object = InstanceOf[dict[str, Any]]
Objects = InstanceOf[list[dict[str, Any]]]

ANY = "*"
"""Stands for each part of a topic that a family has, or for any type."""

ERROR, WARNING, NOTICE, INFO = "3", "4", "5", "6"
"""Priorities in the journal, as in syslog(3)."""
FIELD_MAX_BYTES = 4096
"""How long a field of the journal may be."""

TYPES: dict[tuple[str, str], type[EventType]] = {}
"""Every declared type, by topic and type."""


def named(topic: str, event_type: str, data: Mapping[str, Any]) -> NewEvent:
    """An event of a type that is known by name, such as one that waits in a file to be stored.

    Raises KeyError for a type whose module was not imported, ValueError for data that are not its own.
    """
    return TYPES[topic, event_type].model_validate_json(json.dumps(data)).event()


class EventType(BaseModel):
    """The data of an event. `topic`, `type` and `source` (see `NewEvent`) are arguments of the class."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # most types are rare, and each costs memory and a part of the start
        hide_input_in_errors=True,  # it may be a secret
    )

    topic: ClassVar[str] = ""
    type: ClassVar[str] = ""
    made_by: ClassVar[str] = "daemon"
    """The source."""
    priority: ClassVar[str] = INFO
    catalog: ClassVar[str] = ""

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
            return  # what several types have in common
        cls.topic, cls.type, cls.made_by = topic, type, source
        for one in types or (type,):
            if (topic, one) in TYPES:
                raise TypeError(f"{topic} {one} is declared twice")
            TYPES[topic, one] = cls

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

    @classmethod
    def sentence(cls, event: Event) -> str:
        """The MESSAGE of a stored event in the journal. Its data may be gone."""
        return f"{event.topic} {event.type}"

    @classmethod
    def priority_of(cls, event: Event) -> str:  # noqa: ARG003 - some types look at it
        """The PRIORITY of a stored event."""
        return cls.priority

    @classmethod
    def catalog_of(cls, event_type: str) -> str:  # noqa: ARG003 - a family has several
        """The catalog text of one of the types of the class."""
        return cls.catalog


class Reported(EventType):
    """An event that says in its `message`, if it has one, what happened."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        return f"{event.type}: {(event.data or {}).get('message', '')}".rstrip(": ")


class AboutCall(EventType):
    """An event about a tool call. Its sentence has no arguments: others read the journal too."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        data = event.data or {}
        if "tool" not in data or "action" not in data:
            return super().sentence(event)
        return f"{event.type} {cls.subject(data)}"

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        """What the sentence is about."""
        return f"{data['tool']}.{data['action']}"


def shortened(text: str, most: int = FIELD_MAX_BYTES) -> str:
    """The text, or its beginning with its size and hash when it is too long for a field."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return raw[: most - 64].decode(errors="ignore") + f"… ({len(raw)} bytes, sha256 {digest})"
