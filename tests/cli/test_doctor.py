"""`lactl doctor`: how findings are shown, its exit status, and what it does without a daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lightagentd import __version__
from lightagentd.cli import doctor
from tests.cli.conftest import Lactl, on_terminal
from tests.conftest import write
from tests.scripted_daemon import ScriptedDaemon


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of a daemon of this test's own."""
    for name in ("CONFIG", "STATE", "RUNTIME"):
        monkeypatch.setenv(f"LIGHTAGENT_{name}_DIR", str(tmp_path / name))
    return tmp_path


def finding(name: str, status: str, detail: str = "", remedy: str = "", group: str = "") -> dict[str, Any]:
    return {"name": name, "status": status, "detail": detail, "group": group, "remedy": remedy}


def diagnosis(*findings: dict[str, Any], ok: bool = True, enforced: bool = True) -> dict[str, Any]:
    worker = {
        "agent": "ops",
        "effect": "observe",
        "backend": "bwrap" if enforced else "none",
        "enforced": enforced,
        "reason": "" if enforced else "bwrap is not installed.",
        "findings": list(findings),
    }
    checks = [finding("history", "ok", "intact", group="history")]
    return {"ok": ok, "workers": [worker], "checks": checks}


def serve(scripted: ScriptedDaemon, found: dict[str, Any], **status: Any) -> None:
    """A daemon of this process that gives this diagnosis; its socket is as it should be."""
    about = {"pid": os.getpid(), "state": "running", "version": __version__, "history": {"events": 1}}
    scripted.answer("Manager.GetStatus", {"status": about | status})
    scripted.answer("Manager.Diagnose", {"diagnosis": found})
    scripted.path.chmod(0o660)


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_what_holds_is_told_in_a_line_each(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    serve(scripted, diagnosis(finding("network", "ok", "refused")))
    done = lactl("doctor", "-v")
    assert "sandbox of ops, observe: bwrap\n" in done.out
    assert ["network", "ok", "refused"] in lines(done.out)
    assert ["history", "ok", "intact"] in lines(done.out)
    assert ["control", "socket", "ok"] in [line[:3] for line in lines(done.out)]


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["ok", "note"], "All that is promised holds."),
        (["ok", "not_tried"], "not everything could be tried"),
    ],
)
def test_what_was_not_tried_is_no_praise(
    statuses: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diagnosis(*(finding(status, status) for status in statuses))
    doctor._show(found, verbose=False)
    assert said in capsys.readouterr().out.splitlines()[0]


def test_what_does_not_hold_is_loud_and_fails(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    bad = finding("network", "not_held", "127.0.0.1", "systemctl revert x")
    serve(scripted, diagnosis(bad, ok=False, enforced=False))
    done = lactl("doctor", "ops", "--models")
    assert done.status == 1
    verdict, problem, remedy, *_ = done.out.splitlines()
    assert verdict == "1 problem, the worst: sandbox of ops, observe."
    assert " ".join(problem.split()) == "NOT HELD sandbox of ops, observe: it enforces nothing: network"
    assert remedy.strip() == "→ bwrap is not installed."
    assert scripted.parameters("Manager.Diagnose") == {"agent": "ops", "models": True}


def test_what_is_wrong_is_shown_with_what_to_do_the_worst_first_and_the_rest_on_request(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    found = [finding("network", "not_held", "127.0.0.1", "revert it"), finding("devices", "ok")]
    found += [finding("escape", "note", "can", "a hint")]
    said = diagnosis(*found, ok=False)
    said["checks"].append(finding("problem 1", "wrong", "The disk is full.", group="daemon"))
    serve(scripted, said)
    out = lactl("doctor").out
    assert out.startswith("2 problems, the worst: network, sandbox of ops, observe.\nNOT HELD")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["NOT", "→", "WRONG"]
    assert not {"devices", "escape"} & set(out.split())
    assert {"devices", "escape"} <= set(lactl("doctor", "--verbose").out.split())


def test_a_terminal_gets_colours_and_no_escapes_from_details(scripted: ScriptedDaemon) -> None:
    bad = finding("network", "not_held", "\x1b[2J\x1b]0;x\x07gone", "\x1b[2Jmend")
    serve(scripted, diagnosis(bad, ok=False))
    done = on_terminal(["doctor"])
    assert "\x1b[31mNOT HELD" in done.out
    assert "mend" in done.out
    assert "\x1b[2J" not in done.out
    assert "\x1b]0" not in done.out


def test_json_is_the_diagnosis_with_what_was_seen_from_outside(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    serve(scripted, diagnosis(finding("network", "not_held"), ok=False))
    done = lactl("doctor", "--json")
    found = json.loads(done.out)
    assert (done.status, found["ok"]) == (1, False)
    assert found["workers"][0]["findings"] == [finding("network", "not_held")]
    assert {"history", "daemon", "control socket", "kernel"} <= {each["name"] for each in found["checks"]}
    assert all(set(each) == {"name", "status", "detail", "group", "remedy"} for each in found["checks"])


def test_a_daemon_older_than_what_is_installed_is_to_be_restarted(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    serve(scripted, diagnosis(), version="0.0.1")
    done = lactl("doctor", "--json")
    version = next(each for each in json.loads(done.out)["checks"] if each["name"] == "version")
    assert (done.status, version["status"]) == (1, "wrong")
    assert "systemctl restart lightagentd" in version["remedy"]


def test_who_may_not_ask_the_daemon_is_told_what_was_not_tried(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    serve(scripted, diagnosis())
    error = {"code": "permission_denied", "message": "You may not.", "field": "", "suggestion": "sudo"}
    scripted.fail("Manager.Diagnose", "org.lightagent1.PermissionDenied", **error)
    found = json.loads(lactl("doctor", "--json").out)
    unknown = next(each for each in found["checks"] if each["name"] == "what the daemon knows")
    assert (unknown["status"], unknown["detail"], unknown["remedy"]) == ("not_tried", "You may not.", "sudo")
    assert found["workers"] == []


def test_without_a_daemon_it_says_so_first_and_looks_at_the_files(
    folders: Path, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(folders / "none.sock"))
    write(folders / "CONFIG" / "lightagentd.toml", "[daemon]\nmax_conections = 7\n")
    (folders / "STATE").mkdir(mode=0o755)
    done = lactl("doctor", "--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert found["checks"][0]["name"] == "daemon"
    assert "not running" in found["checks"][0]["detail"]
    wrong = {one["name"]: one for one in found["checks"] if one["status"] == "wrong"}
    assert "max_conections" in wrong["configuration"]["detail"]
    assert "max_connections" in wrong["configuration"]["remedy"]
    assert "chmod" in wrong["state folder"]["remedy"]
    assert lactl("doctor", "ops").status == 69
