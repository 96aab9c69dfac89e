"""How operations are declared, and how the records become what callers get."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from lightagentd.control.authz import Caller
from lightagentd.control.operations.declared import Method, Operations, method, methods_of, stream
from lightagentd.control.presentation import shown
from lightagentd.events.filter import Filter

CALLER = Caller(uid=1, gid=1, pid=1)


class Things(Operations, interface="org.example.Things"):
    """Things."""

    @method("List", returns="things", first="limit topic")
    async def listed(
        self, caller: Caller, wanted: Filter, limit: int = 7, *, all_: bool = False
    ) -> list[Any]:
        """All
        of them.
        """
        return [caller, wanted, limit, all_]

    @method("Drop", interface="org.example.Manager")
    async def drop(self, caller: Caller, thing: str) -> None:
        """Drop one."""

    @stream("Watch", returns="thing")
    async def watch(self, caller: Caller) -> AsyncGenerator[str, None]:
        """See them come."""
        yield str(caller.uid)

    async def unmarked(self, caller: Caller) -> None:
        """No method."""


def declared(name: str) -> Method:
    return next(one for one in methods_of(Things) if one.mark.name == name)


def test_what_is_on_the_wire_comes_from_the_signature() -> None:
    assert [one.mark.name for one in methods_of(Things)] == ["List", "Drop", "Watch"]
    listed, drop, watch = methods_of(Things)
    assert (listed.interface, drop.interface) == ("org.example.Things", "org.example.Manager")
    assert listed.doc == "All\nof them."
    names = [one.name for one in listed.parameters]
    assert names[:4] == ["limit", "topic", "agent", "session"]
    assert names[-2:] == ["until_us", "all"]
    assert not {"viewer", "agents", "all_", "wanted", "caller_"} & {*names}
    assert not any(one.required for one in listed.parameters)
    assert [(one.name, one.annotation, one.required) for one in drop.parameters] == [("thing", str, True)]
    assert drop.result is None
    assert watch.result == str | None, "a stream without a last item ends with a null"


async def test_a_parameter_that_is_null_or_left_out_has_its_default() -> None:
    given = {"topic": "agent.error", "caller": 0, "agent": None, "limit": None, "all": True}
    caller, wanted, limit, every = await declared("List").call(Things(), CALLER, given)
    assert caller is CALLER
    assert wanted == Filter(topic="agent.error", caller=0)
    assert (limit, every) == (7, True)
    assert (await declared("List").call(Things(), CALLER, {}))[1] == Filter()
    with pytest.raises(TypeError):
        await declared("Drop").call(Things(), CALLER, {})


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Record:
    name: str
    colour: Colour
    tags: tuple[str, ...]
    secret: str


@dataclass(frozen=True, kw_only=True)
class Info:
    name: str
    colour: str
    tags: list[str]
    size: int


def test_a_record_is_shown_field_by_field() -> None:
    record = Record(name="n", colour=Colour.RED, tags=("a", "b"), secret="s")
    info = shown(Info, record, size=3)
    assert info == Info(name="n", colour="red", tags=["a", "b"], size=3)
    assert type(info.colour) is str
    assert shown(Info, record, size=3, name="other").name == "other"
    with pytest.raises(AttributeError, match="size"):
        shown(Info, record)
