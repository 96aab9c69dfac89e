"""Where things lie, for the system's daemon and for an ordinary user's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.host.paths import (
    CONTENT_KINDS,
    Paths,
    content_folders,
    default_paths,
    share_folder,
)

VARIABLES = (
    "LIGHTAGENT_CONFIG_DIR",
    "LIGHTAGENT_STATE_DIR",
    "LIGHTAGENT_RUNTIME_DIR",
    "STATE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ordinary_user() -> Iterator[int]:
    """An effective uid that is not root's, for the length of the test."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield os.geteuid()
    finally:
        os.seteuid(own)


def test_an_ordinary_user_has_folders_below_home(ordinary_user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_paths() == Paths(
        config=Path("/home/someone/.config/lightagentd"),
        state=Path("/home/someone/.local/state/lightagentd"),
        runtime=Path(f"/run/user/{ordinary_user}/lightagentd"),
    )


def test_an_ordinary_users_xdg_folders_are_used(ordinary_user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/r")
    found = default_paths()
    assert [found.config, found.state, found.runtime] == [Path(f"/{one}/lightagentd") for one in "csr"]


def test_a_system_service_uses_the_systems_folders_as_any_user(
    ordinary_user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/private/lightagentd:/var/lib/other")
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", "/etc/elsewhere:/etc/other")
    assert default_paths() == Paths(
        config=Path("/etc/elsewhere"),
        state=Path("/var/lib/private/lightagentd"),
        runtime=Path("/run/lightagentd"),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_uses_the_systems_folders() -> None:
    assert default_paths() == Paths(
        config=Path("/etc/lightagentd"), state=Path("/var/lib/lightagentd"), runtime=Path("/run/lightagentd")
    )


def test_our_own_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/x")
    for name, value in (("CONFIG", "/a"), ("STATE", "/b"), ("RUNTIME", "/c")):
        monkeypatch.setenv(f"LIGHTAGENT_{name}_DIR", value)
    found = default_paths()
    assert found == Paths(config=Path("/a"), state=Path("/b"), runtime=Path("/c"))
    assert found.socket == Path("/c/control.sock")
    assert found.history == Path("/b/history")


def test_content_is_looked_for_in_the_configuration_first_and_missing_folders_are_left_out(
    paths: Paths,
) -> None:
    for kind in CONTENT_KINDS:
        assert content_folders(kind, paths) == [share_folder() / kind]
        (paths.config / kind).mkdir(parents=True)
        assert content_folders(kind, paths) == [paths.config / kind, share_folder() / kind]
    paths.own_agents.mkdir(parents=True)
    assert content_folders("agent", paths) == [
        paths.config / "agent",
        paths.own_agents,
        share_folder() / "agent",
    ]
