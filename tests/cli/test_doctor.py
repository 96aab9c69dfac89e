"""`lactl doctor`: how findings are shown, its exit status, and what it does without a daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Lactl, on_terminal
from tests.conftest import write
from tests.scripted_daemon import ScriptedDaemon


def finding(name: str, status: str, detail: str = "") -> dict[str, Any]:
    return {"name": name, "status": status, "detail": detail}


def diagnosis(*findings: dict[str, Any], ok: bool = True, enforced: bool = True) -> dict[str, Any]:
    worker = {
        "agent": "ops",
        "effect": "observe",
        "backend": "bwrap" if enforced else "none",
        "enforced": enforced,
        "reason": "" if enforced else "bwrap is not installed.",
        "findings": list(findings),
    }
    checks = [finding("history", "ok", "intact")]
    return {"diagnosis": {"ok": ok, "workers": [worker], "checks": checks}}


def test_what_holds_is_told_in_a_line_each(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.Diagnose", diagnosis(finding("network", "ok", "refused")))
    done = lactl("doctor")
    assert (done.status, done.err) == (0, "")
    assert "ops, observe: bwrap\n" in done.out
    assert ["network", "ok", "refused"] in [line.split() for line in done.out.splitlines()]
    assert "All that is promised holds." in done.out


def test_what_does_not_hold_is_loud_and_fails(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    broken = diagnosis(finding("network", "not_held", "127.0.0.1"), ok=False, enforced=False)
    scripted.answer("Manager.Diagnose", broken)
    done = lactl("doctor", "ops")
    assert done.status == 1
    assert "NOT HELD" in done.out
    assert "enforces nothing" in done.out
    assert "bwrap is not installed." in done.out
    assert "1 thing is not as promised" in done.err
    assert scripted.parameters("Manager.Diagnose") == {"agent": "ops"}


def test_what_was_not_tried_is_no_praise(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.Diagnose", diagnosis(finding("network", "not_tried", "no worker")))
    done = lactl("doctor")
    assert done.status == 0
    assert "not everything could be tried" in done.out
    assert "promised holds" not in done.out


def test_a_terminal_gets_colours_and_no_escapes_from_details(scripted: ScriptedDaemon) -> None:
    scripted.answer(
        "Manager.Diagnose", diagnosis(finding("network", "not_held", "\x1b[2J\x1b]0;x\x07gone"), ok=False)
    )
    done = on_terminal(["doctor"])
    assert "\x1b[31mNOT HELD" in done.out
    assert "\x1b[2J" not in done.out
    assert "\x1b]0" not in done.out


def test_json_is_the_diagnosis(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    found = diagnosis(finding("network", "ok"), ok=False)
    scripted.answer("Manager.Diagnose", found)
    done = lactl("doctor", "--json")
    assert (done.status, json.loads(done.out)) == (1, found["diagnosis"])


def test_without_a_daemon_it_says_so_first_and_looks_at_the_files(
    tmp_path: Path, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "STATE", "RUNTIME"):
        monkeypatch.setenv(f"LIGHTAGENT_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(tmp_path / "none.sock"))
    write(tmp_path / "CONFIG" / "lightagentd.toml", "[daemon]\nmax_conections = 7\n")
    (tmp_path / "STATE").mkdir(mode=0o755)
    done = lactl("doctor", "--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert found["checks"][0]["name"] == "daemon"
    assert "not running" in found["checks"][0]["detail"]
    wrong = {one["name"]: one["detail"] for one in found["checks"] if one["status"] == "wrong"}
    assert "max_conections" in wrong["configuration"]
    assert "chmod" in wrong["state folder"]
    assert lactl("doctor", "ops").status == 69
