"""What the units of the key store and of inspect look at before they answer, whatever the daemon says."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.errors import ApprovalMismatch, ApprovalRequired, LimitExceeded, Panicked, PolicyDenied
from lightagentd.signed.grant import Grant
from lightagentd.signed.statement import Statement
from lightagentd.tool import Effect
from lightagentd.worker.admission import FREE, KeyUse, Questions
from lightagentd.worker.call import Call
from tests.conftest import write

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
TERMS = {"confirm_within_s": 0, "check": "", "inverse": ""}
ARGS = {"handle": "key_0123456789abcdef", "text": "x"}
SIGN = Call(
    call_id="call_0123456789abcdef",
    tool="crypto",
    action="sign",
    args=ARGS,
    agent="ops",
    session="",
    effect=Effect.OBSERVE,
    timeout_s=5.0,
    owner=1000,
    terms=TERMS,
)
ALLOW = '[[rule]]\nname = "sign"\ndecision = "allow"\ntool = ["crypto", "file"]\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "approver").mkdir()
    (tmp_path / "approver/public").write_bytes(KEY.public_key().public_bytes_raw())
    write(tmp_path / "config/policy.d/one.toml", "")
    return tmp_path / "config"


@pytest.fixture
def keys(config: Path) -> Iterator[KeyUse]:
    use = KeyUse(config.parent, config, config.parent / "approver")
    yield use
    use.close()


def signed(call: Call, *, number: int = 1, key: Ed25519PrivateKey = KEY, **other: Any) -> Call:
    """The call with the approver's signature under it, or under another one."""
    facts = {name: getattr(call, name) for name in ("agent", "tool", "action", "call_id", "owner")}
    statement = Statement(**{**facts, "effect": "observe", "args": ARGS, "tool_sha256": "f" * 64, **other})
    grant = Grant(
        digest=statement.digest,
        agent=statement.agent,
        effect="observe",
        owner=statement.owner,
        by=0,
        series="one",
        number=number,
        expires_us=time.time_ns() // 1000 + 60_000_000,
    )
    return replace(call, signed=grant.signed(key))


def test_a_key_is_used_with_a_signature_for_exactly_that_and_once(keys: KeyUse) -> None:
    with pytest.raises(ApprovalRequired):
        keys.call(SIGN, ARGS, "f" * 64)
    once = signed(SIGN)
    keys.call(once, ARGS, "f" * 64)
    for wrong, args, sha256 in (
        (once, ARGS, "f" * 64),
        (signed(SIGN, number=2), {**ARGS, "text": "y"}, "f" * 64),
        (signed(SIGN, number=3), ARGS, "e" * 64),
        (signed(SIGN, number=4, key=Ed25519PrivateKey.generate()), ARGS, "f" * 64),
        (signed(SIGN, number=5, owner=1001), ARGS, "f" * 64),
        (replace(signed(SIGN, number=6), agent="web"), ARGS, "f" * 64),
    ):
        with pytest.raises(ApprovalMismatch):
            keys.call(wrong, args, sha256)


def test_what_uses_no_private_key_is_free(keys: KeyUse, config: Path) -> None:
    write(config.parent / "approver/panic", "")
    for tool, action in FREE:
        keys.call(replace(SIGN, tool=tool, action=action), {}, "f" * 64)
    with pytest.raises(Panicked):
        keys.call(signed(SIGN), ARGS, "f" * 64)


def test_a_rule_counts_where_it_needs_no_word_of_the_daemon(keys: KeyUse, config: Path) -> None:
    rules = config / "policy.d/one.toml"
    for text, allowed in (
        (f"{ALLOW}even_if_tainted = true\n", True),
        (ALLOW, False),
        (f'{ALLOW}even_if_tainted = true\neffect = "change"\n', False),
        (f"{ALLOW}even_if_tainted = true\ncaller = 1000\n", False),
    ):
        rules.write_text(text)
        for effect in (Effect.OBSERVE, Effect.CHANGE):  # the daemon's word too
            if allowed:
                keys.call(replace(SIGN, effect=effect), ARGS, "f" * 64)
                continue
            with pytest.raises(ApprovalRequired):
                keys.call(replace(SIGN, effect=effect), ARGS, "f" * 64)
    rules.write_text('[[rule]]\nname = "no"\ndecision = "deny"\ntool = "crypto"\n')
    with pytest.raises(PolicyDenied):
        keys.call(signed(SIGN), ARGS, "f" * 64)


def test_the_word_of_the_daemon_counts_where_an_administrator_says_so(keys: KeyUse, config: Path) -> None:
    write(config / "lightagentd.toml", "[worker]\ntrust_daemon_keys = true\n")
    keys.call(SIGN, ARGS, "f" * 64)


def test_questions_are_told_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    questions = Questions(per_minute=2)
    with caplog.at_level(logging.INFO):
        questions.call(replace(SIGN, tool="proc", action="info"), {}, "")
        questions.survey(1001)
        for _ in range(3):
            with pytest.raises(LimitExceeded):
                questions.survey(1001)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "proc.info, for agent ops and user 1000 by the word of the daemon"
    assert said[1] == "all processes, for user 1001 by the word of the daemon"
    assert [line for line in said[2:] if "more than 2 questions" in line] == said[2:]
    assert len(said) == 3
