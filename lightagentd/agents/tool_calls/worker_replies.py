"""Checks a worker's replies before they are used, because a worker may be compromised."""

from __future__ import annotations

from typing import Any

from lightagentd.errors import OutcomeUnknown, ToolError
from lightagentd.events.model import NewEvent
from lightagentd.events.types.tool import EMITTED_TOPIC, INVOCATION, emitted
from lightagentd.text.reason import LOOK_FIRST
from lightagentd.worker.call import Call
from lightagentd.worker.needs_input import Asked, checked


def result_of(wanted: Call, event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Output and metadata of a finished call. Raises OutcomeUnknown for an invalid result."""
    output, metadata = event.get("output"), event.get("metadata")
    if not isinstance(output, str) or not isinstance(metadata, dict):
        raise OutcomeUnknown(
            f"What the worker gave for {wanted.tool}.{wanted.action} is no result.",
            suggestion=LOOK_FIRST,
        )
    return output, metadata


def asked_of(wanted: Call, event: dict[str, Any]) -> Asked:
    """What a call asks a person. Raises InputInvalid."""
    return checked(f"{wanted.tool}.{wanted.action}", *(event.get(name) for name in Asked.model_fields))


def event_of(wanted: Call, event: dict[str, Any]) -> NewEvent:
    """An event that a tool emitted in a call; its topic must be the tool's own. Raises ToolError.

    Events of watches come from their watchers alone (`watches`).
    """
    topic, kind, data = (event.get(name) for name in ("topic", "type", "data"))
    whose = f"The tool {wanted.tool} emitted an event"
    if not isinstance(topic, str) or not isinstance(kind, str) or not isinstance(data, dict):
        raise ToolError(f"{whose} without a topic, a type or data.")
    own = topic == f"tool.{wanted.tool}" or topic.startswith(f"tool.{wanted.tool}.")
    if not own or not EMITTED_TOPIC.fullmatch(topic):
        raise ToolError(f"{whose} of the topic {topic[:100]!r}.")
    if kind == INVOCATION:
        raise ToolError(f"{whose} that only the daemon makes: {kind}.")
    try:
        return emitted(topic, kind, {**data, "call_id": wanted.call_id})
    except ValueError as err:
        raise ToolError(f"{whose} that cannot be stored: {err}.") from err
