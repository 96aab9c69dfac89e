"""References to inputs and outputs: `{inputs.host}`, `{facts.output}`, `{updates.json.packages.0.name}`.

A reference that ends with `?` may have no value: it is empty then. `{{` and `}}` are braces. There is no code
in a template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Any

from lightagentd.errors import InvalidArgument

_REFERENCE = re.compile(r"([a-z][a-z0-9_-]{0,63})((?:\.[A-Za-z0-9_@-]{1,128}){0,20})(\??)")
INPUTS, ITEM, RUN = "inputs", "item", "run"
NOT_STEPS = frozenset({INPUTS, ITEM, RUN})
"""What references begin with that are not to a step."""
OF_STEP = ("output", "json", "status")


class Missing:
    """The value of what does not exist."""


MISSING = Missing()


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One reference. `to` is a step, `inputs`, `item` or `run`; `path` is what follows."""

    to: str
    path: tuple[str, ...]
    optional: bool

    def __str__(self) -> str:
        return "{" + ".".join([self.to, *self.path]) + ("?}" if self.optional else "}")


def parsed(template: str) -> list[str | Reference]:
    """The texts and references of a template, in their order. Raises ValueError, with a sentence."""
    found: list[str | Reference] = []
    try:
        parts = list(Formatter().parse(template))
    except ValueError as err:
        raise ValueError(f"the template is broken: {err}; a brace is written twice, {{{{ or }}}}") from None
    for text, name, form, conversion in parts:
        if text:
            found.append(text)
        if name is None:
            continue
        match = _REFERENCE.fullmatch(name)
        if match is None or form or conversion:
            raise ValueError(
                f"the template is broken: {{{name[:60]}}} is not a reference; a brace is written twice"
            )
        path = tuple(match[2].split(".")[1:])
        found.append(Reference(to=match[1], path=path, optional=bool(match[3])))
    return found


def references(value: Any) -> Iterator[Reference]:
    """All references in a text, or in the texts of tables and lists. Raises ValueError."""
    if isinstance(value, str):
        yield from (one for one in parsed(value) if isinstance(one, Reference))
    elif isinstance(value, dict):
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from references(one)


def filled(value: Any, look_up: Callable[[Reference], Any]) -> Any:
    """The value with what its references stand for; one that is a single reference keeps that one's type.

    `look_up` gives MISSING for what does not exist. Raises InvalidArgument for that without a `?`.
    """
    if isinstance(value, dict):
        return {key: filled(one, look_up) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [filled(one, look_up) for one in value]
    if not isinstance(value, str):
        return value
    parts = [_value(one, look_up) if isinstance(one, Reference) else one for one in parsed(value)]
    return parts[0] if len(parts) == 1 else "".join(as_text(one) for one in parts)


def _value(reference: Reference, look_up: Callable[[Reference], Any]) -> Any:
    found = look_up(reference)
    if not isinstance(found, Missing):
        return found
    if not reference.optional:
        raise InvalidArgument(
            f"{reference} does not exist in this run.",
            suggestion="Write ? after a name that may not exist, or add a condition with when.",
        )
    return ""


def dig(value: Any, path: tuple[str, ...]) -> Any:
    """What is at a path of names and places (from 0) in a JSON value; MISSING where nothing is."""
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value


def as_text(value: Any) -> str:
    """A value as it stands in a text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
