"""What the D-Bus plane offers, one member a line: what clients rely on. The objects have a list of their own.

`python -m tests.control.dbus.signatures` prints what `tests/data/dbus.txt` must hold, with the argument
`objects` what `dbus-objects.txt` must. `make generate` writes both.
"""

from __future__ import annotations

import sys
from xml.etree.ElementTree import Element

from lightagentd.control.dbus.introspection import manager_interfaces, standard_interfaces, stream_interface
from lightagentd.control.dbus.object_nodes import interfaces_of, root_node
from lightagentd.control.dbus.views import KINDS


def signatures() -> str:
    """All lines, sorted. Options stand behind the argument that holds them."""
    lines = set()
    for interface in (
        *manager_interfaces(),
        stream_interface(),
        *standard_interfaces(),
    ):
        lines |= {f"{interface.get('name')}.{_line(one)}" for one in interface if one.tag != "annotation"}
    return "\n".join(sorted(lines)) + "\n"


def _line(element: Element) -> str:
    if element.tag == "property":
        return f"{element.get('name')}: {element.get('type')} ({element.get('access')})"
    given, gives = (
        ", ".join(
            f"{arg.get('type')} {arg.get('name')}" + "".join(f" [{note.get('value')}]" for note in arg)
            for arg in element.iter("arg")
            if arg.get("direction", "in") == direction
        )
        for direction in ("in", "out")
    )
    kind = " (signal)" if element.tag == "signal" else ""
    return f"{element.get('name')}({given})" + (f" -> {gives}" if gives else "") + kind


def object_signatures() -> str:
    """Every member of the objects' interfaces."""
    elements = [*root_node().interfaces, *(one for kind in KINDS for one in interfaces_of(kind))]
    lines = []
    for interface in dict.fromkeys(elements):
        for member in interface:
            if member.tag == "property":
                lines.append(f"{interface.get('name')}.{member.get('name')} property {member.get('type')}")
            elif member.tag in ("method", "signal"):
                args = [
                    f"{one.get('direction', '')} {one.get('type')} {one.get('name')}".strip()
                    for one in member.findall("arg")
                ]
                lines.append(f"{interface.get('name')}.{member.get('name')} {member.tag} ({', '.join(args)})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(object_signatures() if "objects" in sys.argv[1:] else signatures(), end="")
