"""The rules of the house (CONTRIBUTING.md): who may import whom, who may spawn, how large things get."""

from __future__ import annotations

import ast
import re

from tests.house import (
    REPOSITORY,
    Module,
    circles,
    large_classes,
    modules,
    root,
    tracked,
)

FOUND = modules()

LAYERS = (
    ("errors", "limits", "quoted", "frontmatter", "lightagentd"),
    ("tool", "skills", "host", "api"),
    ("config", "bus", "varlink"),
    ("redaction",),
    ("events",),
    ("policy", "llm", "memory", "toolkit"),
    ("worker", "client"),
    ("agents",),
    ("doctor", "unattended"),
    ("control",),
    ("daemon",),
    ("cli",),
    ("desktop",),
    ("__main__",),
)
"""The rooms from the lowest to the highest; a module imports from its own room and from lower layers."""
ALLOWED: set[tuple[str, str]] = set()
SPAWNING = re.compile(r"subprocess|create_subprocess_|os\.(?:fork|posix_spawn|exec[lv]|spawn)|pty\.fork")
SPAWNERS: set[str] = set()


def _layer(room: str) -> int:
    (at,) = [number for number, rooms in enumerate(LAYERS) if (room or "lightagentd") in rooms]
    return at


def test_imports_point_downwards() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in FOUND.values()
        for name in sorted(module.imports)
        if FOUND[name].room != module.room and _layer(FOUND[name].room) >= _layer(module.room)
    ]
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    assert circles({name: module.imports for name, module in FOUND.items()}) == []


if __name__ == "__main__":
    for module in FOUND.values():
        for name in sorted(module.imports):
            if FOUND[name].room != module.room and _layer(FOUND[name].room) >= _layer(module.room): print(module.name, name)
    import collections
    for m in FOUND.values():
        if SPAWNING.search(m.path.read_text()): print("SPAWN", m.name)
    for m in FOUND.values():
        if m.lines>500: print("LONG", m.name, m.lines)
