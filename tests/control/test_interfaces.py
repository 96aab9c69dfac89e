"""The Varlink interfaces: their descriptions are frozen, and no parameter can be wrong without an error."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from lightagentd.control.varlink.interfaces import INTERFACES, descriptions, with_valid_names
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.audit.verification import verify
from tests.raw_varlink import Raw, code

FROZEN = Path(__file__).resolve().parents[2] / "packaging" / "varlink"
METHOD = re.compile(r"^method (\w+)\((.*?)\) -> ", re.MULTILINE)
OUTSIDE = re.compile(r", (?![^(]*\))")
"""Between two parameters, and not between the fields of one."""
STREAMS = {
    *("Sessions.Prompt", "Sessions.Watch", "Events.Subscribe", "Tools.Call", "Policy.Replay", "Undo.Run"),
    "Policy.ReplayTexts",
    *("Triggers.Run", "Triggers.Follow", "Flows.Follow", "Sessions.Replay"),
}

WRONG: dict[str, list[object]] = {
    "string": [7, True, 1.5, [], {}],
    "int": ["7", True, 1.5, [], {}, 1 << 63],
    "float": ["7", True, [], {}],
    "bool": ["true", 1, 0.0, [], {}],
    "[]string": ["x", 7, {}, [7]],
}
NASTY: dict[str, list[object]] = {
    "string": ["", "\0", "x" * 70_000, "../../etc/passwd", "-rf", "ü\n\x1b[2J", "no-such-thing", "💾"],
    "int": [-1, 0, (1 << 63) - 1, -(1 << 63) + 1],
    "float": [-1.0, 0, 1e308],
    "object": [7, "x", [], None, True],
    "[]string": [[""], ["x", "x"], ["\0"] * 1000],
}


@functools.cache
def parameters_by_method() -> dict[str, dict[str, str]]:
    """`Interface.Method` → parameter → type, from the descriptions themselves."""
    found: dict[str, dict[str, str]] = {}
    for file, text in descriptions().items():
        interface = file.removesuffix(".varlink").rpartition(".")[2]
        for method, listed in METHOD.findall(text):
            pairs = (pair.split(": ", 1) for pair in OUTSIDE.split(listed) if pair)
            found[f"{interface}.{method}"] = dict(pairs)
    return found


def a_call(method: str, parameter: str, value: object) -> dict[str, Any]:
    """Parameters that name nothing, with one of them set to a value."""
    plain = {"string": "", "int": 1, "float": 1.0, "bool": False, "object": {}, "[]string": []}
    given: dict[str, Any] = {
        name: plain[kind] for name, kind in parameters_by_method()[method].items() if not kind.startswith("?")
    }
    if method == "Events.Subscribe":
        given["follow"] = False
    return given | {parameter: value}


async def last_reply(raw: Raw, method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method not in STREAMS:
        return await raw.call(method, **given)
    replies = [reply async for reply in raw.stream(method, **given)]
    return replies[-1]


def test_the_interface_descriptions_are_frozen() -> None:
    frozen = {path.name: path.read_text() for path in FROZEN.glob("*.varlink")}
    assert frozen == descriptions(), (
        "The public Varlink interface has changed. If that is meant, run:\n    make generate"
    )


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("type A (b: int)\n# A: again\nmethod B(b: A) -> (c_d: int, e2: []string)", ""),
        ("type Export (a: int)\nmethod Export() -> ()", "Export"),
        ("type A (a: int)\nerror A (a: int)", "A"),
        ("method list() -> ()", "list"),
        ("type A (b: int, _c: int)", "_c"),
        ("method A(b__c: int) -> ()", "b__c"),
        ("method A(b: (c_: int)) -> ()", "c_"),
    ],
)
def test_a_name_that_varlink_refuses_is_found(lines: str, wrong: str) -> None:
    text = f"interface org.example.Names\n\n{lines}\n"
    if not wrong:
        assert with_valid_names(text) == text
        return
    with pytest.raises(ValueError, match=f"Names has .* names: {wrong}$"):
        with_valid_names(text)


def test_the_descriptions_were_understood() -> None:
    found = parameters_by_method()
    assert len(found) == sum(text.count("\nmethod ") for text in descriptions().values())
    assert found["Sessions.Prompt"]["text"] == "string"
    assert found.keys() > STREAMS


async def test_the_daemon_describes_itself(daemon: Daemon) -> None:
    async with Raw(daemon.paths.socket) as raw:
        info = (await raw.call("org.varlink.service.GetInfo"))["parameters"]
        assert info["product"] == "lightagentd"
        assert info["interfaces"] == sorted(
            ["org.lightagent1", "org.varlink.service", *(interface.name for interface in INTERFACES)]
        )
        for file, text in descriptions().items():
            described = await raw.call(
                "org.varlink.service.GetInterfaceDescription", interface=file.removesuffix(".varlink")
            )
            assert described["parameters"]["description"] == text
        unknown = await raw.call("org.varlink.service.GetInterfaceDescription", interface="org.example.No")
        assert unknown["error"] == "org.varlink.service.InterfaceNotFound"


async def test_a_value_of_the_wrong_type_names_the_parameter(daemon: Daemon) -> None:
    tried = 0
    async with Raw(daemon.paths.socket) as raw:
        for method, parameters in parameters_by_method().items():
            for name, kind in parameters.items():
                wrong = [*WRONG.get(kind.removeprefix("?"), [])]
                if not kind.startswith("?") and kind != "object":
                    wrong.append(None)
                for value in wrong:
                    reply = await last_reply(raw, method, a_call(method, name, value))
                    expected = {
                        "error": "org.varlink.service.InvalidParameter",
                        "parameters": {"parameter": name},
                    }
                    assert reply == expected, (method, name, value)
                    tried += 1
    assert tried > 150
    assert verify(daemon.history.environment).ok


async def test_a_missing_or_unknown_parameter_is_named(daemon: Daemon) -> None:
    async with Raw(daemon.paths.socket) as raw:
        for method, parameters in parameters_by_method().items():
            reply = await last_reply(raw, method, a_call(method, "nonsense", 1))
            assert reply["parameters"] == {"parameter": "nonsense"}, method
            for name in (name for name, kind in parameters.items() if not kind.startswith("?")):
                given = a_call(method, name, "")
                del given[name]
                reply = await last_reply(raw, method, given)
                assert reply["parameters"] == {"parameter": name}, method


async def test_a_nasty_value_of_the_right_type_is_never_an_internal_error(daemon: Daemon) -> None:
    async with Raw(daemon.paths.socket) as raw:
        for method, parameters in parameters_by_method().items():
            for name, kind in parameters.items():
                for value in NASTY.get(kind.removeprefix("?"), []):
                    reply = await last_reply(raw, method, a_call(method, name, value))
                    got = code(reply)
                    assert got not in ("internal", "storage_failed"), (method, name, str(value)[:50], reply)
                    if got.islower() and got != "ok":
                        assert reply["parameters"]["message"].endswith("."), reply
                    if daemon.panic.on:  # or everything after it would only be refused
                        assert code(await raw.call("Manager.EndPanic")) == "ok"
        assert code(await raw.call("Manager.GetStatus")) == "ok"
    assert verify(daemon.history.environment).ok


async def test_a_streaming_method_asks_for_more(daemon: Daemon) -> None:
    async with Raw(daemon.paths.socket) as raw:
        for method in STREAMS:
            given = {name: 1 if name == "from_seq" else "x" for name in [*parameters_by_method()[method]][:1]}
            reply = await raw.call(method, **given)
            assert reply == {"error": "org.varlink.service.ExpectedMore"}
