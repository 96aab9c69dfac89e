"""The daemon and its bus: another process has the name, the bus dies, hangs or refuses. Real daemons."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.bus.connection import Bus, connect
from lightagentd.control import bus_link
from lightagentd.control.dbus import name as dbus_name
from lightagentd.control.dbus.plane import NAME
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import DBUS_PREFIX, LightagentError, PermissionDenied
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from tests.agents.scripted import until
from tests.conftest import REPOSITORY, write
from tests.control.dbus.on_the_bus import MANAGER, ROOT
from tests.dbus_client import BusClient
from tests.fake_systemd import CONFIG, private_bus
from tests.raw_varlink import Raw, code

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
SYSTEM = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus"/>
  </policy>
  {more}
</busconfig>
"""
"""The rules of the system bus, as dbus-daemon ships them."""


class RestartedBus:
    """A dbus-daemon at an address that stays the same."""

    def __init__(self, folder: Path, config: str = CONFIG, more: str = "") -> None:
        socket = folder / "socket"
        self.address = f"unix:path={socket}"
        self._config = write(folder / "bus.conf", config.format(socket=socket, more=more))
        self._socket = socket
        self.process: subprocess.Popen[str]

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nopidfile", "--print-address=1"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline()
        self._socket.chmod(0o666)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def restarted_bus(config: str = CONFIG, more: str = "") -> Iterator[RestartedBus]:
    with tempfile.TemporaryDirectory(prefix="bus-") as folder:
        Path(folder).chmod(0o755)
        bus = RestartedBus(Path(folder), config, more)
        bus.start()
        yield bus
        bus.kill()


def on(paths: Paths, address: str) -> Daemon:
    """A daemon that is to be on this bus."""
    write(paths.config / "lightagentd.toml.d" / "50-bus.toml", f'[daemon]\nbus = "{address}"\n')
    return Daemon(paths)


async def status(client: Bus) -> dict[str, object]:
    [found] = await client.call(NAME, ROOT, MANAGER, "GetStatus", timeout_s=60.0)
    assert isinstance(found, dict)
    return found


async def works_over_varlink(daemon: Daemon) -> list[str]:
    """The problems of the status, as Varlink tells them."""
    async with Raw(daemon.paths.socket) as raw:
        reply = await raw.call("Manager.GetStatus")
        assert code(reply) == "ok"
        return list(reply["parameters"]["status"]["problems"])


async def test_a_name_that_another_process_has_is_a_problem_until_it_is_free(paths: Paths) -> None:
    with private_bus() as address:
        async with connect(address) as other:
            await other.request_name(NAME)
            async with on(paths, address) as daemon, connect(address) as client:
                [problem] = [one for one in await works_over_varlink(daemon) if NAME in one]
                assert f"process {os.getpid()} of {called(os.geteuid())}" in problem
                await other.close()
                assert (await status(client))["pid"] == os.getpid()
                await until(lambda: not daemon.dbus.problem)
                assert not any(NAME in one for one in await works_over_varlink(daemon))


async def test_of_two_daemons_one_answers_and_the_other_follows_it(
    paths: Paths, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("la")
    others = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    with private_bus() as address:
        async with on(paths, address) as first, on(others, address) as second, connect(address) as client:
            assert not first.dbus.problem
            assert second.dbus.problem
            history = await client.properties(NAME, ROOT, MANAGER)
            assert history["History"]["path"] == str(paths.history)
            await first.close()
            await until(lambda: not second.dbus.problem)
            history = await client.properties(NAME, ROOT, MANAGER)
            assert history["History"]["path"] == str(others.history)


async def test_after_the_bus_was_killed_all_works_again(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_link, "RETRY_MAX_S", 0.5)
    with restarted_bus() as bus:
        async with on(paths, bus.address) as daemon:
            for _ in range(2):
                async with connect(bus.address) as client:
                    assert (await status(client))["problems"] == daemon.problems()
                    await client.call(NAME, ROOT, f"{NAME}.Events", "Subscribe", "a{sv}", [{}])
                    assert len(daemon.dbus._streams()) == 1
                    bus.kill()
                    await client.wait_lost()
                await until(lambda: daemon.bus_link.bus is None and not daemon.dbus._streams())
                assert any("not on the bus" in one for one in await works_over_varlink(daemon))
                bus.start()
                await until(lambda: daemon.bus_link.bus is not None)
            async with connect(bus.address) as client:
                await status(client)
                [path] = await client.call(NAME, ROOT, f"{NAME}.Events", "Subscribe", "a{sv}", [{}])
                assert path == f"{ROOT}/streams/1"
            await until(lambda: not daemon.dbus._streams())


async def test_a_bus_that_hangs_disturbs_nothing_else(paths: Paths) -> None:
    with restarted_bus() as bus:
        async with on(paths, bus.address) as daemon, connect(bus.address) as client:
            await status(client)
            bus.process.send_signal(signal.SIGSTOP)
            try:
                waiting = asyncio.create_task(status(client))
                assert await works_over_varlink(daemon) == daemon.problems()
                assert not waiting.done()
            finally:
                bus.process.send_signal(signal.SIGCONT)
            assert (await waiting)["pid"] == os.getpid()
            bus.process.send_signal(signal.SIGSTOP)
        bus.process.send_signal(signal.SIGCONT)


async def test_a_bus_that_refuses_the_name_is_asked_again(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dbus_name, "RETRY_S", 0.05)
    with restarted_bus(SYSTEM) as bus:
        async with on(paths, bus.address) as daemon:
            assert "refuses the name org.lightagent1" in daemon.dbus.problem
            assert daemon.dbus.problem in await works_over_varlink(daemon)
            config = bus._config.read_text()
            bus._config.write_text(
                config.replace(
                    "</busconfig>", f"<policy context='default'><allow own='{NAME}'/></policy></busconfig>"
                )
            )
            bus.process.send_signal(signal.SIGHUP)
            await until(lambda: not daemon.dbus.problem)


@needs_root
async def test_the_shipped_rules_of_the_bus(paths: Paths) -> None:
    """On a bus with the rules of the system's: everybody may call, root owns the name, nobody listens in."""
    rules = REPOSITORY / "packaging" / "dbus" / "org.lightagent1.conf"
    with restarted_bus(SYSTEM, f"<include>{rules}</include>") as bus:
        async with (
            on(paths, bus.address) as daemon,
            connect(bus.address) as client,
            BusClient(bus.address, NOBODY) as nobody,
        ):
            assert not daemon.dbus.problem
            assert (await nobody.call(ROOT, f"{MANAGER}.GetStatus"))[0]["pid"] == os.getpid()
            refused = await nobody.call(ROOT, f"{MANAGER}.Reload")
            assert refused["error"][0] == DBUS_PREFIX + "PermissionDenied"
            await nobody.do("match", f"sender='{NAME}',eavesdrop='true'")
            async with client.signals(interface=f"{NAME}.Turn") as signals:
                await client.call(NAME, ROOT, MANAGER, "Prompt", "ssa{sv}", ["ops", "hello", {}], 60.0)
                async for one in signals:
                    if one.args[0] in ("done", "error"):
                        break
            await nobody.call(ROOT, f"{MANAGER}.GetStatus")
            assert await nobody.do("signals") == []
            assert "error" in await nobody.do("monitor")
            assert daemon.bus_link.bus is not None
            await daemon.bus_link.bus.call(client.unique_name, "/", "org.freedesktop.DBus.Peer", "Ping")
            with pytest.raises(LightagentError):
                await daemon.bus_link.bus.call(client.unique_name, "/", "org.example.Other", "Method")


@needs_root
async def test_the_shipped_rules_let_nobody_else_own_the_name() -> None:
    rules = REPOSITORY / "packaging" / "dbus" / "org.lightagent1.conf"
    with restarted_bus(SYSTEM, f"<include>{rules}</include>") as bus:
        async with BusClient(bus.address, NOBODY) as nobody:
            answer = await nobody.do("own", NAME)
            assert answer["error"][0] == "org.freedesktop.DBus.Error.AccessDenied"
        async with connect(bus.address) as root:
            await root.request_name(NAME)
            with pytest.raises(PermissionDenied):
                await root.request_name("org.example.Other")
