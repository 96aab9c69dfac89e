"""Says what a tool's source uses, for the person who decides about it. The text is read and never runs.

It is an aid to reading and no boundary: code can hide what it uses. The boundary is the effect's sandbox.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

MOST = 200
_URL = re.compile(r"https?://([\w.:\[\]-]+)")
_TELLING = frozenset(
    {"open", "eval", "exec", "compile", "__import__", "getattr", "setattr", "globals", "vars", "input"}
)
"""Names that are there without an import, and that a reader wants to know of."""


def uses(source: str) -> list[str]:
    """The modules that it imports, and the names that it uses of them, in order; the first `MOST`.

    Raises SyntaxError, ValueError for a text with a NUL, RecursionError.
    """
    tree = ast.parse(source)
    names: dict[str, str] = {}
    found: list[str] = []
    for node in ast.walk(tree):
        for name, stands_for in _imported(node):
            names[name] = stands_for
            found.append(stands_for)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _TELLING:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and (dotted := _dotted(node, names)):
            found.append(dotted)
    return sorted(dict.fromkeys(found))[:MOST]


def hosts_in(source: str) -> list[str]:
    """The hosts of the URLs that stand in it; code can make others."""
    return sorted({match[1].lower() for match in _URL.finditer(source)})[:MOST]


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import makes, and what they stand for."""
    if isinstance(node, ast.Import):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0], one.name
    elif isinstance(node, ast.ImportFrom):
        for one in node.names:
            yield one.asname or one.name, f"{'.' * node.level}{node.module or ''}.{one.name}"


def _dotted(node: ast.Attribute, names: dict[str, str]) -> str:
    """The whole name of an attribute of what was imported; empty for any other."""
    parts, at = list[str](), node.value
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name) or at.id not in names:
        return ""
    return ".".join([names[at.id], *reversed(parts), node.attr])
