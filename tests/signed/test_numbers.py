"""Statements, grants, and the numbers that are used once."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.errors import ApprovalMismatch, InvalidArgument, StorageError
from lightagentd.signed import numbers
from lightagentd.signed.grant import Grant
from lightagentd.signed.keeping import Log
from lightagentd.signed.numbers import Numbers
from lightagentd.signed.statement import Statement

CALL: dict[str, Any] = {
    "agent": "ops",
    "tool": "file",
    "action": "write",
    "effect": "change",
    "args": {"path": "/x", "content": "é\u202e"},
    "tool_sha256": "0" * 64,
    "call_id": "call_0123456789abcdef",
}


def grant(number: int, *, in_s: float = 60.0) -> Grant:
    return Grant(
        digest="0" * 64,
        agent="ops",
        effect="change",
        owner=0,
        by=1000,
        series="a",
        number=number,
        expires_us=time.time_ns() // 1000 + int(in_s * 1e6),
    )


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """A block in which the disk seems full for a file that is larger (setrlimit(2))."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_each_field_of_a_statement_has_a_part_in_its_digest() -> None:
    plain = Statement.of(CALL)
    others = {
        **{name: "other" for name, value in CALL.items() if isinstance(value, str)},
        **dict.fromkeys(("session", "trigger", "kit", "check", "inverse"), "x"),
        "args": {},
        "expected": {"a": 1},
        "above": ["boss"],
        "owner": 1,
        "confirm_within_s": 1,
    }
    assert {*others} == {*plain.to_dict()}
    digests = {Statement.of({**CALL, name: value}).digest for name, value in others.items()}
    assert len(digests - {plain.digest}) == len(others)


@pytest.mark.parametrize(
    "changed",
    [
        {"more": 1},
        {"owner": True},
        {"owner": "0"},
        {"args": []},
        {"above": [1]},
        {"args": {"a": float("nan")}},
    ],
)
def test_what_is_no_statement_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Statement.of({**CALL, **changed})
    with pytest.raises(InvalidArgument):
        Statement.of({"agent": "ops"})


@pytest.mark.parametrize("changed", [{"by": "1000"}, {"number": True}, {"series": 5}])
def test_a_grant_has_its_fields_and_no_others(changed: dict[str, Any]) -> None:
    key = Ed25519PrivateKey.generate()
    public = [key.public_key().public_bytes_raw()]
    assert Grant.verified(grant(1).signed(key), public).number == 1
    odd = Grant(**{**vars(grant(1)), **changed})
    with pytest.raises(ApprovalMismatch, match="not signed as"):
        Grant.verified(odd.signed(key), public)


def test_a_number_is_used_once_also_by_the_next_process(tmp_path: Path) -> None:
    used = Numbers(tmp_path)
    one = grant(1)
    used.use(one, "call_1")
    with pytest.raises(ApprovalMismatch, match="used already"):
        used.use(one, "call_2")
    used.use(grant(2), "call_2")
    used.close()
    again = Numbers(tmp_path)
    with pytest.raises(ApprovalMismatch, match="used already"):
        again.use(one, "call_3")
    again.close()


def test_a_number_that_was_forgotten_is_refused_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "_REWRITE_BYTES", 100)
    used, old = Numbers(tmp_path), grant(1, in_s=0.02)
    used.use(old, "call_1")
    time.sleep(0.03)
    used.use(grant(2), "call_2")
    used.close()
    again, now_ns = Numbers(tmp_path), time.time_ns()
    assert '"number":1,' not in (tmp_path / numbers.FILE).read_text()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 10**9)
    with pytest.raises(ApprovalMismatch, match="too old"):
        again.use(old, "call_3")
    again.close()


def test_a_full_disk_lets_nothing_be_used_and_a_half_line_does_not_count(tmp_path: Path) -> None:
    used = Numbers(tmp_path)
    used.use(grant(1), "call_1")
    path = tmp_path / numbers.FILE
    whole = path.read_bytes()
    with largest_file(len(whole) + 10), pytest.raises(StorageError, match="cannot be used"):
        used.use(grant(2), "call_2")
    with pytest.raises(StorageError):
        used.use(grant(2), "call_2")
    assert len(path.read_bytes()) == len(whole) + 10
    again = Numbers(tmp_path)
    assert path.read_bytes() == whole
    again.use(grant(2), "call_2")
    again.close()


def test_a_damaged_line_before_others_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(3):
        log.add({"number": number})
    log.close()
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    (tmp_path / "log").write_bytes(lines[0] + lines[1].replace(b"1}", b"7}") + lines[2])
    with pytest.raises(StorageError, match="line 2 is not what was written"):
        Log(tmp_path / "log")
