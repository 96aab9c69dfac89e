"""Writes the tool file for the facts of an OpenAPI document."""

from __future__ import annotations

import pprint
from typing import Any

_FILE = '''\
"""{title}, made from an OpenAPI document. The facts are all there is: `toolkit.openapi` makes the calls."""

from lightagentd.toolkit.openapi.tool import OpenApiTool


class {cls}(OpenApiTool):
    {title!r}

    name = {name!r}
    facts = {facts}
'''


def source_of(name: str, facts: dict[str, Any]) -> str:
    """The Python source of the tool `name`."""
    shown = pprint.pformat(facts, width=100, sort_dicts=False).replace("\n", "\n    ")
    title = "".join(char for char in facts["title"] if char.isprintable() and char not in "\\\"'") or name
    cls = "".join(word.capitalize() for word in name.split("_")) or "Tool"
    return _FILE.format(title=title, cls=cls, name=name, facts=shown)
