"""The control socket as varlinkctl(1) of systemd 257 sees it: a Varlink implementation that is not ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.control.varlink.interfaces import INTERFACES, Errors

from .machine import Completed, Machine

pytestmark = pytest.mark.e2e

SOCKET = "unix:/run/lightagentd/control.sock"
SHIPPED = "/usr/share/lightagentd/varlink"
INTERFACE_NAMES = [interface.name for interface in (Errors, *INTERFACES)]


def call(
    machine: Machine, method: str, *, more: bool = False, check: bool = True, **parameters: Any
) -> Completed:
    option = ["--more"] if more else []
    argv = ["varlinkctl", *option, "call", SOCKET, f"org.lightagent1.{method}", json.dumps(parameters)]
    return machine.run(argv, check=check)


def error_of(machine: Machine, method: str, **parameters: Any) -> tuple[str, dict[str, Any]]:
    """Name and parameters of the error that a call is answered with."""
    done = call(machine, method, check=False, **parameters)
    assert done.status != 0
    return done.stderr.strip().rpartition(" failed: ")[2], json.loads(done.stdout or "{}")


def test_info_names_product_and_interfaces(service: Machine) -> None:
    info = service.run(["varlinkctl", "info", SOCKET]).stdout
    assert "Product: lightagentd\n" in info
    assert set(INTERFACE_NAMES) <= set(info.split())


def test_interfaces_are_listed(service: Machine) -> None:
    listed = service.run(["varlinkctl", "list-interfaces", SOCKET]).stdout.split()
    assert sorted(listed) == sorted([*INTERFACE_NAMES, "org.varlink.service"])


@pytest.mark.parametrize("interface", [*INTERFACE_NAMES, "org.varlink.service"])
def test_systemd_parses_the_interface_description(service: Machine, interface: str) -> None:
    introspected = service.run(["varlinkctl", "introspect", SOCKET, interface])
    assert f"interface {interface}\n" in introspected.stdout
    assert introspected.stderr == ""


@pytest.mark.parametrize("interface", INTERFACE_NAMES)
def test_systemd_finds_the_shipped_description_valid(service: Machine, interface: str) -> None:
    validated = service.run(["varlinkctl", "validate-idl", f"{SHIPPED}/{interface}.varlink"])
    assert validated.stderr == ""


def test_status_is_answered(service: Machine) -> None:
    status = json.loads(call(service, "Manager.GetStatus").stdout)["status"]
    assert (status["state"], status["agents_running"]) == ("running", 1)


def test_prompt_streams_typed_events_until_done(service: Machine) -> None:
    streamed = call(service, "Sessions.Prompt", more=True, agent="ops", text="check memory")
    texts = streamed.stdout.split("\x1e")  # JSON text sequences (RFC 7464): a separator before each
    events = [json.loads(text)["event"] for text in texts if text]
    types = [event["type"] for event in events]
    assert (types[-1], types.count("done")) == ("done", 1)
    assert {"started", "tool_call", "tool_result", "text_delta"} <= set(types)
    assert "memory" in events[-1]["text"]
    assert {event["trace_id"] for event in events} == {events[0]["trace_id"]}


def test_stream_needs_the_flag_more(service: Machine) -> None:
    name, _ = error_of(service, "Sessions.Prompt", agent="ops", text="check disk")
    assert name == "org.varlink.service.ExpectedMore"


def test_unknown_method_and_interface_are_named(service: Machine) -> None:
    assert error_of(service, "Manager.Explode") == (
        "org.varlink.service.MethodNotFound",
        {"method": "Explode"},
    )
    assert error_of(service, "Nothing.Explode") == (
        "org.varlink.service.InterfaceNotFound",
        {"interface": "org.lightagent1.Nothing"},
    )


@pytest.mark.parametrize(
    ("parameters", "wrong"), [({"name": 5}, "name"), ({}, "name"), ({"name": "ops", "extra": 1}, "extra")]
)
def test_wrong_parameter_is_named(service: Machine, parameters: dict[str, Any], wrong: str) -> None:
    assert error_of(service, "Agents.Get", **parameters) == (
        "org.varlink.service.InvalidParameter",
        {"parameter": wrong},
    )


def test_errors_of_ours_have_a_code_and_a_suggestion(service: Machine) -> None:
    name, parameters = error_of(service, "Agents.Get", name="nobody")
    assert name == "org.lightagent1.AgentNotFound"
    assert parameters["code"] == "agent_not_found"
    assert "ops" in parameters["suggestion"]
