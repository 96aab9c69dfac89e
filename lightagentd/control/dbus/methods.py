"""The methods of the D-Bus plane, derived from the Varlink interfaces so that the two never differ.

A method has the same interface and name as in Varlink, on the object `/org/lightagent1`. Required parameters
keep their order; optional ones are passed by name in one `a{sv}` at the end. A method that streams returns
the path of a stream (`streams`), which its option `handle_token` chooses. `_BY_HAND` lists the exceptions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncGenerator, Callable, Mapping
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
from lightagentd.control.operations.declared import Method as Declared
from lightagentd.control.operations.service import INTERFACES, Service
from lightagentd.control.outgoing import cleaned

MANAGER = "org.lightagent1.Manager"
HANDLE = "handle_token"
"""The option of a method that streams by which the caller chooses the path that the signals come from."""
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
        """The arguments in order, with their signatures."""
        return {**self.required, **({OPTIONS: "a{sv}"} if self.optional else {})}

    @property
    def in_signature(self) -> str:
        return "".join(self.arguments.values())

    @property
    def in_signatures(self) -> tuple[str, ...]:
        """What a call may have; that of a stream also no options: some had only a handle_token once."""
        without = "".join(self.required.values())
        return (self.in_signature, without) if HANDLE in self.optional else (self.in_signature,)

    @property
    def out_signature(self) -> str:
        return "".join(self.results.values())

    @property
    def usage(self) -> str:
        """The method with its parameters, results and their signatures, on one line."""
        given = ", ".join(f"{signature} {name}" for name, signature in self.arguments.items())
        gives = ", ".join(f"{signature} {name}" for name, signature in self.results.items())
        return f"{self.name}({given})" + (f" -> {gives}" if gives else "")

    def parse(self, call: Call) -> dict[str, Any] | Reply:
        """The arguments of a call by name, or the error for a wrong signature. Raises InvalidArgument."""
        if call.signature not in self.in_signatures:
            return replies.invalid_args(call, self.in_signature, self.usage)
        found = {
            name: from_bus(value, signature, name)
            for (name, signature), value in zip(self.required.items(), call.args, strict=False)
        }
        if len(call.args) > len(self.required):
            found |= options_of(self.optional, call.args[-1])
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
    """Every method of `/org/lightagent1`, by interface and name."""
    found = [_method(one) for each in INTERFACES for one in each.methods if one.mark.over_bus]
    by_name = {(method.interface, method.name): method for method in found}
    for change in _BY_HAND:
        method = change(by_name)
        by_name[method.interface, method.name] = method
    return by_name


def _method(declared: Declared) -> Method:
    mark, result = declared.mark, declared.result
    results = {mark.returns: signature_of(result)} if mark.returns else {}

    def invoke(service: Service, caller: Caller, args: dict[str, Any]) -> Any:
        called = declared.call(service.of(declared.operations), caller, args)
        return _items(called, declared) if mark.streams else called

    return Method(
        interface=declared.interface,
        name=mark.name,
        doc=declared.doc,
        required={one.name: signature_of(one.annotation) for one in declared.parameters if one.required},
        optional={one.name: signature_of(one.annotation) for one in declared.parameters if not one.required}
        | ({HANDLE: "s"} if mark.streams else {}),
        results={"stream": "o"} if mark.streams else results,
        streaming=mark.streams,
        begins_at_once=result == api.TurnEvent,
        members={one.name: found for one in declared.parameters if (found := members_of(one.annotation))},
        invoke=invoke,
    )


async def _items(items: AsyncGenerator[Any, None], declared: Declared) -> AsyncGenerator[Any, None]:
    """What a stream yields. Of items that are objects with names of their own the value of the first name,
    or that of another one below its name.
    """
    first = "" if declared.mark.returns else next(iter(declared.mark.end))
    async with aclosing(items):
        async for item in items:
            if not first:
                yield item
            elif item[first] is not None:
                yield item[first]
            else:
                yield {name: asdict(value) for name, value in item.items() if value is not None}
            if declared.mark.is_last is not None and declared.mark.is_last(item):
                return


def _ask(known: Mapping[tuple[str, str], Method]) -> Method:
    """`Manager.Ask` gives the text alone, as `busctl call` shows it best."""
    declared = known[MANAGER, "Ask"]

    async def text_of(service: Service, caller: Caller, args: dict[str, Any]) -> str:
        answer: api.Answer = await declared.invoke(service, caller, args)
        return answer.text

    doc = "Prompt an agent and wait for the text of the final answer; Prompt does not wait."
    return replace(declared, doc=doc, results={"text": "s"}, waits=True, invoke=text_of)


def _ask_for_answer(known: Mapping[tuple[str, str], Method]) -> Method:
    """`Manager.AskForAnswer`: as `Manager.Ask` in Varlink, whose name has the text alone here."""
    declared = known[MANAGER, "Ask"]
    doc = "As Ask, with all that it tells: text, data, usage, calls, finish_reason, session, trace_id."
    return replace(declared, name="AskForAnswer", doc=doc, waits=True)


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


_BY_HAND: tuple[Callable[[Mapping[tuple[str, str], Method]], Method], ...] = (
    _ask_for_answer,
    _ask,
    _prompt,
    _test,
)
"""The methods that are not as their declaration has them."""
