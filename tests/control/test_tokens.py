"""Tokens: what each lets a connection do, of all that the daemon can do, and what nobody can forge."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.control.authz import Authority, Caller, GroupRule
from lightagentd.control.grants import GATEWAY_USER, Grant
from lightagentd.control.tokens import TOLD_MOST
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import PermissionDenied
from lightagentd.events.queries import Filter
from lightagentd.host import users
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from lightagentd.redaction.redactor import Redactor
from tests.agents.scripted import Scripted
from tests.control.caring import caring
from tests.control.test_interfaces import STREAMS, parameters_by_method
from tests.other_user import OUTSIDERS_GID
from tests.raw_varlink import Raw, code

MARK = "marmot-4711"
ALL = ["inspect", "prompt", "approve"]
OWNERS = sorted(one.pw_uid for one in pwd.getpwall() if one.pw_gid == OUTSIDERS_GID and one.pw_uid)[:2]
"""Two users whom the tests' daemons let inspect and prompt."""
needs_owners = pytest.mark.skipif(len(OWNERS) < 2 or os.geteuid() != 0, reason="only root makes others' tokens")
PLAIN = {"string": "none-such", "int": 1, "float": 1.0, "bool": False, "object": {}, "[]string": []}


@pytest.fixture
async def test(paths: Paths) -> AsyncIterator[Scripted]:
    async with caring(paths) as running:
        yield running


async def made(daemon: Daemon, name: str, *, scopes: list[str] = ALL, **more: Any) -> str:
    """The text of a new token."""
    async with Raw(daemon.paths.socket) as raw:
        reply = await raw.call("Tokens.Create", name=name, scopes=scopes, **more)
        assert code(reply) == "ok", reply
        return str(reply["parameters"]["created"]["secret"])


def speaking(daemon: Daemon) -> Raw:
    return Raw(daemon.paths.socket)


async def authenticate(raw: Raw, token: str) -> dict[str, Any]:
    return await raw.call("Manager.Authenticate", token=token)


async def answer(raw: Raw, method: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """All replies."""
    if method not in STREAMS:
        return [await raw.call(method, **given)]
    return [reply async for reply in raw.stream(method, **given)]


def plain(method: str, known: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """Parameters for a call: what is known by the name of a parameter, and else what names nothing."""
    kinds = parameters_by_method()[method]
    given = {
        name: known.get(name, PLAIN.get(kind.removeprefix("?")))
        for name, kind in kinds.items()
        if not kind.startswith("?") or (whole and name in known)
    }
    return given | ({"follow": False} if method == "Events.Subscribe" else {})


NEEDS = {
    "inspect": """""",
    "prompt": """""",
    "approve": """""",
}
"""Which scope each operation needs. No token lets a connection do any other."""


async def test_each_scope_lets_a_connection_do_its_operations_and_no_other(test: Scripted) -> None:
    """With root's token, who may do all of it without one."""
    found: dict[str, set[str]] = {scope: set() for scope in ALL}
    for scope in ALL:
        token = await made(test.daemon, scope, scopes=[scope])
        async with speaking(test.daemon) as raw:
            assert code(await authenticate(raw, token)) == "ok"
            for method in parameters_by_method():
                import time; t=time.time()
                last = (await answer(raw, method, plain(method, {}, whole=False)))[-1]
                if time.time()-t>0.05: print(scope, method, time.time()-t, last)
                if code(last) not in ("permission_denied", "conflict"):
                    found[scope].add(method)
    print({scope: " ".join(sorted(methods)) for scope, methods in found.items()})
    assert found == {scope: set(names.split()) for scope, names in NEEDS.items()}
