"""Writes the definition of a flow from a program: the same as a person's file, lightagent-flow(5).

flow = (
    FlowBuilder("Look at a host", agent="ops")
    .input("path", default="/var")
    .step("facts", call="bash.exec", args={"command": "df {inputs.path}"})
    .step("report", depends_on=["facts"], prompt="Is there room? {facts.output}")
)
assert flow.check() == []
Path("/etc/lightagentd/flows/room.toml").write_text(flow.to_toml())
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

from lightagentd.errors import InvalidArgument

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class FlowBuilder:
    """One flow. Keys that are None are left out."""

    def __init__(self, description: str, **keys: Any) -> None:
        """`keys` are those of a flow, such as `agent` and `timeout_s`."""
        self._flow = _given(description=description, **keys)
        self._inputs: dict[str, dict[str, Any]] = {}
        self._steps: list[dict[str, Any]] = []

    def input(self, name: str, type: str = "string", **keys: Any) -> Self:  # noqa: A002 - it is the key's name
        """Add an input; `keys` are such as `description`, `default` and `choices`."""
        self._inputs[name] = _given(type=type, **keys)
        return self

    def step(self, name: str, **keys: Any) -> Self:
        """Add a step; one of the keys is `prompt`, `call`, `flow` or `ask`."""
        self._steps.append(_given(name=name, **keys))
        return self

    def definition(self) -> dict[str, Any]:
        """The tables of the file."""
        parts = {"inputs": self._inputs, "step": self._steps}
        return self._flow | {key: one for key, one in parts.items() if one}

    def to_toml(self) -> str:
        """The text of the file. Raises InvalidArgument for a value that TOML or a flow cannot have."""
        return "\n".join(self._lines())

    def check(self) -> list[str]:
        """What is wrong, as sentences with the lines of `to_toml`. The daemon knows whether there are the
        agents, calls and flows that it names: `client.call("Flows.Check", name="x", text=flow.to_toml())`.
        """
        from lightagentd.config.flows.checking import check_flow

        return [*check_flow(self.to_toml(), "flow").faults]

    def _lines(self) -> Iterator[str]:
        yield from _table(self._flow)
        for name, keys in self._inputs.items():
            yield f"\n[inputs.{_key(name)}]"
            yield from _table(keys)
        for keys in self._steps:
            yield "\n[[step]]"
            yield from _table(keys)
        yield ""


def _given(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _table(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        if isinstance(value, str) and "\n" in value:
            lines = "\n".join(map(_escaped, value.split("\n")))
            yield f'{_key(key)} = """\n{lines}"""'
        else:
            yield f"{_key(key)} = {_value(value)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """A value as TOML, in one line. Raises InvalidArgument."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {_value(one)}" for key, one in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise InvalidArgument(f"A flow has no {type(value).__name__} such as {str(value)[:40]}.")


def _escaped(text: str) -> str:
    """A text between quotes: what JSON escapes and TOML does not allow. Raises InvalidArgument."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("A text of a flow has half of a surrogate pair.") from None
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
