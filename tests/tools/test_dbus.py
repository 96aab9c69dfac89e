"""The tool dbus against a real, private bus with a small service that `bus.connection` exports."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.bus.connection import Call as BusCall
from lightagentd.bus.connection import Reply, Variant, connect
from lightagentd.tool import Effect
from lightagentd.worker import busproxy
from lightagentd.worker.calls import run_action
from lightagentd.worker.local_bus import BusProxy
from tests.conftest import write
from tests.fake_systemd import private_bus
from tests.tools.conftest import AskPreview, Call, CallContext, Load

pytestmark = pytest.mark.usefixtures("nothing_left")
SERVICE = "org.example.Shop"
INTERFACE = "org.example.Shop1"
ITEM = {"service": SERVICE, "path": "/org/example/shop"}
XML = """<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
<node>
 <interface name="org.example.Shop1">
  <method name="Buy"><arg name="what" type="s"/><arg name="how" type="a{sv}" direction="in"/>
   <arg name="receipt" type="u" direction="out"/></method>
  <property name="Open" type="b" access="read"/>
  <signal name="Sold"><arg name="what" type="s"/></signal>
 </interface>
 <interface name="org.example.Other1"><method name="Stop"/></interface>
 <node name="apples"><interface name="org.example.Hidden1"/></node>
 <node name="pears"/>
</node>"""
PROPERTIES = {
    "Name": Variant("s", "corner\u202e\x1b shop"),
    "Open": Variant("b", True),
    "Seal": Variant("ay", b"\xff\x00"),
    "Prices": Variant("a{uv}", {7: Variant("d", 1.5), 8: Variant("as", ["a", "b"])}),
    "Odd": Variant("d", float("nan")),
}


class Shop:
    """Answers introspection, properties and any other method with its own arguments."""

    def __init__(self) -> None:
        self.calls: list[BusCall] = []
        self.xml = XML
        self.properties = dict(PROPERTIES)
        self.errors = {
            "Fail": "org.example.Error.SoldOut",
            "Refuse": "org.freedesktop.DBus.Error.AccessDenied",
        }
        """Methods that answer with an error."""

    async def answer(self, call: BusCall) -> Reply:
        self.calls.append(call)
        if call.member in self.errors:
            return Reply(error=self.errors[call.member], args=["There are no apples for you."])
        match call.member:
            case "Introspect":
                return Reply(signature="s", args=[self.xml])
            case "GetAll":
                return Reply(signature="a{sv}", args=[self.properties])
            case "Get":
                if call.args[1] not in self.properties:
                    text = f"No property {call.args[1]}."
                    return Reply(error="org.freedesktop.DBus.Error.UnknownProperty", args=[text])
                return Reply(signature="v", args=[self.properties[call.args[1]]])
            case "Nothing":
                return Reply()
        return Reply(signature="ss", args=[call.signature, repr(call.args)])


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A private bus that the tool takes for the system bus; there is no session bus."""
    with private_bus() as found:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", found)
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={tmp_path}/none")
        yield found


@contextlib.asynccontextmanager
async def shop(address: str) -> AsyncIterator[Shop]:
    async with connect(address) as bus:
        made = Shop()
        bus.serve(made.answer)
        await bus.request_name(SERVICE)
        yield made


async def echoed(call: Call, signature: str, *args: Any) -> list[str]:
    """The signature and the arguments as they arrived at the service."""
    result = await call(
        "dbus", "call", **ITEM, interface=INTERFACE, member="Echo", signature=signature, args=list(args)
    )
    values: list[str] = result.metadata["values"]
    return values


# -- list --


async def test_list_shows_names_with_the_process_that_owns_them(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "list")
    [row] = [row for row in result.metadata["names"] if row["name"] == SERVICE]
    assert row["pid"] == os.getpid()
    assert row["uid"] == os.getuid()
    assert row["running"]
    assert f"{SERVICE}  pid {os.getpid()}, uid {os.getuid()}" in result.output
    assert not any(row["name"].startswith(":") for row in result.metadata["names"])


async def test_list_shows_unique_names_when_asked_but_not_its_own_connection(
    address: str, call: Call
) -> None:
    async with connect(address) as bus:
        result = await call("dbus", "list", unique=True)
        names = [row["name"] for row in result.metadata["names"] if row["name"].startswith(":")]
        assert names == [bus.unique_name]


async def test_list_filters_by_part_and_glob_and_says_what_a_limit_left_out(address: str, call: Call) -> None:
    async with shop(address) as _, connect(address) as bus:
        await bus.request_name("org.example.Zoo")
        part = await call("dbus", "list", pattern="Zo")
        glob = await call("dbus", "list", pattern="org.example.*")
        cut = await call("dbus", "list", pattern="org.example", limit=1)
    assert [row["name"] for row in part.metadata["names"]] == ["org.example.Zoo"]
    assert [row["name"] for row in glob.metadata["names"]] == [SERVICE, "org.example.Zoo"]
    assert cut.output.endswith("2 names. 1 more are not shown.")


async def test_list_of_many_names_stays_within_the_limits_of_the_bus(address: str, call: Call) -> None:
    async with connect(address) as bus:
        for number in range(60):
            await bus.request_name(f"org.example.N{number}")
        result = await call("dbus", "list", pattern="org.example.N")
    assert all(row["pid"] == os.getpid() for row in result.metadata["names"])
    assert result.metadata["total"] == 60


# -- introspect --


async def test_introspect_shows_signatures_and_children(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "introspect", **ITEM)
    assert result.output.splitlines() == [
        f"{SERVICE} /org/example/shop",
        "interface org.example.Shop1",
        "  method Buy(s what, a{sv} how) -> u receipt",
        "  property Open b read",
        "  signal Sold(s what)",
        "interface org.example.Other1",
        "  method Stop()",
        "children: apples, pears",
    ]
    assert result.metadata["interfaces"] == ["org.example.Shop1", "org.example.Other1"]


async def test_introspect_shows_one_interface_or_says_which_there_are(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "introspect", **ITEM, interface="org.example.Other1")
        assert "Buy" not in result.output
        with pytest.raises(errors.InvalidArgument, match=r"no interface org\.example\.None1") as caught:
            await call("dbus", "introspect", **ITEM, interface="org.example.None1")
    assert "org.example.Shop1" in caught.value.suggestion


async def test_introspect_of_a_large_object_is_bounded(address: str, call: Call) -> None:
    async with shop(address) as service:
        methods = "".join(f'<method name="M{number}"/>' for number in range(1000))
        nodes = "".join(f'<node name="n{number}"/>' for number in range(300))
        service.xml = f'<node><interface name="org.example.Big1">{methods}</interface>{nodes}</node>'
        result = await call("dbus", "introspect", **ITEM)
    assert "602 more lines are not shown" in result.output
    assert result.output.endswith("and 100 more")
    assert len(result.output.splitlines()) < 410


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ('<!DOCTYPE n [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><node name="&b;"/>', "declares entities"),
        ("<node><interface", "no valid XML"),
        ("", "no valid XML"),
    ],
)
async def test_introspection_text_that_is_broken_or_hostile_is_an_error(
    address: str, call: Call, xml: str, message: str
) -> None:
    async with shop(address) as service:
        service.xml = xml
        with pytest.raises(errors.ToolError, match=message):
            await call("dbus", "introspect", **ITEM)


# -- get_property --


async def test_one_property_is_text_and_json(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "get_property", **ITEM, interface=INTERFACE, name="Open")
    assert result.output == "Open = true"
    assert result.metadata == {"properties": {"Open": True}, "left_out": 0}


async def test_all_properties_of_an_interface_are_json_whatever_their_type(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "get_property", **ITEM, interface=INTERFACE)
    found = result.metadata["properties"]
    assert found["Seal"] == {"base64": "/wA="}
    assert found["Prices"] == {"7": 1.5, "8": ["a", "b"]}
    assert found["Odd"] == "nan"
    json.dumps(result.metadata, allow_nan=False)


async def test_control_characters_of_a_value_are_escaped_in_the_text(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "get_property", **ITEM, interface=INTERFACE, name="Name")
    assert result.output == 'Name = "corner\\u202e\\u001b shop"'


async def test_a_huge_value_is_bounded_and_says_so(address: str, call: Call) -> None:
    async with shop(address) as service:
        service.properties = {
            "Many": Variant("au", list(range(50_000))),
            "Long": Variant("s", "x" * 100_000),
        }
        many = await call("dbus", "get_property", **ITEM, interface=INTERFACE, name="Many")
        long = await call("dbus", "get_property", **ITEM, interface=INTERFACE, name="Long")
        both = await call("dbus", "get_property", **ITEM, interface=INTERFACE)
    assert many.metadata["left_out"] == 48_000
    assert "(48000 parts are left out)" in many.output
    assert len(long.output) < 10_000
    assert "left out" in long.output
    assert len(both.output) < 100_000


async def test_unknown_property_is_not_found(address: str, call: Call) -> None:
    async with shop(address):
        with pytest.raises(errors.NotFound, match="No property Closed"):
            await call("dbus", "get_property", **ITEM, interface=INTERFACE, name="Closed")


async def test_observing_does_not_start_a_service_that_is_not_running(address: str, call: Call) -> None:
    for action, more in (("introspect", {}), ("get_property", {"interface": INTERFACE})):
        with pytest.raises(errors.Unavailable, match=r"Nobody owns the bus name org\.example\.Shop now"):
            await call("dbus", action, **ITEM, **more)


async def test_behind_the_filter_a_service_is_visible_with_its_owner_and_readable_when_it_is_listed(
    address: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("xdg-dbus-proxy") is None:
        pytest.skip("xdg-dbus-proxy is not installed")
    policy = write(tmp_path / "system.d" / "shop.conf", f'<allow user="x" own="{SERVICE}"/><allow own="*"/>')
    monkeypatch.setattr(busproxy, "BUS_POLICIES", (policy.parent,))
    bus = Path(address.removeprefix("unix:path=").partition(",")[0])
    found = []
    for readable in ([], [SERVICE]):
        proxy = BusProxy(tmp_path / "bus")
        await proxy.start([], bus, readable)
        try:
            monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={proxy.path}")
            with pytest.raises(errors.Unavailable, match="as far as observe can see"):
                await call("dbus", "introspect", **ITEM)
            async with shop(address) as service:
                listed = await call("dbus", "list")
                assert f"{SERVICE}  pid {os.getpid()}" in listed.output
                try:
                    await call("dbus", "introspect", **ITEM)
                    found.append("")
                except errors.PermissionDenied as err:
                    found.append(err.message)
                assert len(service.calls) == len(readable)
        finally:
            await proxy.close()
    assert found == [f"{SERVICE} is on the bus, but not visible to observe.", ""]


async def test_what_observes_talks_to_the_owner_since_that_starts_no_service(
    address: str, load: Load
) -> None:
    running = load("dbus").actions["introspect"].method.__globals__["_running"]
    async with shop(address), connect(address) as bus, running(bus, SERVICE) as destination:
        assert destination.startswith(":")


async def test_an_error_names_the_service_and_not_its_connection(address: str, call: Call) -> None:
    async with shop(address) as service:
        service.errors["Introspect"] = "org.example.Error.Busy"
        with pytest.raises(errors.ToolError, match=r"^org\.example\.Shop answered with the error"):
            await call("dbus", "introspect", **ITEM)


# -- call --


@pytest.mark.parametrize(
    ("signature", "value", "arrives"),
    [
        ("y", 255, 255),
        ("n", -32768, -32768),
        ("t", 2**64 - 1, 2**64 - 1),
        ("x", -(2**63), -(2**63)),
        ("b", False, False),
        ("d", 3, 3.0),
        ("o", "/a/b_1", "/a/b_1"),
        ("g", "a{sv}", "a{sv}"),
        ("ay", base64.b64encode(b"\xff\x00z").decode(), b"\xff\x00z"),
        ("ay", [1, 2], b"\x01\x02"),
        ("as", [], []),
        ("(s(ib))", ["x", [1, True]], ["x", [1, True]]),
        ("aai", [[1], [], [2, 3]], [[1], [], [2, 3]]),
        ("a{ua{ss}}", {"7": {"k": "v"}}, {7: {"k": "v"}}),
        ("a{bs}", {"true": "yes"}, {True: "yes"}),
        ("v", {"signature": "(sv)", "value": ["a", {"signature": "u", "value": 5}]}, ["a", 5]),
        ("a{sv}", {"k": {"signature": "ay", "value": "AAE="}}, {"k": b"\x00\x01"}),
    ],
)
async def test_arguments_arrive_typed_by_the_signature(
    address: str, call: Call, signature: str, value: Any, arrives: Any
) -> None:
    async with shop(address) as service:
        assert (await echoed(call, signature, value))[0] == signature
        assert service.calls[-1].args == [arrives]
        assert type(service.calls[-1].args[0]) is type(arrives)


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        ("q", [70000], r"args\[0\]: 70000 is not a whole number from 0 to 65535 \(q\)"),
        ("si", ["a", "5"], r'args\[1\]: "5" is not a whole number'),
        ("i", [True], "true is not a whole number"),
        ("i", [1.0], "is not a whole number"),
        ("b", [1], "1 is not true or false"),
        ("d", [10**400], "is not a number"),
        ("s", [5], "5 is not a text"),
        ("s", ["a\0b"], "without a NUL"),
        ("o", ["a/b"], "not an object path"),
        ("g", ["("], "a type is missing"),
        ("ay", ["!"], "bytes in base64"),
        ("ay", [[256]], r"args\[0\]\[0\]: 256 is not a whole number from 0 to 255"),
        ("(ss)", [["a"]], "list of the 2 values of a struct"),
        ("a{s(ib)}", [{"k": [1, 2]}], r"args\[0\]\.k\[1\]: 2 is not true or false"),
        ("a{us}", [{"x": "y"}], r"args\[0\] key 'x': \"x\" is not a whole number"),
        ("v", ["plain"], "not a variant such as"),
        ("v", [{"signature": "ss", "value": "a"}], "one complete type"),
        ("ss", ["a"], "has 2 arguments, and 1 are given"),
        ("a", [[]], "wrong at position 2: a type is missing"),
        ("a{vs}", [{}], "basic key"),
        ("{ss}", [{}], "wrong at position 1: no type"),
        ("()", [[]], "empty struct"),
        ("h", [0], "file descriptors"),
        ("a" * 40 + "s", [[]], "nested too deep"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_before_any_call(
    address: str, call: Call, signature: str, args: list[Any], message: str
) -> None:
    async with shop(address) as service:
        with pytest.raises(errors.InvalidArgument, match=message):
            await echoed(call, signature, *args)
        assert service.calls == []


async def test_variants_nested_too_deep_are_refused(address: str, call: Call) -> None:
    value: Any = {"signature": "s", "value": "x"}
    for _ in range(40):
        value = {"signature": "v", "value": value}
    with pytest.raises(errors.InvalidArgument, match="nested deeper than 32"):
        await echoed(call, "v", value)


async def test_call_that_gives_nothing_back_says_so(address: str, call: Call) -> None:
    async with shop(address):
        result = await call("dbus", "call", **ITEM, interface=INTERFACE, member="Nothing")
    assert result.output == "org.example.Shop1.Nothing of org.example.Shop is done; it gives nothing back."


async def test_errors_of_the_service_and_of_the_bus_keep_their_meaning(address: str, call: Call) -> None:
    async with shop(address):
        with pytest.raises(errors.ToolError, match=r"org\.example\.Error\.SoldOut: There are no apples"):
            await call("dbus", "call", **ITEM, interface=INTERFACE, member="Fail")
        with pytest.raises(errors.PermissionDenied, match="no apples"):
            await call("dbus", "call", **ITEM, interface=INTERFACE, member="Refuse")
    with pytest.raises(errors.Unavailable):
        await call("dbus", "call", **ITEM, interface=INTERFACE, member="Nothing")


async def test_a_service_that_went_away_leaves_the_outcome_of_a_change_unknown(
    address: str, load: Load, context: CallContext
) -> None:
    found = load("dbus").actions
    async with shop(address) as service:
        service.errors = dict.fromkeys(("Fail", "GetAll"), "org.freedesktop.DBus.Error.NoReply")
        for name, more, error in (
            ("call", {"member": "Fail"}, errors.OutcomeUnknown),
            ("get_property", {}, errors.Unavailable),
        ):
            args = found[name].args_model.model_validate({**ITEM, "interface": INTERFACE, **more})
            with pytest.raises(error):
                await run_action(found[name], args, cast("Any", context))


async def test_call_without_an_answer_in_time_has_an_unknown_outcome(
    address: str, call: Call, context: CallContext
) -> None:
    context.timeout_s = 0.3

    async def never(_: BusCall) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async with connect(address) as bus:
        bus.serve(never)
        await bus.request_name(SERVICE)
        with pytest.raises(errors.OutcomeUnknown, match="may still take effect"):
            await call("dbus", "call", **ITEM, interface=INTERFACE, member="Nothing")


async def test_bus_that_is_not_there_is_unavailable(address: str, call: Call) -> None:
    with pytest.raises(errors.Unavailable, match="No D-Bus daemon answers"):
        await call("dbus", "list", bus="session")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"service": "nodots"}, "not a bus name"),
        ({"service": "org..x"}, "not a bus name"),
        ({"service": "org.1x"}, "not a bus name"),
        ({"path": "org/x"}, "not an object path"),
        ({"path": "/org/"}, "not an object path"),
        ({"path": "/o rg"}, "not an object path"),
        ({"interface": "single"}, "not an interface name"),
        ({"interface": "org.ex-ample"}, "not an interface name"),
        ({"member": "1st"}, "not a member name"),
        ({"member": "a.b"}, "not a member name"),
        ({"member": "Echo\n"}, "not a member name"),
        ({"bus": "other"}, "'system' or 'session'"),
        ({"extra": 1}, "Extra inputs"),
    ],
)
def test_names_that_d_bus_does_not_allow_are_refused(load: Load, wrong: dict[str, Any], message: str) -> None:
    good = {**ITEM, "interface": INTERFACE, "member": "Echo"}
    model = load("dbus").actions["call"].args_model
    model.model_validate({**good, "service": ":1.5"})
    with pytest.raises(ValidationError, match=message):
        model.model_validate({**good, **wrong})


def test_effects_and_taints_are_declared(load: Load) -> None:
    actions = load("dbus").actions
    assert {name for name, found in actions.items() if found.effect is Effect.CHANGE} == {"call"}
    assert {name for name, found in actions.items() if found.taints} == set(actions)
    assert set(actions) == {"list", "introspect", "get_property", "call"}


async def test_a_call_is_previewed_with_its_arguments_and_the_process_that_gets_it(
    address: str, preview: AskPreview
) -> None:
    wanted = {
        **ITEM,
        "interface": INTERFACE,
        "member": "Buy",
        "signature": "sa{sv}",
        "args": ["an\x1b apple", {}],
    }
    async with shop(address) as made:
        shown = await preview("dbus", "call", **wanted)
        assert made.calls == []
        assert shown is not None
        assert shown.text.startswith(
            'On the system bus, call org.example.Shop1.Buy(["an\\u001b apple", {}]) of /org/example/shop.\n'
            f"It goes to {SERVICE}  pid {os.getpid()}, uid {os.getuid()}, "
        )
        with pytest.raises(errors.InvalidArgument):
            await preview("dbus", "call", **{**wanted, "signature": "u"})
        assert await preview("dbus", "list") is None


async def test_a_preview_says_when_nobody_would_get_the_call(address: str, preview: AskPreview) -> None:
    shown = await preview("dbus", "call", **ITEM, interface=INTERFACE, member="Buy")
    assert shown is not None
    assert f"{SERVICE} does not run now" in shown.text
