"""The properties of the objects on D-Bus: one for each field of the class behind the objects.

D-Bus has no null: an absent number is -1, an absent structure an empty dictionary. All properties are
read-only.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.bus.connection import Variant
from lightagentd.control.dbus.types import signature_of, variant
from lightagentd.control.dbus.views import Key, Kind, View

INTERFACE = "org.freedesktop.DBus.Properties"
_NOTHING: dict[str, Any] = {"x": -1, "s": "", "a{sv}": {}, "as": [], "aa{sv}": []}
"""What stands for None."""


@dataclass(frozen=True, kw_only=True)
class Property:
    """One property; `field` is that of the view."""

    name: str
    field: str
    signature: str
    silent: bool

    def of(self, view: View) -> Variant:
        """Its value in D-Bus form."""
        value = getattr(view, self.field)
        return variant(_NOTHING[self.signature] if value is None else value, self.signature)


@functools.cache
def properties(kind: Kind) -> Mapping[str, Property]:
    """All properties of a kind of object, by name."""
    hints = typing.get_type_hints(kind.view)
    found = [
        Property(
            name=camel_case(field.name),
            field=field.name,
            signature="a{sv}" if hints[field.name] is Any else signature_of(hints[field.name]),
            silent=field.name in kind.silent,
        )
        for field in dataclasses.fields(kind.view)
    ]
    return {one.name: one for one in found}


def camel_case(name: str) -> str:
    """The D-Bus name of a field: `created_us` is `CreatedUs`."""
    return "".join(part.capitalize() for part in name.split("_"))


def values(key: Key, view: View, names: Collection[str] | None = None) -> dict[str, Variant]:
    """The properties of an object by name; only the fields in `names`, if given."""
    return {
        one.name: one.of(view) for one in properties(key.kind).values() if names is None or one.field in names
    }
