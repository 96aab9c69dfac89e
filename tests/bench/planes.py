"""What a call costs on each control plane, beside an echo of the bare library on the same kind of socket.

A call is sent as bytes that were made before, and its reply is read to its end and not decoded: what is
measured is the server, and the way there and back. The daemon's calls and the echo take turns.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asyncvarlink import VarlinkInterface, VarlinkInterfaceRegistry, create_unix_server, varlinkmethod
from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.service import ServiceInterface, method

from lightagentd.host.paths import Paths
from tests.bench.rig import show
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.fake_systemd import private_bus
from tests.raw_dbus import RawBus

CALLS = 200
TARGET = 2
"""How many times the echo's time a call may take."""
ECHO = "org.example.Echo"
OURS = ("Agents.List", "Manager.GetStatus")
_library_bus: Any = MessageBus
_library_method: Any = method
_library_interface: Any = ServiceInterface


def run(rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="la-bench-")))
        base.chmod(0o755)
        address = stack.enter_context(private_bus())
        write(base / "etc/lightagentd.toml.d/bus.toml", f'[daemon]\nbus = "{address}"\n')
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        stack.callback(daemon.close)
        daemon.start()
        stack.enter_context(_echo("dbus", address))
        stack.enter_context(_echo("varlink", str(base / "echo.sock")))
        bus = stack.enter_context(RawBus(address))
        _compare(rounds, "D-Bus", "dbus-next", _dbus_call(bus), _dbus_echo(bus))
        ours = stack.enter_context(_connected(daemon.paths.socket))
        echo = stack.enter_context(_connected(base / "echo.sock"))
        _compare(rounds, "Varlink", "asyncvarlink", _varlink_call(ours), _varlink_echo(echo))


Call = Callable[[], None]


def _compare(rounds: int, plane: str, library: str, ours: dict[str, Call], echo: Call) -> None:
    """Time the calls in turns, and print each as a multiple of the echo."""
    calls = {**ours, "": echo}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        _round_trip_us(call)  # the first ones fill what is kept
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_round_trip_us(call))
    bare = times.pop("")
    show(f"{plane}: echo of {library} alone", bare, "µs")
    for name, measured in times.items():
        show(f"{plane}: {name}", measured, "µs")
        ratios = [one / other for one, other in zip(measured, bare, strict=True)]
        show(f"{plane}: {name}, times the echo (target: at most {TARGET})", ratios, "x")


def _round_trip_us(call: Call) -> float:
    """The median of many."""
    times = []
    for _ in range(CALLS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


# D-Bus


def _dbus_call(bus: RawBus) -> dict[str, Call]:
    calls = {}
    for name in OURS:
        interface, _, member = name.partition(".")
        packed = bus.packed("/org/lightagent1", f"org.lightagent1.{interface}", member)
        calls[name] = _exchange(bus, packed)
    return calls


def _dbus_echo(bus: RawBus) -> Call:
    return _exchange(bus, bus.packed("/echo", ECHO, "Echo", "s", ["hello"], destination=ECHO))


def _exchange(bus: RawBus, packed: bytes) -> Call:
    def call() -> None:
        bus.sock.sendall(packed)
        while (kind := bus.raw_message()[1]) != MessageType.METHOD_RETURN.value:
            assert kind != MessageType.ERROR.value

    return call


async def _serve_dbus(address: str) -> None:
    class Echo(_library_interface):  # type: ignore[misc]
        """One method, as the library's documentation has it."""

    def echo(self: object, text: str) -> str:
        return text

    echo.__annotations__ = {"text": "s", "return": "s"}  # the library reads signatures from there
    Echo.Echo = _library_method(name="Echo")(echo)
    bus = await _library_bus(bus_address=address).connect()
    bus.export("/echo", Echo(ECHO))
    await bus.request_name(ECHO)
    await _serving()


# Varlink


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        yield sock


def _varlink_call(sock: socket.socket) -> dict[str, Call]:
    return {name: _varlink_exchange(sock, f"org.lightagent1.{name}", {}) for name in OURS}


def _varlink_echo(sock: socket.socket) -> Call:
    return _varlink_exchange(sock, f"{ECHO}.Echo", {"text": "hello"})


def _varlink_exchange(sock: socket.socket, name: str, parameters: dict[str, str]) -> Call:
    packed = json.dumps({"method": name, "parameters": parameters}).encode() + b"\0"

    def call() -> None:
        sock.sendall(packed)
        reply = sock.recv(1 << 20)
        while not reply.endswith(b"\0"):
            reply += sock.recv(1 << 20)
        assert b'"error":"' not in reply

    return call


class VarlinkEcho(VarlinkInterface, name=ECHO):
    """The bare library with one method."""

    @varlinkmethod(return_parameter="text")
    async def Echo(self, *, text: str) -> str:
        return text


async def _serve_varlink(path: str) -> None:
    registry = VarlinkInterfaceRegistry()
    registry.register_interface(VarlinkEcho())
    await create_unix_server(registry.protocol_factory, path)
    await _serving()


# The echoes, as processes of their own


async def _serving() -> None:
    print("ready", flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def _echo(kind: str, address: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.planes", kind, address],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield
        finally:
            server.terminate()


if __name__ == "__main__":
    asyncio.run({"dbus": _serve_dbus, "varlink": _serve_varlink}[sys.argv[1]](sys.argv[2]))
