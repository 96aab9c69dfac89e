"""`lactl confirm`, and what `lactl approve` says beyond once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lightagentd.cli.question import decision
from tests.cli.conftest import Lactl
from tests.scripted_daemon import ScriptedDaemon, approval

ID = "apr_0123456789abcdef"
CHANGE = {
    "id": "call_0123456789abcdef",
    "state": "waiting",
    "left_s": 252.5,
    "agent": "ops",
    "tool": "bash",
    "action": "exec",
    "what": '{"command": "x\x1b[2J"}',
    "back": 'bash.exec {"command": "y\t"}',
    "why": "",
}
EXACT = """name = "allow-x"
decision = "allow"
agent = "ops"
tool = "file"
action = "write"
effect = "change"
"""
RULE = f'[[rule]]\n{EXACT}exactly = {{ path = "/etc/motd", content = "hello" }}\n'
PROPOSAL: dict[str, Any] = {
    "approval": ID,
    "name": "allow-x",
    "path": "/etc/lightagentd/policy.d/50-allow-x.toml",
    "text": RULE,
    "sha256": "1" * 64,
    "words": "It lets ops make exactly this call.",
    "judged": 7,
    "allowed": 1,
    "past": [
        {"time_us": 1_763_768_400_000_000, "tool": "bash", "action": "exec", "args": {"command": "a\x1b[2J"}}
    ],
}


def test_what_waits_is_listed_and_confirmed(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Confirmations.List", {"confirmations": [CHANGE]})
    line = lactl("confirm").out.rstrip("\n").split("\t")
    assert line[:5] == ["call_0123456789abcdef", "waiting", "4m12s", "ops", "bash.exec"]
    assert "\x1b" not in lactl("confirm").out
    scripted.answer("Confirmations.Confirm", {"confirmation": {**CHANGE, "state": "confirmed"}})
    done = lactl("confirm", "call_01")
    assert (done.status, done.out.split("\t")[0].strip()) == (0, "call_0123456789abcdef")
    assert scripted.parameters("Confirmations.Confirm") == {"call_id": "call_0123456789abcdef"}
    assert lactl("confirm", "--all", "call_01").status == 2


def test_terms_and_leaves_are_sent(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    granted = approval(state="granted", confirm_within_s=300, inverse="ip link set eth0 up")
    scripted.answer("Approvals.Get", {"approval": approval()})
    scripted.answer("Approvals.Approve", {"approval": granted})
    done = lactl(
        "approve", ID, "--confirm-within", "5m", "--inverse", "ip link set eth0 up", "--check", "true"
    )
    assert done.status == 0
    assert scripted.parameters("Approvals.Approve") == {
        "approval": ID,
        "confirm_within": "5m",
        "inverse": "ip link set eth0 up",
        "check": "true",
    }
    assert lactl("approve", ID, "--session", "--tainted").status == 0
    sent = {"approval": ID, "for_session": True, "tainted": True}
    assert scripted.calls[-1]["parameters"] == sent
    assert lactl("approve", ID, "--tainted").status == 2


def test_a_rule_is_shown_and_written_only_after_a_yes(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Approvals.Get", {"approval": approval()})
    scripted.answer("Approvals.ProposeRule", {"proposal": PROPOSAL})
    scripted.answer("Approvals.WriteRule", {"path": PROPOSAL["path"]})
    scripted.answer("Approvals.Approve", {"approval": approval(state="granted")})
    done = lactl("approve", ID, "--rule")
    assert done.status != 0
    for part in ("exactly this call", PROPOSAL["path"], 'name = "allow-x"', "1 of the last 7"):
        assert part in done.out
    assert "\x1b" not in done.out
    assert not [
        one for one in scripted.calls if one["method"] in ("Approvals.WriteRule", "Approvals.Approve")
    ]
    assert lactl("approve", ID, "--rule", "--yes").status == 0
    assert scripted.parameters("Approvals.WriteRule") == {"approval": ID, "sha256": "1" * 64}
    assert scripted.parameters("Approvals.Approve")["digest"] == "0" * 64


@pytest.mark.skipif(os.geteuid() != 0, reason="another user writes no file of root's")
@pytest.mark.parametrize(
    ("folder", "text", "said"),
    [
        ("policy.d", RULE, ""),
        ("policy.d", f"[[rule]]\n{EXACT}", "something else"),
        ("policy.d", RULE.replace("hello", "bye"), "something else"),
        ("policy.d", f"{RULE}{RULE.replace('allow-x', 'y')}", "something else"),
        ("policy.d/../..", RULE, "not in the folder"),
    ],
)
def test_root_writes_the_rule_that_the_daemon_cannot_write(
    scripted: ScriptedDaemon,
    lactl: Lactl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    text: str,
    said: str,
) -> None:
    monkeypatch.setenv("LIGHTAGENT_CONFIG_DIR", str(tmp_path))
    path = tmp_path / folder / "50-x.toml"
    scripted.answer("Approvals.Get", {"approval": approval(state="denied")})
    scripted.answer("Approvals.ProposeRule", {"proposal": PROPOSAL | {"path": str(path), "text": text}})
    refused = {"message": "It cannot write there.", "suggestion": ""}
    scripted.fail("Approvals.WriteRule", "org.lightagent1.PermissionDenied", **refused)
    scripted.answer("Manager.Reload", {"restart": []})
    done = lactl("approve", ID, "--rule", "--yes")
    assert (done.status == 0, path.exists()) == (not said, not said), done
    assert said in done.err
    if not said:
        assert path.read_text() == text
        assert lactl("approve", ID, "--rule", "--yes").status != 0, "it is left as it is"


@pytest.mark.parametrize(
    ("typed", "verdict"),
    [("s", "session"), ("Session", "session"), ("a", "always"), ("y", "yes"), ("s no", ""), ("always x", "")],
)
def test_the_words_of_an_answer(typed: str, verdict: str) -> None:
    assert decision(f"{typed}\n") == (verdict, "")


def test_json_has_the_whole_change(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Confirmations.List", {"confirmations": [CHANGE]})
    assert json.loads(lactl("confirm", "--json").out) == [CHANGE]
