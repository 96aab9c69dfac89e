"""Fixtures with a booted Debian 13 system; the marker `e2e` names the tests that need one.

    debian_root   the cached root folder, which nothing may write to
    machine       one container for all tests of this folder
    product       the machine with the package of this checkout installed in it; nothing is started
    other_machine, installed   a second one, in which the package is installed, and what apt said
    third_machine a third one, with the daemon running
    service       the machine with lightagentd.service active when a test module begins

They need root, mmdebstrap and systemd-container. Without root such tests are skipped; without the programs
too, except where the variable CI is set: there it is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prepared import LACTL

from .cgroup import cgroup_root
from .debian import cache_folder, ensure_root
from .machine import PROGRAMS, Completed, Machine
from .product import install_product, start_service


def _require_prerequisites() -> None:
    """Skip, or fail in CI, unless this host can boot a container."""
    if os.geteuid() != 0:
        pytest.skip("booting a Debian 13 container needs root")
    missing = [program for program in ("mmdebstrap", *PROGRAMS) if shutil.which(program) is None]
    if cgroup_root() is None:
        missing.append("a mounted cgroup v2 hierarchy")
    if missing:
        reason = f"booting a Debian 13 container needs {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}: apt-get install mmdebstrap systemd-container")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def debian_root() -> Path:
    """The root folder that machines boot from; the first run on a host takes a minute to make it."""
    _require_prerequisites()
    return ensure_root(cache_folder())


@pytest.fixture(scope="package")
def machine(debian_root: Path) -> Iterator[Machine]:
    """The machine of this folder; tests share it, so one removes what would surprise the next."""
    with Machine(debian_root) as booted:
        yield booted


@pytest.fixture(scope="package")
def product(machine: Machine) -> Machine:
    """The session's machine with the package of this checkout installed."""
    install_product(machine)
    machine.prepare({"lactl": LACTL})
    return machine


@pytest.fixture(scope="package")
def other_machine(debian_root: Path) -> Iterator[Machine]:
    """A second machine, for the tests of the package alone: they install it, look at it, and remove it."""
    with Machine(debian_root) as booted:
        yield booted


@pytest.fixture(scope="package")
def installed(other_machine: Machine) -> Completed:
    """What apt said when it installed the package in the second machine."""
    return install_product(other_machine)


@pytest.fixture(scope="package")
def third_machine(debian_root: Path) -> Iterator[Machine]:
    """A third machine with the daemon running: for faults that are staged, then for an audit, then for
    attacks as the daemon.
    """
    with Machine(debian_root) as booted:
        install_product(booted)
        booted.prepare({"lactl": LACTL})
        start_service(booted)
        yield booted


@pytest.fixture(scope="module")
def service(product: Machine) -> Machine:
    """The session's machine with the daemon running, which runs on for the next module."""
    start_service(product)
    return product
