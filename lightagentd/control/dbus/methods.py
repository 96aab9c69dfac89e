"""The methods of the D-Bus plane, made from the interfaces that Varlink has: the two can never differ.

A method's D-Bus name is that of the interface and the method, on the object `/org/lightagent1`. Parameters
that must be given stand in their order; where there are others, one `a{sv}` at the end takes them by name.
A method that streams gives the path of a stream (`streams`). `_BY_HAND` has the exceptions.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lightagentd import api
from lightagentd.bus.connection import Call, Reply
from lightagentd.control.authz import Caller
from lightagentd.control.dbus import replies
from lightagentd.control.dbus.types import (
    check_members,
    from_bus,
    members_of,
    options_of,
    signature_of,
    to_bus,
)
from lightagentd.control.operations.service import Service
from lightagentd.control.outgoing import cleaned
from lightagentd.control.varlink.interfaces import INTERFACES

MANAGER = "org.lightagent1.Manager"
OPTIONS = "options"
"""The name of the argument that holds the optional parameters."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method. `required`, `optional` and `results` are names with their signatures."""

    interface: str
    name: str
    doc: str
    required: Mapping[str, str]
    optional: Mapping[str, str]
    results: Mapping[str, str]
    streaming: bool = False
    begins_at_once: bool = False
    """A stream whose first item comes at once, so that an error can be the answer to the call itself."""
    waits: bool = False
    """Whether it waits for something whose result is of no use once the caller has left: then it is ended."""
    members: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each parameter that is a list of objects: what an object has, with the signatures."""
    invoke: Callable[[Service, Caller, dict[str, Any]], Any]
    """Gives a coroutine with the result, or the generator of a stream."""

    @property
    def arguments(self) -> dict[str, str]:
        """What is passed, in order, with the signatures."""
        return {**self.required, **({OPTIONS: "a{sv}"} if self.optional else {})}

    @property
    def in_signature(self) -> str:
        return "".join(self.arguments.values())

    @property
    def out_signature(self) -> str:
        return "".join(self.results.values())

    @property
    def usage(self) -> str:
        """The method with the names and signatures of what it takes and gives, on one line."""
        given = ", ".join(f"{signature} {name}" for name, signature in self.arguments.items())
        gives = ", ".join(f"{signature} {name}" for name, signature in self.results.items())
        return f"{self.name}({given})" + (f" -> {gives}" if gives else "")

    def parse(self, call: Call) -> dict[str, Any] | Reply:
        """The arguments of a call by name, or the error for a wrong signature. Raises InvalidArgument."""
        if call.signature != self.in_signature:
            return replies.invalid_args(call, self.in_signature, self.usage)
        found = {
            name: from_bus(value, signature, name)
            for (name, signature), value in zip(self.required.items(), call.args, strict=False)
        }
        found |= options_of(self.optional, call.args[-1]) if self.optional else {}
        for name, members in self.members.items():
            if name in found:
                check_members(found[name], members, name)
        return found

    async def call(self, service: Service, caller: Caller, call: Call) -> Reply:
        """Answer a call of a method that does not stream. Raises LightagentError."""
        args = self.parse(call)
        if isinstance(args, Reply):
            return args
        result = await self.invoke(service, caller, args)
        if not self.results:
            return Reply()
        result = cleaned(service.redactor, self.interface, result)
        signature = self.out_signature
        return Reply(signature=signature, args=[to_bus(result, signature)])


@functools.cache
def methods() -> Mapping[tuple[str, str], Method]:
    """Every method of `/org/lightagent1` that the interfaces have, by interface and name."""
    found = [_method(cls, name) for cls in INTERFACES for name in _names(cls)]
    by_name = {(method.interface, method.name): method for method in found}
    for change in _BY_HAND:
        method = change(by_name)
        by_name[method.interface, method.name] = method
    return by_name


def _names(cls: type) -> Sequence[str]:
    """The methods of an interface in the order of its source."""
    seen = {name: None for base in reversed(cls.__mro__) for name in vars(base)}
    return [name for name in seen if hasattr(getattr(cls, name, None), "_varlink_signature")]


def _method(cls: type, name: str) -> Method:
    function: Any = getattr(cls, name)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = typing.get_type_hints(function.__wrapped__)
    result = hints["return"]
    result_name, *other_names = function._varlink_signature.return_type.as_type.__annotations__ or [""]
    streaming = bool(function._varlink_signature.more)
    assert streaming or not other_names
    item = typing.get_args(result)[0] if streaming else None

    def invoke(service: Service, caller: Caller, args: dict[str, Any]) -> Any:
        bound = getattr(cls(service, caller), name)
        if streaming:
            return _items(bound(**args), result_name, other_names)
        return _result(bound(**args), result_name)

    return Method(
        interface=str(getattr(cls, "name")),  # noqa: B009 - a class of any interface
        name=name,
        doc=inspect.cleandoc(function.__doc__ or ""),
        required={one.name: signature_of(hints[one.name]) for one in parameters if one.default is one.empty},
        optional={
            one.name: signature_of(hints[one.name]) for one in parameters if one.default is not one.empty
        },
        results={"stream": "o"} if streaming else {result_name: signature_of(result)} if result_name else {},
        streaming=streaming,
        begins_at_once=item is api.TurnEvent,
        members={one.name: found for one in parameters if (found := members_of(hints[one.name]))},
        invoke=invoke,
    )


async def _result(answering: Any, name: str) -> Any:
    return (await answering).parameters.get(name)


async def _items(
    answers: AsyncGenerator[Any, None], name: str, others: Sequence[str]
) -> AsyncGenerator[Any, None]:
    """What a stream yields: the value of its first result, or of another one below its name. A null at its
    end is left out.
    """
    async with aclosing(answers):
        async for answer in answers:
            item = answer.parameters[name]
            if item is not None:
                yield item
            for other in others:
                if (value := answer.parameters[other]) is not None:
                    yield {other: asdict(value)}
            if not answer.continues:
                return


def _ask(known: Mapping[tuple[str, str], Method]) -> Method:
    """`Manager.Ask` gives the text alone, as `busctl call` shows it best."""
    declared = known[MANAGER, "Ask"]

    async def text_of(service: Service, caller: Caller, args: dict[str, Any]) -> str:
        answer: api.Answer = await declared.invoke(service, caller, args)
        return answer.text

    doc = "Prompt an agent and wait for the text of the final answer; Prompt does not wait."
    return replace(declared, doc=doc, results={"text": "s"}, waits=True, invoke=text_of)


def _prompt(known: Mapping[tuple[str, str], Method]) -> Method:
    """`Manager.Prompt`: as `Sessions.Prompt`, for clients that think in objects."""
    declared = known["org.lightagent1.Sessions", "Prompt"]
    optional = {name: signature for name, signature in declared.optional.items() if name != "agent"}
    said = re.sub(r"^Prompt an agent and stream the turn\.\s*", "", declared.doc)
    doc = (
        "Prompt an agent. Gives the paths of the session and the turn at once; the turn then sends the "
        "signal org.lightagent1.Turn.Event to the caller alone, until one of the type done or error. " + said
    )
    return replace(
        declared,
        interface=MANAGER,
        doc=doc,
        required={"agent": "s", "text": "s"},
        optional=optional,
        results={"session": "o", "turn": "o"},
    )


def _test(known: Mapping[tuple[str, str], Method]) -> Method:
    """`Models.Test`, which ends with its caller: nobody pays for an answer that nobody reads."""
    return replace(known["org.lightagent1.Models", "Test"], waits=True)


_BY_HAND: tuple[Callable[[Mapping[tuple[str, str], Method]], Method], ...] = (_ask, _prompt, _test)
"""The methods that are not as their declaration has them."""
