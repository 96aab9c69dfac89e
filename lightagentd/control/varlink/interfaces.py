"""The Varlink interfaces, made from the declarations of the operations.

Each connection has its own instance of each interface, because the instance holds the connection, whose
caller the kernel identified (`SO_PEERCRED`). Errors of the operations pass through unchanged. The files in
`packaging/varlink/` are generated from this module:
`python -m lightagentd.control.varlink.interfaces packaging/varlink`.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from asyncvarlink import LastResult, TypedVarlinkErrorReply, VarlinkInterface, varlinkmethod

from lightagentd import errors
from lightagentd.control.authz import Connection
from lightagentd.control.grants import Grant
from lightagentd.control.operations.declared import Method
from lightagentd.control.operations.service import INTERFACES as DECLARED
from lightagentd.control.operations.service import Interface, Service

_COMMENT = re.compile("^#.*", re.MULTILINE)
_INTERFACE = re.compile(r"^interface (\S+)", re.MULTILINE)
_MEMBER = re.compile(r"^(?:type|method|error) (\w+)", re.MULTILINE)
_FIELD = re.compile(r"[(,]\s*(\w+)\s*:")
_INTERFACE_NAME = re.compile(r"[A-Za-z](-*[A-Za-z0-9])*(\.[A-Za-z0-9](-*[A-Za-z0-9])*)+")
_MEMBER_NAME = re.compile("[A-Z][A-Za-z0-9]*")
_FIELD_NAME = re.compile("[A-Za-z](_?[A-Za-z0-9])*")


def _error_classes() -> tuple[type[TypedVarlinkErrorReply], ...]:
    """One Varlink error for each row of the error table, all with the same parameters."""
    parameters = type(
        "Parameters", (), {"__annotations__": {"code": str, "message": str, "field": str, "suggestion": str}}
    )
    return tuple(
        type(
            row.varlink.rpartition(".")[2],
            (TypedVarlinkErrorReply,),
            {
                "__annotations__": {},
                "Parameters": parameters,
                "name": row.varlink,
                "__doc__": (row.cls.__doc__ or "").partition("\n\n")[0],
            },
        )
        for row in errors.table()
    )


class Errors(VarlinkInterface, name="org.lightagent1"):
    """The errors that every method of the other interfaces may answer with. message is one sentence
    that says what failed, suggestion what to do next, field names the parameter at fault.

    Every method takes the parameter allowInteractiveAuthentication (bool) beside its own: polkit may then
    ask a person whether the call is allowed, and the call waits for that. Without it such a call fails with
    AuthorizationRequired.
    """

    errors = _error_classes()


class Bound:
    """An interface bound to one connection."""

    def __init__(self, service: Service, connection: Connection) -> None:
        self.service = service
        self.connection = connection


def _interface(declared: Interface) -> Any:
    """A subclass of `Bound` and `VarlinkInterface`."""
    body = {one.mark.name: _method(one) for one in declared.methods} | {"__doc__": declared.doc}
    name = declared.name.rpartition(".")[2]
    return types.new_class(
        name, (Bound, VarlinkInterface), {"name": declared.name}, lambda made: made.update(body)
    )


def _method(declared: Method) -> Any:
    mark = declared.mark

    async def call(self: Bound, **given: Any) -> Any:
        caller = self.connection.caller
        result = await declared.call(self.service.of(declared.operations), caller, given)
        if caller.grant is not None:
            caller.grant.check()
        return result

    async def stream(self: Bound, **given: Any) -> AsyncIterator[Any]:
        caller = self.connection.caller
        async with aclosing(declared.call(self.service.of(declared.operations), caller, given)) as items:
            async for item in items if caller.grant is None else _while_granted(items, caller.grant):
                if mark.is_last is not None and mark.is_last(item):
                    raise LastResult(item)
                yield item
        if mark.is_last is None:
            raise LastResult(mark.end)

    function: Any = stream if mark.streams else call
    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=one.annotation,
            default=empty if one.required else None,
        )
        for one in declared.parameters
    ]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    returned = AsyncIterator[declared.result] if mark.streams else declared.result  # type: ignore[name-defined]
    function.__signature__ = inspect.Signature([itself, *parameters], return_annotation=returned)
    function.__name__, function.__doc__ = mark.name, declared.doc
    return varlinkmethod(
        function, return_parameter=mark.returns or None, delay_generator=False, allow_foreign=True
    )


async def _while_granted(items: AsyncIterator[Any], grant: Grant) -> AsyncIterator[Any]:
    """The items, until the grant is over. Raises PermissionDenied then."""
    end = object()
    while True:
        async with grant.holding():
            item = await anext(items, end)
        if item is end:
            return
        yield item


INTERFACES: tuple[Any, ...] = tuple(_interface(one) for one in DECLARED)
"""The interfaces that take calls, in the order of the documentation."""


def descriptions() -> dict[str, str]:
    """File name and text of each interface description. Raises ValueError for a name that Varlink refuses."""
    return {
        f"{interface.name}.varlink": with_valid_names(interface.render_interface_description())
        for interface in (Errors, *INTERFACES)
    }


def with_valid_names(description: str) -> str:
    """The description, if its names are as https://varlink.org/Interface-Definition wants them: each type,
    method and error has one of its own. Raises ValueError.
    """
    text = _COMMENT.sub("", description)
    members = _MEMBER.findall(text)
    wrong = [name for name in members if not _MEMBER_NAME.fullmatch(name)]
    wrong += [name for name in _FIELD.findall(text) if not _FIELD_NAME.fullmatch(name)]
    wrong += [name for name in _INTERFACE.findall(text) if not _INTERFACE_NAME.fullmatch(name)]
    wrong += [name for name, times in Counter(members).items() if times > 1]
    if wrong:
        raise ValueError(f"{text.split(maxsplit=2)[1]} has invalid or repeated names: {', '.join(wrong)}")
    return description


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in descriptions().items():
        (folder / name).write_text(text)
