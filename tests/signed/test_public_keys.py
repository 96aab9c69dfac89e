"""The keys that sign records, over a change of the key."""

from __future__ import annotations

import os
from pathlib import Path

from lightagentd.signed.public_keys import FORMER, PUBLIC, publish, published

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))


def keys(folder: Path) -> list[tuple[bytes, bool]]:
    """Each with whether it is that of now."""
    return [(one.key, one.until_us is None) for one in published(folder)]


def test_a_replaced_key_is_kept_with_its_time(tmp_path: Path) -> None:
    assert published(tmp_path) == []
    publish(tmp_path, FIRST, mode=0o644)
    os.utime(tmp_path / PUBLIC, (1_000_000_000, 1_000_000_000))
    publish(tmp_path, FIRST, mode=0o644)
    assert not (tmp_path / FORMER).exists()
    [first] = published(tmp_path)
    assert (first.key, first.since_us, first.until_us) == (FIRST, 10**15, None)
    publish(tmp_path, SECOND, mode=0o644)
    former, now = published(tmp_path)
    assert (former.key, former.since_us) == (FIRST, 10**15)
    assert former.until_us is not None
    assert 0 <= now.since_us - former.until_us < 60_000_000
    assert not former.is_of(former.since_us - 1)
    assert former.is_of(former.until_us)
    assert not former.is_of(former.until_us + 61_000_000)
    assert now.is_of(2**60)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        FORMER: 0o644,
        PUBLIC: 0o644,
    }


def test_a_former_key_may_come_back(tmp_path: Path) -> None:
    for key in (FIRST, SECOND, FIRST, FIRST, THIRD):
        publish(tmp_path, key)
    assert keys(tmp_path) == [(FIRST, False), (SECOND, False), (FIRST, False), (THIRD, True)]


def test_a_kill_between_the_two_files_loses_no_key(tmp_path: Path) -> None:
    publish(tmp_path, FIRST)
    publish(tmp_path, SECOND)
    (tmp_path / PUBLIC).write_bytes(FIRST)
    os.utime(tmp_path / PUBLIC, (1_000_000_000, 1_000_000_000))
    assert keys(tmp_path) == [(FIRST, False)]
    publish(tmp_path, SECOND)
    assert keys(tmp_path) == [(FIRST, False), (SECOND, True)]


def test_the_former_key_may_come_back_after_such_a_kill(tmp_path: Path) -> None:
    publish(tmp_path, FIRST)
    publish(tmp_path, SECOND)
    (tmp_path / PUBLIC).write_bytes(FIRST)
    os.utime(tmp_path / PUBLIC, (1_000_000_000, 1_000_000_000))
    assert keys(tmp_path) == [(FIRST, False)]
    publish(tmp_path, FIRST)
    assert keys(tmp_path) == [(FIRST, False), (FIRST, True)]


def test_what_is_no_key_is_left_out(tmp_path: Path) -> None:
    publish(tmp_path, FIRST)
    publish(tmp_path, SECOND)
    with (tmp_path / FORMER).open("a") as file:
        file.write(f"\nAAAA 1 2\n!! 1 2\nx\n{'A' * 43}= now then\n" + "9" * 10_000)
    assert keys(tmp_path) == [(FIRST, False), (SECOND, True)]
    (tmp_path / PUBLIC).write_bytes(b"short")
    assert keys(tmp_path) == [(FIRST, False)]
    (tmp_path / FORMER).unlink()
    os.mkfifo(tmp_path / FORMER)
    (tmp_path / PUBLIC).unlink()
    (tmp_path / PUBLIC).symlink_to("/etc/passwd")
    assert keys(tmp_path) == []
