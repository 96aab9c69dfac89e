from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lightagentd.llm.runbook import machine_names
from lightagentd.llm.runbook.machine_names import MachineNames
from lightagentd.llm.runbook.names import Names
from tests.fake_systemd import FakeUnit, fake_systemd, private_bus


@pytest.fixture(scope="module")
def bus_address() -> Iterator[str]:
    with private_bus() as address:
        yield address


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's files: two units, packages of dpkg, an interface, mounts and a container of podman."""
    for path in (
        "etc/systemd/system/geoindex.service",
        "usr/lib/systemd/system/getty@.service",
        "usr/lib/systemd/system/multi-user.target.wants/",
        "var/lib/dpkg/info/nginx.list",
        "var/lib/dpkg/info/libssl3:amd64.list",
        "var/lib/dpkg/info/nginx.md5sums",
        "var/lib/dpkg/status",
        "sys/class/net/eth0/",
        "etc/containers/systemd/shop.container",
        "run/systemd/users/0",
        "run/systemd/machines/build",
        "run/systemd/machines/unit:systemd-nspawn@build.service",
    ):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if path.endswith("/") else place.touch()
    (tmp_path / "etc/passwd").write_text("anna:x:1000:1000::/home/anna:/bin/sh\ndaemon:x:1:1:::\n+::::::\n")
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 8:2 / /srv/my\\040data rw - ext4 /dev/sda2 rw\n"
        "24 22 0:5 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw\n"
    )
    return tmp_path


@contextlib.asynccontextmanager
async def names_of(root: Path, bus: str = "unix:path=/nowhere") -> AsyncIterator[MachineNames]:
    names = MachineNames(bus=bus, root=root)
    try:
        yield names
    finally:
        await names.close()


async def known(names: MachineNames) -> Names:
    """The names when they are collected: a slow machine may take longer than a prompt waits."""
    return await names.current(wait_s=30)


async def test_without_systemd_it_knows_what_lies_in_files(root: Path) -> None:
    async with names_of(root) as names:
        found = await known(names)

    assert found.units == {"geoindex.service", "getty@.service"}
    assert found.packages == {"nginx", "libssl3"}
    assert found.interfaces == {"eth0"}
    assert found.mounts == {"/", "/srv/my data"}
    assert found.containers == {"shop", "build"}
    assert found.users == {"anna", "daemon", "root"}


async def test_it_reads_the_database_of_rpm(root: Path) -> None:
    database = root / "usr/lib/sysimage/rpm/rpmdb.sqlite"
    database.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(database)) as rpm, rpm:
        rpm.execute(
            "CREATE TABLE 'Name' (key 'TEXT' NOT NULL, hnum INTEGER NOT NULL, idxnum INTEGER NOT NULL)"
        )
        rpm.executemany("INSERT INTO Name VALUES (?, ?, 0)", [("httpd", 1), ("kernel", 2), ("kernel", 3)])

    async with names_of(root) as names:
        assert (await known(names)).packages >= {"httpd", "kernel"}


async def test_what_is_installed_later_is_known_and_nothing_is_read_twice(root: Path) -> None:
    async with names_of(root) as names:
        before = await known(names)

        assert await known(names) is before

        (root / "etc/systemd/system/later.timer").touch()
        os.utime(root / "etc/systemd/system", ns=(1, 1))
        assert "later.timer" in (await known(names)).units


async def test_units_that_systemd_loads_are_known_and_are_listed_only_when_it_says_so(
    root: Path, bus_address: str
) -> None:
    (root / "run/systemd/system").mkdir()
    async with (
        fake_systemd(
            bus_address,
            FakeUnit("foo@one.service"),
            FakeUnit("gone.service", load="not-found"),
            FakeUnit("srv-my\\x2ddata.mount", active="active"),
            FakeUnit("srv-old.mount"),
            FakeUnit("sys-kernel-debug.mount", active="active"),
        ) as systemd,
        names_of(root, bus_address) as names,
    ):
        found = await known(names)
        assert {"foo@one.service", "geoindex.service"} <= found.units
        assert "gone.service" not in found.units
        assert found.mounts == {"/srv/my-data"}

        await systemd.load(FakeUnit("lightagent-observe@07.service"))
        assert await known(names) is found
        assert systemd.called.count("ListUnitsByPatterns") == 1

        await systemd.load(FakeUnit("made-later.service"))
        while "made-later.service" not in (await names.current()).units:
            await asyncio.sleep(0.01)
        await names.close()
        assert "made-later.service" in (await known(names)).units


async def test_without_prompts_it_leaves_the_bus_and_comes_back(
    root: Path, bus_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_names, "IDLE_S", 0.05)
    (root / "run/systemd/system").mkdir()
    async with (
        fake_systemd(bus_address, FakeUnit("foo@one.service")) as systemd,
        names_of(root, bus_address) as names,
    ):
        while systemd.called.count("Subscribe") < 2:
            await known(names)
            await asyncio.sleep(0.1)
        systemd.units["made-later.service"] = FakeUnit("made-later.service")  # while nobody listened
        while "made-later.service" not in (await known(names)).units:
            await asyncio.sleep(0.1)


async def test_a_bus_that_hangs_holds_up_no_prompt(root: Path) -> None:
    (root / "run/systemd/system").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(root / "bus"))
        silent.listen()
        async with names_of(root, f"unix:path={root}/bus") as names, asyncio.timeout(60):
            assert await names.current() == Names()
