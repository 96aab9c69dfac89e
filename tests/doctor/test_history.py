"""What `lactl doctor` says of the history, with and without a daemon."""

from __future__ import annotations

from pathlib import Path

from lightagentd.api import Finding
from lightagentd.config.configuration import History as Limits
from lightagentd.doctor.history import of_files, of_running
from lightagentd.events.corruption import examination as damage
from lightagentd.events.model import GENESIS
from lightagentd.host.paths import Paths
from tests.agents.scripted import scripted, until
from tests.doctor.test_look import named
from tests.events.corruption.damaging import put


def bad(found: list[Finding]) -> list[str]:
    return [one.name for one in found if one.status != "ok"]


async def test_nothing_is_wrong_with_a_history_in_use(paths: Paths) -> None:
    assert bad(of_files(paths)) == []
    async with scripted(paths, []) as test:
        found = [*of_files(paths), *of_running(test.daemon.history, Limits())]
    assert bad(found) == []
    assert {one.name for one in found} == {"file", "set aside", "history", "size", "checkpoint", "examined"}


async def test_a_history_that_was_set_aside_is_named_until_it_is_moved_away(paths: Paths) -> None:
    put(paths.history, b"no database")
    async with scripted(paths, []) as test:
        (aside,) = damage.left_aside(paths.history)
        await until(lambda: damage.export_of(aside).exists())
        found = of_files(paths)
        assert bad(found) == [f"set aside {aside.name}"]
        finding = named(found, f"set aside {aside.name}")
        assert (finding.status, str(damage.export_of(aside)) in finding.detail) == ("wrong", True)
        assert f"mv {aside}*" in finding.remedy
        for path in paths.state.glob(f"{aside.name}*"):
            path.rename(paths.state.parent / path.name)
        assert bad(of_files(paths)) == []
        assert test.daemon.history.head_seq > 0


async def test_a_history_that_is_nearly_full_is_noted(paths: Paths) -> None:
    async with scripted(paths, []) as test:
        found = of_running(test.daemon.history, Limits(max_bytes=4096))
    assert named(found, "size").status == "note"
    assert "max_bytes" in named(found, "size").remedy


def test_a_folder_beside_the_history_is_no_damaged_one(paths: Paths) -> None:
    put(paths.history, b"x")
    (paths.state / "history.before-restore-20260101T000000Z").mkdir()
    assert bad(of_files(paths)) == []
    note = damage.set_aside(paths.history, "It is damaged.", 0, GENESIS)
    assert bad(of_files(paths)) == [f"set aside {Path(note.path).name}"]
