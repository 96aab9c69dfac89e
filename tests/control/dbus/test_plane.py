"""The D-Bus plane: its methods are those of Varlink, its signatures are frozen, and each error is clear."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.bus.connection import Bus, Call, Reply, Variant, connect
from lightagentd.control.dbus.door import PlaneDoor
from lightagentd.control.dbus.methods import HANDLE, MANAGER, Method, methods
from lightagentd.control.dbus.types import to_bus
from lightagentd.control.varlink.interfaces import descriptions
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import DBUS_PREFIX
from lightagentd.events.audit.verification import verify
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from tests.agents.scripted import until
from tests.conftest import REPOSITORY
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.control.dbus.signatures import signatures
from tests.control.test_interfaces import METHOD, OUTSIDE
from tests.dbus_client import BusClient
from tests.other_user import OUTSIDERS_GID
from tests.raw_dbus import RawBus
from tests.scripted_model import Stream, say

NAME = "org.lightagent1"
ERROR = "org.freedesktop.DBus.Error."
NOBODY = 65534
FROZEN = REPOSITORY / "tests" / "data" / "dbus.txt"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

WRONG: dict[str, list[Variant]] = {
    "s": [Variant("x", 7), Variant("b", True), Variant("ay", b"x"), Variant("av", [])],
    "x": [Variant("s", "7"), Variant("b", True), Variant("d", 1.0), Variant("t", 1 << 63)],
    "d": [Variant("s", "7"), Variant("b", True), Variant("d", float("nan")), Variant("d", float("inf"))],
    "b": [Variant("s", "true"), Variant("x", 1)],
    "v": [Variant("ay", b"x"), Variant("d", float("nan"))],
    "as": [Variant("s", "x"), Variant("ax", [1]), Variant("av", [Variant("x", 1)])],
    "aa{sv}": [
        Variant("s", "x"),
        Variant("as", ["x"]),
        Variant("aa{sv}", [{"name": Variant("s", "a")}]),
        Variant("aa{sv}", [{"name": Variant("x", 1), "text": Variant("s", "t")}]),
    ],
}
NASTY: dict[str, list[Any]] = {
    "s": ["", "x" * 70_000, "../../etc/passwd", "-rf", "ü\n\x1b[2J", "no-such-thing", "💾\uffff"],
    "x": [-1, 0, (1 << 63) - 1, -(1 << 63)],
    "d": [-1.0, 0.0, 1e308],
    "v": [
        Variant("a{sv}", {}),
        Variant("s", "x"),
        Variant("av", []),
        Variant("ay", b"\xff"),
        Variant("a{xs}", {1: "x"}),
        Variant("d", float("nan")),
    ],
}


@pytest.fixture
async def bus(paths: Paths) -> AsyncIterator[tuple[Daemon, Bus]]:
    """A daemon on a private bus with the agent talker, and a connection of a client."""
    async with serving(paths, [say("the answer")]) as (daemon, address), connect(address) as client:
        yield daemon, client


async def answer(client: Bus, interface: str, member: str, *args: Any, signature: str = "") -> list[Any]:
    return await client.call(NAME, ROOT, interface, member, signature, args, 60.0)


def door_of(daemon: Daemon) -> PlaneDoor:
    assert daemon.dbus._door is not None
    return daemon.dbus._door


async def error_of(bus: Bus, *call: Any) -> tuple[str, str]:
    """Name and text of the error that a call gets: `path, interface, member, signature, arguments`."""
    address = bus._address
    path, interface, member, *rest = call

    def ask() -> tuple[str, str]:
        with RawBus(address) as raw:
            found = raw.call(path, interface, member, *rest)
            return str(found.error_name or ""), str(found.body[0]) if found.body else ""

    return await asyncio.to_thread(ask)


# What there is


def test_the_signatures_are_frozen() -> None:
    assert FROZEN.read_text() == signatures(), (
        "The public D-Bus interface has changed. If that is meant, run:\n    make generate"
    )


def test_both_planes_have_the_same_operations() -> None:
    varlink = {
        (file.removesuffix(".varlink"), method)
        for file, text in descriptions().items()
        for method, _ in METHOD.findall(text)
    }
    assert set(methods()) - varlink == {(MANAGER, "AskForAnswer"), (MANAGER, "Prompt")}
    answers = {("org.lightagent1.Approvals", name) for name in ("MakeAnswers", "AnswerFromAway")}
    of_the_gateway = {(MANAGER, "Authenticate"), ("org.lightagent1.Triggers", "Deliver"), *answers}
    assert varlink - set(methods()) == of_the_gateway, "which has a connection of its own"


def test_both_planes_take_the_same_parameters() -> None:
    names = {"s": "string", "x": "int", "d": "float", "b": "bool", "v": "object", "as": "[]string"}
    names |= {"aa{sv}": "[](name: string, text: string)"}
    for file, text in descriptions().items():
        for name, listed in METHOD.findall(text):
            pairs = (pair.split(": ", 1) for pair in OUTSIDE.split(listed) if pair)
            declared = dict(pairs)
            if (method := methods().get((file.removesuffix(".varlink"), name))) is None:
                continue
            given = {one: names[kind] for one, kind in method.required.items()}
            given |= {one: "?" + names[kind] for one, kind in method.optional.items() if one != HANDLE}
            assert (HANDLE in method.optional) is method.streaming
            assert given == declared, name


async def test_introspection_says_what_is_there_with_documentation(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    introspect = "org.freedesktop.DBus.Introspectable"
    [xml] = await answer(client, introspect, "Introspect")
    assert xml.count('<interface name="org.lightagent1.Manager">') == 1
    for method in methods().values():
        assert f'<method name="{method.name}">' in xml
    assert "Prompt an agent and wait for the text of the final answer" in xml
    assert "session (s), new (b), timeout_s (d)" in xml
    for path, child in (("/", "org"), ("/org", "lightagent1"), (ROOT, "streams"), (ROOT, "agents")):
        [xml] = await client.call(NAME, path, introspect, "Introspect")
        assert f'<node name="{child}"' in xml
    [same] = await client.call(NAME, ROOT, "org.freedesktop.DBus.Peer", "GetMachineId")
    assert len(same) == 32


@pytest.mark.skipif(shutil.which("gdbus") is None, reason="gdbus is not installed")
async def test_gdbus_introspects_and_calls(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    for argv, part in (
        (["introspect", "--recurse", "--object-path", "/"], "Ask(in  s agent"),
        (
            ["call", "--object-path", ROOT, "--method", f"{MANAGER}.Ask", "talker", "hi", "{}"],
            "('the answer',)",
        ),
    ):
        process = await asyncio.create_subprocess_exec(
            "gdbus", argv[0], "--address", client._address, "--dest", NAME, *argv[1:], stdout=-1, stderr=-2
        )
        said = (await process.communicate())[0].decode()
        assert part in said
        assert process.returncode == 0
    await asyncio.sleep(0)


# Calls


async def test_ask_gives_the_text_alone(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    found = await answer(client, MANAGER, "Ask", "talker", "hello", {}, signature="ssa{sv}")
    assert found == ["the answer"]


async def test_results_are_those_of_the_service(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    [status] = await answer(client, MANAGER, "GetStatus")
    assert status["pid"] == os.getpid()
    assert status["state"] == "running"
    assert "panic" not in status
    [agents] = await answer(client, f"{NAME}.Agents", "List")
    assert {agent["name"] for agent in agents} == {"ops", "talker"}
    [made] = await answer(
        client,
        f"{NAME}.Sessions",
        "Create",
        "talker",
        {"title": Variant("s", "mine")},
        signature="sa{sv}",
    )
    assert made["title"] == "mine"
    assert await answer(client, f"{NAME}.Sessions", "Cancel", made["id"], signature="s") == [0]
    assert await answer(client, f"{NAME}.Agents", "Stop", "talker", signature="s")
    assert daemon.registry.get("talker").state == "stopped"


async def test_json_goes_both_ways(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    args = Variant("a{sv}", {"path": Variant("s", "/etc/motd"), "content": Variant("s", "x")})
    call = ("talker", "file", "write", args, {"tainted": Variant("b", True)})
    [found] = await answer(client, f"{NAME}.Policy", "Explain", *call, signature="sssva{sv}")
    assert found["decision"] in ("ask", "deny")
    [tool] = await answer(client, f"{NAME}.Tools", "Get", "systemd", signature="s")
    assert tool["actions"][0]["schema"]["type"] == "object"


async def test_a_member_without_an_interface_is_found_when_it_is_the_only_one(
    bus: tuple[Daemon, Bus],
) -> None:
    _, client = bus
    assert (await error_of(client, ROOT, "", "GetStatus"))[0] == ""
    name, text = await error_of(client, ROOT, "", "List")
    assert (name, "List" in text) == (ERROR + "UnknownMethod", True)


async def test_unknown_things_have_the_standard_errors(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    for path, interface, member, expected in (
        (ROOT, MANAGER, "Nope", "UnknownMethod"),
        (ROOT, "org.example.Nope", "Nope", "UnknownInterface"),
        ("/", MANAGER, "GetStatus", "UnknownInterface"),
        ("/org/nope", MANAGER, "GetStatus", "UnknownObject"),
        (f"{ROOT}/streams/1", f"{NAME}.Stream", "Close", "UnknownObject"),
        (f"{ROOT}/agents/nobody", f"{NAME}.Agent", "Start", "UnknownObject"),
        (f"{ROOT}x", "org.freedesktop.DBus.Introspectable", "Introspect", "UnknownObject"),
    ):
        name, text = await error_of(client, path, interface, member)
        assert name == ERROR + expected, (path, interface, member)
        assert text.endswith(".")


async def test_a_wrong_signature_is_answered_with_the_right_one(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    for method in methods().values():
        name, text = await error_of(client, ROOT, method.interface, method.name, "(yy)", [[1, 2]])
        assert name == ERROR + "InvalidArgs"
        assert f"'{method.in_signature}'" in text
        assert method.usage in text


async def test_errors_have_their_names_and_say_what_to_do(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    name, text = await error_of(client, ROOT, f"{NAME}.Sessions", "Get", "s", ["ses_0123456789abcdef"])
    assert name == DBUS_PREFIX + "SessionNotFound"
    assert text == "There is no session 'ses_0123456789abcdef'. Run: lactl sessions list"


def a_call(method: Method, parameter: str, value: Any) -> list[Any]:
    """Arguments that name nothing, with one of them set to a value."""
    blank: dict[str, Any] = {"s": "", "x": 1, "d": 1.0, "b": False, "v": Variant("a{sv}", {}), "as": []}
    args = [value if name == parameter else blank[kind] for name, kind in method.required.items()]
    if method.optional:
        options = {"follow": Variant("b", False)} if "follow" in method.optional else {}
        kind = method.optional.get(parameter)
        if kind is not None:
            options[parameter] = value if isinstance(value, Variant) else Variant(kind, value)
        args.append(options)
    return args


async def test_an_option_of_the_wrong_type_is_named(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    tried = 0
    for method in methods().values():
        for name, kind in method.optional.items():
            for value in WRONG[kind]:
                call = (method.interface, method.name, method.in_signature, a_call(method, name, value))
                error, text = await error_of(client, ROOT, *call)
                assert error == DBUS_PREFIX + "InvalidArgument", call
                assert text.startswith(
                    (f"{name} must be", f"{name}.", f"An object in {name} ", f"{name} holds ")
                ), text
                tried += 1
        if method.optional:
            args = [*a_call(method, "", "")[:-1], {"nonsense": Variant("s", "")}]
            error, text = await error_of(
                client, ROOT, method.interface, method.name, method.in_signature, args
            )
            assert error == DBUS_PREFIX + "InvalidArgument"
            assert "'nonsense'" in text
    assert tried > 80


async def test_a_nasty_value_of_the_right_type_is_never_an_internal_error(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    for method in methods().values():
        for name, kind in {**method.required, **method.optional}.items():
            for value in NASTY.get(kind, []):
                call = (method.interface, method.name, method.in_signature, a_call(method, name, value))
                error, text = await error_of(client, ROOT, *call)
                assert error not in (DBUS_PREFIX + "Internal", DBUS_PREFIX + "StorageFailed"), (call, text)
                assert not error.startswith(ERROR), (call, error, text)
                if daemon.panic.on:
                    await answer(client, MANAGER, "EndPanic")
    assert await answer(client, MANAGER, "GetStatus")
    assert verify(daemon.history.environment).ok


async def test_what_the_bus_would_hang_up_for_is_not_sent(bus: tuple[Daemon, Bus]) -> None:
    """NUL, half a surrogate pair, deep JSON, an integer of any size: tools, models and clients make them."""
    _, client = bus
    deep: Any = 1 << 70
    for _ in range(90):
        deep = [deep]

    async def odd(call: Call) -> Reply:
        value = {"a\0": "b\0\ud800", "deep": deep, "int": 1 << 70, "none": None, "list": [None]}
        return Reply(signature="a{sv}", args=[to_bus(value, "a{sv}")])

    async with connect(client._address) as server:
        server.serve(odd)
        [found] = await client.call(server.unique_name, "/", "org.example.T", "Odd")
    assert found["a\ufffd"] == "b\ufffd\ufffd"
    assert found["int"] == str(1 << 70)
    assert "none" not in found
    name, text = await error_of(client, ROOT, f"{NAME}.Agents", "Get", "s", ["\ufdd0" * 3])
    assert name == DBUS_PREFIX + "AgentNotFound", text


async def test_an_answer_that_is_too_large_is_an_error_and_the_connection_stays(
    bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = bus
    monkeypatch.setattr("lightagentd.bus.messages.MAX_MESSAGE_BYTES", 2000)
    name, text = await error_of(client, ROOT, f"{NAME}.Tools", "List")
    assert name == DBUS_PREFIX + "MessageTooLarge"
    assert "smaller limit" in text
    assert (await error_of(client, ROOT, MANAGER, "GetStatus"))[0] == ""


async def test_a_failure_inside_shows_no_traceback(
    bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, client = bus

    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(daemon.service.manager, "status", broken)
    name, text = await error_of(client, ROOT, MANAGER, "GetStatus")
    assert name == DBUS_PREFIX + "Internal"
    assert "secret" not in text


# Who calls


@needs_root
async def test_the_caller_is_who_the_bus_says(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    async with BusClient(client._address, NOBODY) as nobody:
        assert (await nobody.call(ROOT, f"{MANAGER}.GetStatus"))[0]["sessions"] == 0
        refused = (await nobody.call(ROOT, f"{MANAGER}.Reload"))["error"]
        assert refused[0] == DBUS_PREFIX + "PermissionDenied"
        assert called(NOBODY) in refused[1]
        assert daemon.dbus._peers is not None
        [peer] = daemon.dbus._peers.of_uid(NOBODY)
        assert (peer.caller.gid, peer.caller.groups) == (OUTSIDERS_GID, frozenset({OUTSIDERS_GID}))
        assert peer.caller.pid == nobody.pid
        assert peer.caller.bus_name == peer.name
    await until(lambda: daemon.dbus._peers and not daemon.dbus._peers.of_uid(NOBODY))


@needs_root
async def test_another_users_session_does_not_exist(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    [made] = await answer(client, f"{NAME}.Sessions", "Create", "talker", {}, signature="sa{sv}")
    async with BusClient(client._address, NOBODY) as nobody:
        taken = await nobody.call(ROOT, f"{NAME}.Sessions.Get", "s", made["id"])
        free = await nobody.call(ROOT, f"{NAME}.Sessions.Get", "s", "ses_0123456789abcdef")
        assert taken["error"][0] == DBUS_PREFIX + "SessionNotFound"
        assert str(taken).replace(made["id"], "ses_0123456789abcdef") == str(free)


@needs_root
async def test_one_user_cannot_take_all_calls_and_who_leaves_gives_them_back(paths: Paths) -> None:
    one_call = "[limits.owner]\ncalls = 1\n"
    async with (
        serving(paths, [Stream(pieces=[], hang=True)], toml=one_call) as (daemon, address),
        BusClient(address, NOBODY) as first,
        BusClient(address, NOBODY) as second,
    ):
        asking = asyncio.create_task(first.call(ROOT, f"{MANAGER}.Ask", "ssa{sv}", "talker", "hello", {}))
        await until(lambda: door_of(daemon).calls[NOBODY])
        refused = await second.call(ROOT, f"{MANAGER}.GetStatus")
        assert refused["error"][0] == DBUS_PREFIX + "LimitExceeded"
        async with connect(address) as root:
            while (await answer(root, MANAGER, "GetStatus"))[0]["turns_running"] != 1:
                await asyncio.sleep(0.01)  # its prompt is stored before its turn runs
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(ValueError, match="Expecting value"):
            await asking
        await until(lambda: not door_of(daemon).calls[NOBODY])
        [status] = await second.call(ROOT, f"{MANAGER}.GetStatus")
        assert status["turns_running"] == 1, "the turn went on"
