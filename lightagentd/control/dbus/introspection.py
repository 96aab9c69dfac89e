"""Introspection: the interfaces and their documentation as XML, from the declarations.

Documentation is in annotations `org.gtk.GDBus.DocString`, which gdbus-codegen(1) reads and `gdbus introspect`
shows. Format: https://dbus.freedesktop.org/doc/dbus-specification.html#introspection-format
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from lightagentd.control.dbus.methods import OPTIONS, Method, methods
from lightagentd.control.dbus.streams import STREAM
from lightagentd.control.operations.service import INTERFACES

DOCTYPE = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
    ' "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)
_DOC = "org.gtk.GDBus.DocString"


def documented(element: Element, doc: str) -> Element:
    """The element, with its documentation if it has any."""
    if doc:
        SubElement(element, "annotation", name=_DOC, value=" ".join(doc.split()))
    return element


def method_element(method: Method) -> Element:
    """`<method>` of one method, its options described."""
    element = documented(Element("method", name=method.name), method.doc)
    for name, signature in method.arguments.items():
        arg = SubElement(element, "arg", name=name, type=signature, direction="in")
        if name == OPTIONS and method.optional:
            listed = ", ".join(f"{option} ({kind})" for option, kind in method.optional.items())
            documented(arg, f"What may be left out: {listed}.")
    for name, signature in method.results.items():
        SubElement(element, "arg", name=name, type=signature, direction="out")
    return element


def signal_element(name: str, doc: str, args: Mapping[str, str]) -> Element:
    element = documented(Element("signal", name=name), doc)
    for arg, signature in args.items():
        SubElement(element, "arg", name=arg, type=signature)
    return element


@functools.cache
def manager_interfaces() -> tuple[Element, ...]:
    """The interfaces of `/org/lightagent1` that hold methods, in the order of the documentation."""
    found = {}
    for one in INTERFACES:
        found[one.name] = documented(Element("interface", name=one.name), one.doc)
    for method in methods().values():
        found[method.interface].append(method_element(method))
    return tuple(found.values())


@functools.cache
def stream_interface() -> Element:
    """The interface of a stream's object."""
    element = documented(
        Element("interface", name=STREAM),
        "An answer of many parts. The signals go to the program alone that asked; the stream ends when that "
        "leaves the bus.",
    )
    close = SubElement(element, "method", name="Close")
    documented(close, "End the stream; no signal follows. A turn goes on without it.")
    element.append(signal_element("Item", "One part.", {"item": "a{sv}"}))
    ended = "The last signal. error is empty when the stream ended well, else the name of an error."
    element.append(signal_element("Ended", ended, {"error": "s", "message": "s", "suggestion": "s"}))
    return element


@functools.cache
def standard_interfaces() -> tuple[Element, ...]:
    """The interfaces that every object has."""
    peer = Element("interface", name="org.freedesktop.DBus.Peer")
    SubElement(peer, "method", name="Ping")
    machine = SubElement(peer, "method", name="GetMachineId")
    SubElement(machine, "arg", name="machine_uuid", type="s", direction="out")
    introspectable = Element("interface", name="org.freedesktop.DBus.Introspectable")
    introspect = SubElement(introspectable, "method", name="Introspect")
    SubElement(introspect, "arg", name="xml_data", type="s", direction="out")
    return (peer, introspectable)


def render(interfaces: Iterable[Element], children: Iterable[str]) -> str:
    """A node with these interfaces and its children. Interfaces of the same name are merged."""
    node, by_name = Element("node"), dict[str, Element]()
    for interface in interfaces:
        name = interface.get("name", "")
        if name not in by_name:
            by_name[name] = SubElement(node, "interface", name=name)
        first = not len(by_name[name])
        by_name[name].extend(child for child in interface if first or child.tag != "annotation")
    for child in children:
        SubElement(node, "node", name=child)
    ElementTree.indent(node)
    return DOCTYPE + ElementTree.tostring(node, encoding="unicode") + "\n"
