"""`lactl confirm`, and what `lactl approve` says beyond once."""

from __future__ import annotations

import json
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
PROPOSAL: dict[str, Any] = {
    "approval": ID,
    "name": "allow-x",
    "path": "/etc/lightagentd/policy.d/50-allow-x.toml",
    "text": '[[rule]]\nname = "allow-x"\n',
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
    for wrong in (["--tainted"], ["--yes"], ["--session", "--yes"]):
        assert lactl("approve", ID, *wrong).status == 2


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


@pytest.mark.parametrize(
    ("typed", "verdict"),
    [("s", "session"), ("Session", "session"), ("a", "always"), ("y", "yes"), ("s no", ""), ("always x", "")],
)
def test_the_words_of_an_answer(typed: str, verdict: str) -> None:
    assert decision(f"{typed}\n") == (verdict, "")


def test_json_has_the_whole_change(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Confirmations.List", {"confirmations": [CHANGE]})
    assert json.loads(lactl("confirm", "--json").out) == [CHANGE]
