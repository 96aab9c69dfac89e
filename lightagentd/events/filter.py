"""Selects the events that a reader wants.

`Filter.wants` decides. The rest serves `search`, which reads the matching indexes, and tests the bytes of a
record (`byte_test`) before it decodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lightagentd.events.model import Event, dump_json
from lightagentd.events.store.layout import indexed_fields

TOPIC_SEPARATOR = ","


@dataclass(frozen=True, kw_only=True)
class Filter:
    """All that is given must hold; empty fields mean all. Times are UTC microseconds."""

    agent: str = ""
    session: str = ""
    topic: str = ""
    """An exact topic, or what it begins with before a dot; or several, with commas between them."""
    type: str = ""
    tool: str = ""
    """The name of a tool, as calls, decisions and approvals are about it."""
    effect: str = ""
    decision: str = ""
    caller: int | None = None
    trace: str = ""
    request: str = ""
    text: str = ""
    """What stands in one of the names, strings or numbers in the event's data, in any case of letters."""
    since_us: int = 0
    until_us: int = 0
    """Not after it; 0 for no end."""
    viewer: int | None = None
    """When set, events of sessions that another uid owns are left out."""
    agents: frozenset[str] | None = None
    """When set, events about other agents are left out."""

    def wants(self, event: Event) -> bool:
        return (
            (not self.agent or event.agent == self.agent)
            and (not self.session or event.session == self.session)
            and (not self.topic or self._has_topic(event.topic))
            and (not self.trace or event.trace_id == self.trace)
            and (not self.request or event.request_id == self.request)
            and (not self.type or event.type == self.type)
            and (self.caller is None or event.caller == self.caller)
            and event.time_us >= self.since_us
            and (not self.until_us or event.time_us <= self.until_us)
            and (self.viewer is None or event.owner is None or event.owner == self.viewer)
            and (self.agents is None or not event.agent or event.agent in self.agents)
            and self._is_about(event)
            and (not self.text or _holds(event.data, self.text.casefold()))
        )

    def topics(self) -> list[str]:
        """The wanted topics, each with its subtopics; none for all."""
        return [topic for topic in self.topic.split(TOPIC_SEPARATOR) if topic]

    def fields(self) -> dict[str, str]:
        """The wanted values of `layout.FIELDS`."""
        wanted = {
            "type": self.type,
            "caller": "" if self.caller is None else str(self.caller),
            "request": self.request,
            "tool": self.tool,
            "effect": self.effect,
            "decision": self.decision,
        }
        return {field: value for field, value in wanted.items() if value}

    def byte_test(self) -> Callable[[bytes], bool]:
        """A test of a record's bytes. False means that the record cannot match; True means that it must be
        decoded.

        It relies on the form that `model.dump_json` writes: no spaces, and only the escapes that JSON
        demands.
        """
        wanted = {"agent": self.agent, "session": self.session, "trace_id": self.trace, "type": self.type}
        wanted |= {"request_id": self.request, "tool": self.tool, "effect": self.effect}
        wanted |= {"decision": self.decision}
        parts = [dump_json({name: value})[1:-1] for name, value in wanted.items() if value]
        if self.caller is not None:
            parts.append(b'"caller":%d' % self.caller)
        # JSON escapes a string character by character, and casefold() changes no character that it escapes.
        text = dump_json(self.text.casefold())[1:-1].decode() if self.text else ""

        def test(record: bytes) -> bool:
            for part in parts:
                if part not in record:
                    return False
            if not text or b"\\u" in record:
                return True
            return text in record.decode("utf-8", "replace").casefold()

        return test

    def _has_topic(self, topic: str) -> bool:
        if TOPIC_SEPARATOR not in self.topic:
            return topic == self.topic or topic.startswith(self.topic + ".")
        return any(topic == one or topic.startswith(one + ".") for one in self.topics())

    def _is_about(self, event: Event) -> bool:
        """Whether tool, effect and decision match."""
        if not (self.tool or self.effect or self.decision):
            return True
        return self.fields().items() <= dict(indexed_fields(event)).items()


def _holds(value: Any, text: str) -> bool:
    """Whether a text, already casefolded, is part of a name, string or number of a JSON value."""
    return any(text in word.casefold() for word in _words(value))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _words(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)
    elif value is not None:
        yield dump_json(value).decode()
