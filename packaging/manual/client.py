"""The typed methods of the client library, from the declarations of the operations."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from lightagentd.control.operations.declared import Method
from lightagentd.control.operations.service import INTERFACES

_TYPES_HEAD = '''\
"""Generated from the code by packaging/generate.py; do not edit.

The types of what the methods of `Client` and `AsyncClient` give: plain dictionaries, as they come over the
wire. No code of the package imports this module when it runs.
"""

# ruff: noqa: UP013
# fmt: off

from typing import Any, Required, TypedDict
'''
_HEAD = '''\
"""Generated from the code by packaging/generate.py; do not edit.

The methods of `Client` and `AsyncClient` for type checkers and editors. `sessions_list(agent="ops")` calls
`Sessions.List`. No code of the package imports this module when it runs.
"""

# mypy: disable-error-code="empty-body"
# ruff: noqa: A002, F403, F405
# fmt: off

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from lightagentd.client.replies import *
'''
_WIDTH = 110
_BLANK = "\x1f"


@dataclasses.dataclass
class _Types:
    """The structures that the methods use, by name, each as its definition."""

    known: dict[str, str] = dataclasses.field(default_factory=dict)

    def text(self, annotation: Any) -> str:
        """An annotation as text."""
        args = typing.get_args(annotation)
        if annotation is type(None) or annotation is None:
            return "None"
        if typing.get_origin(annotation) in (types.UnionType, typing.Union):
            return " | ".join(map(self.text, args))
        if typing.get_origin(annotation) is list:
            return f"list[{self.text(args[0])}]"
        if dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation):
            return self._structure(annotation)
        return "Any" if annotation is Any else str(annotation.__name__)

    def reply(self, method: Method) -> str:
        """The reply of a method: a dictionary with the result by its name."""
        named = method.mark.returns
        if not named:
            return "dict[str, Any]" if method.result is None else self.text(method.result)
        noun = method.interface.rpartition(".")[2]
        name = "".join(part.title() for part in named.split("_"))
        shape = {named: self.text(method.result)}
        return self._define(f"{name}Reply", shape) or self._define(f"{noun}{name}Reply", shape) or ""

    def _structure(self, annotation: Any) -> str:
        name = str(annotation.__name__)
        hints = typing.get_type_hints(annotation)
        if getattr(annotation, "__total__", True):
            self._define(name, {one: self.text(hint) for one, hint in hints.items()})
        else:
            always = annotation.__mro__[0].__required_keys__
            shape = {one: self.text(hint) for one, hint in hints.items()}
            shape = {one: f"Required[{kind}]" if one in always else kind for one, kind in shape.items()}
            self._define(name, shape, ", total=False")
        return name

    def _define(self, name: str, shape: Mapping[str, str], more: str = "") -> str:
        """The name; empty where something else has it."""
        fields = ", ".join(f'"{one}": {kind}' for one, kind in shape.items())
        text = _wrapped(f'{name} = TypedDict("{name}", {{{fields}}}{more})')
        return name if self.known.setdefault(name, text) == text else ""


def typed_methods() -> tuple[str, str]:
    """The texts of `lightagentd/client/replies.py` and `lightagentd/client/methods.py`."""
    found = _Types()
    each = [(_name(one), _parameters(one, found), one.mark.streams, found.reply(one)) for one in _methods()]
    replies = "\n".join([_TYPES_HEAD, *found.known.values()]) + "\n"
    lines = [_HEAD, "", "class Methods:"]
    for name, given, streams, reply in each:
        lines.append(
            _wrapped(f"    def {name}({given}) -> {f'Iterator[{reply}]' if streams else reply}: ...")
        )
    lines += ["", "", "class AsyncMethods:"]
    for name, given, streams, reply in each:
        how, gives = ("def", f"AsyncGenerator[{reply}, None]") if streams else ("async def", reply)
        lines.append(_wrapped(f"    {how} {name}({given}) -> {gives}: ..."))
    return replies, "\n".join(lines) + "\n"


def _methods() -> Iterator[Method]:
    for interface in INTERFACES:
        yield from interface.methods


def _name(method: Method) -> str:
    """`sessions_list` for `Sessions.List`."""
    noun = method.interface.rpartition(".")[2]
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", f"{noun}_{method.mark.name}").lower()


def _parameters(method: Method, found: _Types) -> str:
    texts = ["self"] + ["*"] * bool(method.parameters)
    for one in method.parameters:
        kind = found.text(one.annotation)
        left_out = " = None" if kind.endswith("| None") else " | None = None"
        texts.append(f"{one.name}: {kind}{'' if one.required else left_out}")
    return ", ".join(texts)


def _wrapped(line: str) -> str:
    """The line, broken after commas: they are all inside brackets."""
    kept = line.replace(" ", _BLANK).replace(f",{_BLANK}", ", ")
    wrapped = textwrap.fill(
        kept, _WIDTH, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False
    )
    return wrapped.replace(_BLANK, " ")
