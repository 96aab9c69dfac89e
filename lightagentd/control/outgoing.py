"""The last filter for outgoing data: removes secrets from answers and errors on every plane.

Stored data and the events of watched turns contain no secrets anyway. This covers the rest: texts of files
that an administrator wrote, settings that an error quotes, data in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from lightagentd.control.presentation import as_json
from lightagentd.errors import LightagentError
from lightagentd.events.model import dump_json
from lightagentd.redaction import Redactor

_WHOLE = tuple(f"org.lightagent1.{name}" for name in ("Approvals", "Events", "History", "Tokens"))
"""Whoever decides on a call sees all of it: what looks like a secret could be the part that they would not
allow. The history has no secrets, and is long. A token that was just made is shown to its owner, once.
"""


def cleaned(redactor: Redactor, interface: str, value: Any) -> Any:
    """A method's result, JSON or types of `api`, without secrets."""
    if interface in _WHOLE or not redactor.suspects(
        dump_json(value if isinstance(value, dict) else as_json(value))
    ):
        return value
    return _without_secrets(redactor, value)


def _without_secrets(redactor: Redactor, value: Any) -> Any:
    """The same, of the same types."""
    if isinstance(value, list):
        return [_without_secrets(redactor, one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        named = {one.name: getattr(value, one.name) for one in fields(value)}
        return replace(value, **{name: _without_secrets(redactor, one) for name, one in named.items()})
    return redactor.value(value)


def cleaned_error(redactor: Redactor, err: LightagentError) -> LightagentError:
    """The same error, without secrets in its words."""
    err.message, err.suggestion = redactor.text(err.message), redactor.text(err.suggestion)
    err.field = redactor.text(err.field)
    return err


def varlink_cleaner(redactor: Redactor) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """For the Varlink server: cleans the reply of a method by its name. Streams are clean already."""

    def clean(method: str, reply: dict[str, Any]) -> dict[str, Any]:
        if reply.get("continues"):
            return reply
        if "parameters" not in reply:
            return reply
        interface = "" if "error" in reply else method.rpartition(".")[0]
        return {**reply, "parameters": cleaned(redactor, interface, reply["parameters"])}

    return clean
