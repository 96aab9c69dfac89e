"""`lactl change`: what it lays for systemd, and who may; what systemd makes of it is in tests/e2e."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lightagentd.worker import change_profiles
from tests.cli.conftest import Lactl


@pytest.fixture
def drop_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(change_profiles, "DROP_INS", tmp_path)
    return tmp_path


def test_a_profile_is_a_drop_in_that_says_what_it_leaves(drop_ins: Path) -> None:
    for name in change_profiles.NAMES:
        path = change_profiles.lay("ops", name)
        assert path == drop_ins / "lightagent-change@ops.service.d" / "50-profile.conf"
        assert path.stat().st_mode & 0o777 == 0o644
        assert change_profiles.chosen("ops") == name
        assert "lactl" not in change_profiles.described(name)
        assert change_profiles.described(name).endswith(".")
    path.write_text("[Service]\n")
    assert change_profiles.chosen("ops") == "altered"
    assert change_profiles.chosen("web") == ""


def test_removing_leaves_the_drop_ins_of_an_administrator(drop_ins: Path) -> None:
    own = change_profiles.lay("ops", "files").with_name("own.conf")
    own.write_text("[Service]\n")
    assert change_profiles.remove("ops")
    assert own.exists()
    own.unlink()
    change_profiles.lay("ops", "files")
    assert change_profiles.remove("ops")
    assert [*drop_ins.iterdir()] == []
    assert not change_profiles.remove("ops")


def test_the_list_has_agents_that_may_change_and_those_with_a_profile(drop_ins: Path, lactl: Lactl) -> None:
    assert lactl("change").out == ""
    wants = drop_ins / "lightagentd.service.wants"
    wants.mkdir()
    (wants / "lightagent-change@kit.member.socket").symlink_to("/nowhere")
    path = change_profiles.lay("ops", "services")
    assert lactl("change", "list").out == f"kit.member\tnone\t-\nops\tservices\t{path}\n"
    assert json.loads(lactl("change", "--json").out)[1] == {
        "agent": "ops",
        "profile": "services",
        "file": str(path),
    }


def test_what_cannot_be_narrowed_is_refused(
    drop_ins: Path, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no name of an agent" in lactl("change", "narrow", "../ops", "files").err
    assert "takes one of services, files, packages" in lactl("change", "narrow", "ops", "all").err
    assert "on the machine itself" in lactl("change", "narrow", "ops", "files", "--host", "web1").err
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (("narrow", "ops", "files"), ("widen", "ops")):
        done = lactl("change", *words)
        assert (done.status, done.err) == (
            77,
            "lactl: Only root narrows or widens a worker.\nRun it with sudo.\n",
        )
    assert [*drop_ins.iterdir()] == []
