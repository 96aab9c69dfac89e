"""`lactl history prune|compact`: which call each makes, what it prints, and the store without a daemon."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from lightagentd import api
from lightagentd.events.audit.verification import verify
from tests.cli.conftest import Lactl
from tests.events.stored import note, opened
from tests.scripted_daemon import ScriptedDaemon

PRUNED = api.Pruned(
    removed=128,
    sessions=["ses_1", "ses_2"],
    freed_bytes=3 << 20,
    live_bytes=7 << 20,
    first_seq=129,
    compacted=False,
    dry_run=True,
)


def test_prune_asks_for_what_was_said_and_tells_what_went(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("History.Prune", {"pruned": asdict(PRUNED)})
    done = lactl("history", "prune", "--dry-run")
    assert scripted.parameters("History.Prune") == {"dry_run": True}
    assert dict(line.split("\t") for line in done.out.splitlines()) == {
        "dry_run": "yes",
        "removed": "128 events",
        "deleted": "2 sessions",
        "freed": "3.0 MiB",
        "in_use": "7.0 MiB",
        "first_event": "129",
        "compacted": "no",
    }


def test_prune_removes_unless_it_is_told_not_to(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("History.Prune", {"pruned": asdict(PRUNED)})
    assert json.loads(lactl("history", "prune", "--json").out) == asdict(PRUNED)
    assert scripted.parameters("History.Prune") == {"dry_run": False}


def test_compact_tells_both_sizes(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    compacted = {"bytes_before": 300 << 20, "bytes_after": 80 << 20}
    scripted.answer("History.Compact", {"compacted": compacted})
    said = "The history took 300.0 MiB and takes 80.0 MiB now.\n"
    assert lactl("history", "compact").out == said
    assert json.loads(lactl("history", "compact", "--json").out) == compacted


async def test_a_store_is_compacted_without_a_daemon(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(tmp_path / "none.sock"))
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    async with opened(state / "history") as history:
        await history.append(*(note(number) for number in range(50)))
    done = lactl("history", "compact", "--stored", "--state-dir", str(state), "--json")
    assert done.status == 0, done.err
    assert set(json.loads(done.out)) == {"bytes_before", "bytes_after"}
    async with opened(state / "history") as history:
        assert history.queries.range(51)[0].type == "compacted"
        assert verify(history.environment).ok


def test_without_a_daemon_compact_names_the_option(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(tmp_path / "none.sock"))
    done = lactl("history", "compact")
    assert done.status == 69
    assert "--stored" in done.err
