"""Declares an operation once, for every control plane.

A class of operations names its interface and marks its methods with `method` or `stream`. The docstrings of
the class and of the methods are the documentation on the wire. The parameters after the caller are those on
the wire; a trailing underscore is dropped from the name. A parameter with a default may be left out or null.
A `Filter` stands for one parameter for each of its fields.

The planes use `methods_of` when they are imported. This module keeps no state.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from lightagentd.control.authz import Caller
from lightagentd.events.filter import Filter
from lightagentd.events.types.registry import check_topics

_F = TypeVar("_F", bound=Callable[..., Any])
_BY_DAEMON = ("viewer", "agents")
"""The fields of a `Filter` that no caller gives."""


class Operations:
    """The operations on one noun. Classes that share an interface have the documentation of the first."""

    interface: ClassVar[str]

    def __init_subclass__(cls, *, interface: str = "") -> None:
        if interface:
            cls.interface = interface


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What a decorator says about an operation: its name on the wire, and the name of its result."""

    name: str
    returns: str = ""
    """Empty where there is no result, or where the items of a stream are objects with names of their own."""
    interface: str = ""
    """Where it is not that of the class."""
    over_bus: bool = True
    """Whether the D-Bus plane has it too."""
    first: tuple[str, ...] = ()
    """The parameters that come first on the wire, where those of a filter are not the first."""
    streams: bool = False
    is_last: Callable[[Any], bool] | None = None
    """Says which item is the last of a stream; without it `end` comes after the items."""
    end: Any = None


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter on the wire. `field` is the field of the operation's `Filter` that it sets."""

    name: str
    annotation: Any
    required: bool
    argument: str
    field: str = ""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of an interface."""

    mark: Mark
    interface: str
    operations: type[Operations]
    function: str
    """The name of the operation in its class."""
    doc: str
    parameters: Sequence[Parameter]
    result: Any
    """The annotation of the result, or of an item of the stream."""

    def call(self, operations: Operations, caller: Caller, given: Mapping[str, Any]) -> Any:
        """The coroutine of the result, or the generator of the items. `given` has the names of the wire."""
        passed: dict[str, Any] = {}
        for one in self.parameters:
            if one.field:
                passed.setdefault(one.argument, {})
            if (value := given.get(one.name)) is None and (one.name not in given or not one.required):
                continue
            if one.field:
                passed[one.argument][one.field] = value
            else:
                passed[one.argument] = value
        for name in {one.argument for one in self.parameters if one.field}:
            passed[name] = Filter(**passed[name])
            check_topics(passed[name].topics())
        return getattr(operations, self.function)(caller, **passed)


def method(
    name: str, *, returns: str = "", first: str = "", interface: str = "", over_bus: bool = True
) -> Callable[[_F], _F]:
    """Mark a coroutine as a method with one reply."""
    mark = Mark(
        name=name, returns=returns, first=tuple(first.split()), interface=interface, over_bus=over_bus
    )
    return _marking(mark)


def stream(
    name: str,
    *,
    returns: str = "",
    first: str = "",
    is_last: Callable[[Any], bool] | None = None,
    end: Any = None,
) -> Callable[[_F], _F]:
    """Mark an asynchronous generator as a method with many replies."""
    mark = Mark(
        name=name, returns=returns, first=tuple(first.split()), streams=True, is_last=is_last, end=end
    )
    return _marking(mark)


def _marking(mark: Mark) -> Callable[[_F], _F]:
    def marked(function: _F) -> _F:
        function.mark = mark  # type: ignore[attr-defined]
        return function

    return marked


def methods_of(operations: type[Operations]) -> tuple[Method, ...]:
    """The methods that a class declares, in the order of its source."""
    found = {name: getattr(one, "mark", None) for name, one in vars(operations).items()}
    return tuple(_method(operations, name, mark) for name, mark in found.items() if mark is not None)


def _method(operations: type[Operations], name: str, mark: Mark) -> Method:
    function = vars(operations)[name]
    hints = typing.get_type_hints(function)
    result = None if hints["return"] is type(None) else hints["return"]
    if mark.streams:
        result = typing.get_args(result)[0]
        if mark.is_last is None and mark.end is None:
            result |= None
    parameters = [
        one
        for given in list(inspect.signature(function).parameters.values())[2:]
        for one in _parameters(given, hints[given.name])
    ]
    parameters.sort(key=lambda one: mark.first.index(one.name) if one.name in mark.first else len(mark.first))
    return Method(
        mark=mark,
        interface=mark.interface or operations.interface,
        operations=operations,
        function=name,
        doc=inspect.cleandoc(function.__doc__ or ""),
        parameters=tuple(parameters),
        result=result,
    )


def _parameters(given: inspect.Parameter, annotation: Any) -> list[Parameter]:
    """The parameters on the wire for one parameter of an operation."""
    if annotation is not Filter:
        required = given.default is given.empty
        name = given.name.removesuffix("_")
        return [Parameter(name=name, annotation=annotation, required=required, argument=given.name)]
    hints = typing.get_type_hints(Filter)
    return [
        Parameter(
            name=one.name, annotation=hints[one.name], required=False, argument=given.name, field=one.name
        )
        for one in fields(Filter)
        if one.name not in _BY_DAEMON
    ]
