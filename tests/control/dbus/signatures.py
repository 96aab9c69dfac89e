"""What the D-Bus plane offers, one method or signal a line: what clients rely on. The objects have a list
of their own.

`python -m tests.control.dbus.signatures` prints what `tests/data/dbus.txt` must hold.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from lightagentd.control.dbus.introspection import manager_interfaces, standard_interfaces, stream_interface


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


if __name__ == "__main__":
    print(signatures(), end="")
