"""Reads the introspection text of a D-Bus object: interfaces with their members, and the object's children.

The text comes from a service and is not trusted: its size is bounded and entities are refused. Specification:
https://dbus.freedesktop.org/doc/dbus-specification.html#introspection-format
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from lightagentd.errors import ToolError
from lightagentd.toolkit.dbus.values import printable

XML_LIMIT_CHARS = 2 * 1024 * 1024


@dataclass
class Introspected:
    """The parsed introspection of one object."""

    interfaces: list[dict[str, Any]] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class _Reader:
    """Takes the elements of an introspection text; what nested nodes hold is left out."""

    def __init__(self) -> None:
        self.found = Introspected()
        self._nodes = 0
        self._member: dict[str, str] = {}
        self._arguments: list[tuple[str, str]] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        attributes = {key: printable(value)[:500] for key, value in attributes.items()}
        if tag == "node":
            self._nodes += 1
            if self._nodes == 2:
                self.found.children.append(attributes.get("name", ""))
        elif self._nodes != 1:
            return
        elif tag == "interface":
            row = {"name": attributes.get("name", ""), "methods": [], "properties": [], "signals": []}
            self.found.interfaces.append(row)
        elif tag in ("method", "signal"):
            self._member, self._arguments = attributes, []
        elif tag == "arg":
            text = f"{attributes.get('type', '?')} {attributes.get('name', '')}".strip()
            self._arguments.append((attributes.get("direction", ""), text))
        elif tag == "property" and self.found.interfaces:
            text = f"property {attributes.get('name')} {attributes.get('type')} {attributes.get('access')}"
            self.found.interfaces[-1]["properties"].append(text)

    def end(self, tag: str) -> None:
        if tag == "node":
            self._nodes -= 1
        elif tag in ("method", "signal") and self._nodes == 1 and self.found.interfaces:
            inward = ", ".join(text for way, text in self._arguments if way != "out" or tag == "signal")
            outward = ", ".join(text for way, text in self._arguments if way == "out" and tag == "method")
            text = f"{tag} {self._member.get('name')}({inward})" + (f" -> {outward}" if outward else "")
            self.found.interfaces[-1][f"{tag}s"].append(text)

    def entity(self, *_: object) -> None:
        raise ToolError("The introspection text declares entities, which is refused.")


def parsed(xml: Any, path: str, service: str) -> Introspected:
    """What the object at `path` of `service` offers. Raises ToolError when its text cannot be read."""
    what = f"The introspection text of {path} of {service}"
    if not isinstance(xml, str) or len(xml) > XML_LIMIT_CHARS:
        raise ToolError(f"{what} is no text, or has more than {XML_LIMIT_CHARS} characters.")
    parser, reader = expat.ParserCreate(), _Reader()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.EntityDeclHandler = reader.entity
    try:
        parser.Parse(xml, True)
    except expat.ExpatError as err:
        raise ToolError(f"{what} is no valid XML: {err}.") from err
    return reader.found
