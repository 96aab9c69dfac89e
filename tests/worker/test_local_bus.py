"""The filtered system bus: a real dbus-daemon and xdg-dbus-proxy, a service that answers as systemd does."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightagentd.bus.connection import Variant, connect
from lightagentd.config import configuration
from lightagentd.errors import ConfigError, LightagentError
from lightagentd.worker import busproxy
from lightagentd.worker.local_bus import BusProxy
from tests.conftest import write
from tests.fake_systemd import MANAGER, ROOT, SYSTEMD, FakeUnit, fake_systemd, private_bus


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[BusProxy]:
    """A proxy to a private bus that has a fake systemd with one unit on it."""
    if shutil.which("xdg-dbus-proxy") is None:
        if os.environ.get("CI"):
            pytest.fail("xdg-dbus-proxy is not installed, and CI must not skip the tests that need it")
        pytest.skip("xdg-dbus-proxy is not installed")
    with private_bus() as address:
        bus = Path(address.removeprefix("unix:path=").partition(",")[0])
        async with fake_systemd(address, FakeUnit(name="web.service")):
            found = BusProxy(tmp_path / "bus")
            await found.start([], bus)
            try:
                yield found
            finally:
                await found.close()


async def test_questions_to_systemd_get_through(proxy: BusProxy) -> None:
    assert proxy.path is not None, proxy.problem
    async with connect(f"unix:path={proxy.path}") as bus:
        found = await bus.call(SYSTEMD, ROOT, MANAGER, "LoadUnit", "s", ["web.service"])
    assert found[0].startswith(ROOT)


@pytest.mark.parametrize(
    ("member", "signature", "args"),
    [
        ("StartUnit", "ss", ["web.service", "replace"]),
        ("StopUnit", "ss", ["web.service", "replace"]),
        ("KillUnit", "ssi", ["web.service", "all", 9]),
        ("Reload", "", []),
        ("SetEnvironment", "as", [["A=b"]]),
    ],
)
async def test_orders_to_systemd_do_not(
    proxy: BusProxy, member: str, signature: str, args: list[object]
) -> None:
    async with connect(f"unix:path={proxy.path}") as bus:
        with pytest.raises(LightagentError):
            await bus.call(SYSTEMD, ROOT, MANAGER, member, signature, args)


async def test_setting_a_property_does_not(proxy: BusProxy) -> None:
    async with connect(f"unix:path={proxy.path}") as bus:
        with pytest.raises(LightagentError):
            await bus.call(
                SYSTEMD,
                ROOT,
                "org.freedesktop.DBus.Properties",
                "Set",
                "ssv",
                [MANAGER, "LogLevel", Variant("s", "debug")],
            )


async def test_other_services_are_not_there(proxy: BusProxy) -> None:
    async with connect(f"unix:path={proxy.path}") as bus:
        names = await bus.call(
            "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "ListNames", "", []
        )
        with pytest.raises(LightagentError):
            await bus.call(
                "org.freedesktop.resolve1",
                "/org/freedesktop/resolve1",
                "org.freedesktop.resolve1.Manager",
                "ResolveHostname",
                "isit",
                [0, "example.org", 0, 0],
            )
    assert SYSTEMD in names[0]
    assert "org.freedesktop.resolve1" not in names[0]


async def test_without_a_bus_there_is_no_proxy_and_no_complaint(tmp_path: Path) -> None:
    proxy = BusProxy(tmp_path / "bus")
    await proxy.start([], tmp_path / "no-bus")
    assert proxy.path is None
    assert not proxy.problem


async def test_a_killed_daemon_leaves_no_proxy(proxy: BusProxy) -> None:
    """The proxy ends when its lifeline closes, whoever closes it."""
    assert proxy._process is not None
    os.close(proxy._lifeline)
    proxy._lifeline = -1
    assert await proxy._process.wait() is not None


def test_the_proxy_of_a_unit_reads_bus_names_as_the_daemon_does(tmp_path: Path) -> None:
    assert busproxy._readable(tmp_path) == []
    write(tmp_path / "lightagentd.toml", '[worker]\nbus_names = ["org.example.One"]\n')
    write(tmp_path / "lightagentd.toml.d" / "a.toml", '[worker]\nbus_names = ["org.example.Two", "-x"]\n')
    assert busproxy._readable(tmp_path) == ["org.example.Two"]
    with pytest.raises(ConfigError, match="bus_names"):
        configuration.load(tmp_path)
    write(tmp_path / "lightagentd.toml.d" / "b.toml", "# bus_names\nworker = 3\n")
    assert busproxy._readable(tmp_path) == ["org.example.Two"]
