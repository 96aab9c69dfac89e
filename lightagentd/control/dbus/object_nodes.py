"""Introspection of the objects on D-Bus: agents, sessions, approvals, turns and the root.

The documentation comes from the classes and methods behind the objects.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement

from lightagentd.control.dbus.introspection import documented, method_element, signal_element
from lightagentd.control.dbus.object_methods import methods_of
from lightagentd.control.dbus.properties import INTERFACE as PROPERTIES
from lightagentd.control.dbus.properties import properties
from lightagentd.control.dbus.views import KINDS, MANAGER_KIND, TURN, Kind
from lightagentd.control.dbus.watchers import OBJECT_MANAGER

_EMITS = "org.freedesktop.DBus.Property.EmitsChangedSignal"
"""Is `true` where it does not stand."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """The introspection of one path. The elements `<interface>` are shared: copy one before changing it."""

    interfaces: tuple[Element, ...] = ()
    children: list[str] = field(default_factory=list)


@functools.cache
def interfaces_of(kind: Kind) -> tuple[Element, ...]:
    """The interfaces of the objects of a kind."""
    made = documented(Element("interface", name=kind.interface), _doc(kind))
    made.extend(method_element(method) for method in methods_of(kind).values())
    for one in properties(kind).values():
        element = SubElement(made, "property", name=one.name, type=one.signature, access="read")
        if one.silent:
            SubElement(element, "annotation", name=_EMITS, value="false")
    if kind is TURN:
        doc = (
            "What happens in the turn, sent to the program alone that prompted. type is that of the event, "
            "event has its fields. The last one is of the type done or error."
        )
        made.append(signal_element("Event", doc, {"type": "s", "event": "a{sv}"}))
    return (made, _properties())


@functools.cache
def root_node() -> Node:
    """What /org/lightagent1 has beside the methods of the interfaces."""
    manager = Element("interface", name=MANAGER_KIND.interface)
    told = "Be told of changes of the objects that the caller may see, by signals, until it leaves the bus."
    manager.append(documented(Element("method", name="Subscribe"), told))
    manager.append(documented(Element("method", name="Unsubscribe"), "Be told no more."))
    own, standard = interfaces_of(MANAGER_KIND)
    manager.extend(own.findall("property"))
    objects = Element("interface", name=OBJECT_MANAGER)
    doc = (
        "All objects that the caller may see, of the sessions at rest only the newest. From then on it is "
        "told of changes."
    )
    managed = documented(SubElement(objects, "method", name="GetManagedObjects"), doc)
    _arguments(managed, {"objects": "a{oa{sa{sv}}}"}, "out")
    objects.append(signal_element("InterfacesAdded", "", {"path": "o", "interfaces": "a{sa{sv}}"}))
    objects.append(signal_element("InterfacesRemoved", "", {"path": "o", "interfaces": "as"}))
    return Node(interfaces=(manager, objects, standard), children=[kind.folder for kind in KINDS])


def _doc(kind: Kind) -> str:
    """The class's text about its fields, with the field names that D-Bus uses."""
    names = {one.field: one.name for one in properties(kind).values()}
    said = inspect.getdoc(kind.view) or ""
    return re.sub("`([a-z_]+)`", lambda found: names.get(found[1], found[1]), said)


@functools.cache
def _properties() -> Element:
    made = Element("interface", name=PROPERTIES)
    get = SubElement(made, "method", name="Get")
    _arguments(get, {"interface": "s", "name": "s"}, "in")
    _arguments(get, {"value": "v"}, "out")
    every = SubElement(made, "method", name="GetAll")
    _arguments(every, {"interface": "s"}, "in")
    _arguments(every, {"properties": "a{sv}"}, "out")
    _arguments(SubElement(made, "method", name="Set"), {"interface": "s", "name": "s", "value": "v"}, "in")
    args = {"interface": "s", "changed": "a{sv}", "invalidated": "as"}
    made.append(signal_element("PropertiesChanged", "To those alone who asked for a property.", args))
    return made


def _arguments(element: Element, arguments: Mapping[str, str], direction: str) -> None:
    for name, signature in arguments.items():
        SubElement(element, "arg", name=name, type=signature, direction=direction)
