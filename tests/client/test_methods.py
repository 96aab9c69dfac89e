"""The typed methods of the client library: each calls its method, and replies are as the types say."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, assert_type

import pytest

from lightagentd.client import methods
from lightagentd.client.aio import AsyncClient
from lightagentd.client.blocking import STREAMS, Client
from lightagentd.control.operations.service import INTERFACES
from lightagentd.daemon.daemon import Daemon
from tests.scripted_daemon import ScriptedDaemon

DECLARED = {
    f"{interface.name.rpartition('.')[2]}.{one.mark.name}": one
    for interface in INTERFACES
    for one in interface.methods
}


REFUSED = ("Manager.Panic", "Manager.EndPanic", "Models.Test", "Manager.Diagnose", "Manager.Authenticate")
"""Stop everything, or need a model or a token."""


class Recorder(Client):
    """Says what would be called."""

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        return {"call": method, **parameters}

    def stream(self, method: str, /, **parameters: Any) -> Any:
        return {"stream": method, **parameters}


def names(cls: type) -> list[str]:
    return [name for name in vars(cls) if not name.startswith("_")]


def test_each_name_calls_its_method() -> None:
    recorder = Recorder("/nowhere")
    called = [getattr(recorder, name)(x=1) for name in names(methods.Methods)]
    assert called == [
        {"stream" if one.mark.streams else "call": name, "x": 1} for name, one in DECLARED.items()
    ]
    assert {name for name, one in DECLARED.items() if one.mark.streams} == STREAMS
    assert names(methods.AsyncMethods) == names(methods.Methods)
    for nothing in ("_private_name", "list", "__deepcopy__"):
        with pytest.raises(AttributeError, match=nothing):
            getattr(recorder, nothing)


def test_a_type_checker_knows_the_replies(tmp_path: Path) -> None:
    server = ScriptedDaemon(tmp_path / "control.sock")
    server.start()
    server.answer("Sessions.List", {"sessions": [{"id": "ses_1"}]})
    with Client(server.path) as client:
        found = assert_type(client.sessions_list(agent="ops")["sessions"][0]["id"], str)
    server.stop()
    assert (found, server.parameters("Sessions.List")) == ("ses_1", {"agent": "ops"})


def differences(value: Any, kind: Any, where: str) -> list[str]:
    """Where a value of the wire is not as its type says."""
    if typing.is_typeddict(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        found = [
            f"{where}: {name}"
            for name in (value.keys() - hints.keys()) | (kind.__required_keys__ - value.keys())
        ]
        return found + [
            one
            for name in value.keys() & hints.keys()
            for one in differences(value[name], hints[name], f"{where}.{name}")
        ]
    if typing.get_origin(kind) is list:
        return [one for each in value for one in differences(each, typing.get_args(kind)[0], f"{where}[]")]
    if args := typing.get_args(kind):
        tried = [differences(value, one, where) for one in args]
        return min(tried, key=len)
    if typing.is_typeddict(kind):
        return [f"{where}: {value!r}"]
    right = kind is Any or isinstance(value, kind) or (kind is float and isinstance(value, int))
    return [] if right else [f"{where}: {value!r}"]


async def test_the_replies_of_a_daemon_are_as_the_types_say(daemon: Daemon) -> None:
    async with AsyncClient(daemon.paths.socket) as client:
        answer = await client.manager_ask(agent="ops", text="check memory")
        session, wrong, asked = answer["answer"]["session"], [], 0
        given: dict[str, dict[str, Any]] = {
            "usage_get": {"scope": "session"},
            "sessions_wait": {"session": session},
        }
        for name in ("get", "messages", "export", "fork", "pause", "resume", "switch"):
            given[f"sessions_{name}"] = {"session": session}
        given |= {
            "tools_select": {"prompt": "x"},
            "plans_get": {"session": session},
            "skills_get": {"name": "disk-check"},
        }
        given |= {"agents_get": {"name": "ops"}, "tools_get": {"name": "file"}}
        for (method, declared), name in zip(DECLARED.items(), names(methods.Methods), strict=True):
            needs = any(one.required for one in declared.parameters)
            if (needs and name not in given) or declared.mark.streams or method in REFUSED:
                continue
            reply = await getattr(client, name)(**given.get(name, {}))
            kind = typing.get_type_hints(getattr(methods.Methods, name))["return"]
            wrong += differences(reply, kind, method) if typing.is_typeddict(kind) else []
            asked += 1
        async for event in client.sessions_prompt(agent="ops", text="check memory"):
            assert_type(event["event"]["type"], str)
            wrong += differences(event, methods.EventReply, "Sessions.Prompt")
        assert wrong == []
        assert asked >= 35
