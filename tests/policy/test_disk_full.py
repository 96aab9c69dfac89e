"""While the disk of the history is nearly full, what observes goes on and every change is refused."""

from __future__ import annotations

import pytest

from lightagentd.errors import PolicyDenied
from lightagentd.policy.decide import Decision, Policy
from lightagentd.policy.replay import Replay
from lightagentd.tool import Effect
from tests.policy.calls import a_call, rules


@pytest.mark.parametrize("table", ["", 'decision = "allow"\ntool = "systemd"\neven_if_tainted = true'])
def test_a_change_is_refused_as_long_as_there_is_no_room(table: str) -> None:
    full = True
    known = rules(table) if table else rules()
    policy = Policy(enforced=lambda: True, trusted_skill=lambda *_: True, rules=known, disk_low=lambda: full)
    ruling = policy.decide(a_call())
    assert (ruling.decision, ruling.rule) == (Decision.DENY, "disk-full")
    assert isinstance(ruling.error, PolicyDenied)
    assert "nearly full" in ruling.error.message
    assert policy.decide(a_call(takes_back=True)).decision is not Decision.DENY
    for effect in (Effect.OBSERVE, Effect.REACH):
        assert policy.decide(a_call(effect=effect)).decision is Decision.ALLOW
    full = False
    assert policy.decide(a_call()).rule.partition(" ")[0] == ("rule-1" if table else "default-change")


def test_a_shell_that_no_sandbox_holds_is_refused_as_a_change() -> None:
    policy = Policy(enforced=lambda: False, trusted_skill=lambda *_: False, disk_low=lambda: True)
    ruling = policy.decide(a_call("bash.exec", effect=Effect.OBSERVE))
    assert (ruling.decision, ruling.rule) == (Decision.DENY, "disk-full")


def test_a_replay_leaves_what_was_refused_for_want_of_room_as_it_is() -> None:
    policy = Policy(enforced=lambda: True, trusted_skill=lambda *_: True, disk_low=lambda: True)
    stored = {
        "decision": "deny",
        "rule": "disk-full",
        "tool": "systemd",
        "action": "restart",
        "args": {},
        "effect": "change",
    }
    judged = Replay(rules('decision = "allow"\ntool = "systemd"'), policy).judge("ops", 1000, stored)
    assert judged is not None
    assert not judged.changed
