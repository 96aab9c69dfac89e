"""Tools and actions as a worker's `Describe` returned them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.llm.function_schema import function_schema
from lightagentd.llm.protocol import Function
from lightagentd.tool import Effect, Place
from lightagentd.worker.plain import Check

_MAX_DEPTH = 50
_VALUES = ("default", "examples", "enum", "const")
"""The keywords of JSON Schema whose value is a value, and not a schema."""


@dataclass(frozen=True, kw_only=True)
class ActionInfo:
    """One action of a tool. `effect` is None where each call chooses."""

    tool: str
    name: str
    description: str
    effect: Effect | None
    taints: bool
    timeout_s: float
    schema: dict[str, Any]
    place: Place | None = None
    host: str = ""
    """The argument that names the host of a call with the effect reach, or the URL that all calls go to;
    empty when there is neither.
    """
    check: Check | None = None
    """Checks arguments as a worker does; None when only a worker can."""

    @property
    def function(self) -> str:
        return f"{self.tool}_{self.name}"

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """The arguments for the tool alone (`writeOnly` in JSON Schema), which are never stored."""
        definitions = self.schema.get("$defs", {})
        properties = self.schema.get("properties", {})
        return tuple(name for name, described in properties.items() if _write_only(described, definitions))

    @cached_property
    def offer(self) -> Function:
        """The function as a model sees it; always the same object."""
        parameters = function_schema(self.schema)
        return Function(name=self.function, description=self.description, parameters=parameters)

    def effect_of(self, args: dict[str, Any]) -> Effect:
        """The effect of a call with these arguments. Raises InvalidArgument for an unknown effect."""
        if self.effect is not None:
            return self.effect
        asked = args.get("effect", Effect.OBSERVE.value)
        try:
            return Effect(asked)
        except ValueError:
            raise InvalidArgument(
                f"{self.tool}.{self.name}: {str(asked)[:60]!r} is not an effect.",
                field="effect",
                suggestion="Use observe, reach or change.",
            ) from None

    def goes_to(self, args: dict[str, Any]) -> Any:
        """The host or URL of a call with these arguments, as it is written; None without one."""
        return self.host if "://" in self.host else args.get(self.host) if self.host else None

    def timeout_of(self, args: dict[str, Any], longest_s: float) -> float:
        """How long a call with these arguments may take."""
        asked = args.get("timeout_s")
        wanted = asked if isinstance(asked, int | float) and asked > 0 else self.timeout_s
        return float(min(wanted, longest_s))  # in this order: an integer may be larger than any float


@dataclass(frozen=True, kw_only=True)
class ToolInfo:
    """One tool file. `problem` says why it is disabled, if it is."""

    name: str
    description: str
    path: str
    problem: str
    actions: tuple[ActionInfo, ...]
    sha256: str = ""
    """That of its file."""
    agents: tuple[str, ...] = ()
    """The agents that have it; all of them when there are none."""


def _write_only(described: Any, definitions: dict[str, Any], depth: int = 0) -> bool:
    """Whether a property or a part of it is write-only; one nested too deep counts as write-only."""
    if depth > _MAX_DEPTH:
        return True
    if isinstance(described, list):
        return any(_write_only(each, definitions, depth + 1) for each in described)
    if not isinstance(described, dict):
        return False
    if described.get("writeOnly") is True:
        return True
    if isinstance(reference := described.get("$ref"), str):
        name = reference.rpartition("/")[2]
        others = {key: value for key, value in definitions.items() if key != name}
        if _write_only(definitions.get(name, {}), others, depth + 1):
            return True
    nested = [value for key, value in described.items() if key not in _VALUES]
    return _write_only(nested, definitions, depth + 1)
