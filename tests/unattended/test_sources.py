"""Where triggers are fired from: real calendars, journal files, folders and devices."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.triggers import TriggerFile
from lightagentd.errors import ConfigError, NotFound
from lightagentd.host.calendar import next_times
from lightagentd.unattended import sources
from lightagentd.unattended.sources import SOURCES, UNIT_FAILED, Batch, check
from tests.fake_journal import write_journal

from .conftest import needs_root

DAY_US = 86_400_000_000
START_US = 1_700_000_000_000_000
Rows = list[tuple[int, dict[str, str | bytes]]]


def trigger(on: str, **keys: Any) -> TriggerFile:
    owner = pwd.getpwuid(os.geteuid()).pw_name
    return TriggerFile.model_validate({"on": on, "agent": "ops", "owner": owner, "prompt": "x", **keys})


def follow(file: TriggerFile, position: str = "") -> AsyncGenerator[Batch, None]:
    return SOURCES[file.on](file, position)


async def happened(
    file: TriggerFile,
    position: str,
    count: int,
    *,
    then: Callable[[], object] | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """So many things that happened, and the last position; `then` runs after the first batch."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(30), aclosing(follow(file, position)) as batches:
        async for batch in batches:
            found += batch.happened
            position = batch.position or position
            if then is not None:
                then()
                then = None
            if len(found) >= count:
                break
    return found, position


# Calendars


async def test_times_are_those_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    found = await next_times("daily", START_US, 3)
    assert [at_us % DAY_US for at_us in found] == [0, 0, 0]
    assert [later - at for at, later in pairwise(found)] == [DAY_US, DAY_US]
    assert await next_times("2001-01-01", START_US) == []
    for bad in ("nonsense", "--help", "", "daily; true"):
        with pytest.raises(ConfigError, match="is no time of a calendar"):
            await next_times(bad, START_US)
    with pytest.raises(ConfigError):
        await check(trigger("timer", calendar="nonsense"))
    await check(trigger("timer", calendar="Mon *-*-* 06:00"))
    await check(trigger("journal", pattern="x"))


async def test_a_timer_tells_what_it_missed_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    file = trigger("timer", calendar="*-*-* *:*:*")
    ago = time.time_ns() // 1000 - 3_500_000
    found, position = await happened(file, str(ago), 9)
    missed = [bool(one.get("missed")) for one in found]
    assert missed == sorted(missed, reverse=True)
    assert (sum(missed) >= 3, missed[-1]) == (True, False)
    steps = {later["at_us"] - at["at_us"] for at, later in pairwise(found)}
    assert steps == {1_000_000}  # none is passed over, however slow this is
    assert int(position) == found[-1]["at_us"]
    assert found[-1]["data"]["calendar"] == "*-*-* *:*:*"


async def test_a_new_timer_missed_nothing_and_a_used_up_one_says_so() -> None:
    file = trigger("timer", calendar="*-*-* *:*:*")
    async with asyncio.timeout(30), aclosing(follow(file)) as batches:
        first = await anext(batches)
        assert (first.happened, bool(first.position)) == ([], True)
        second = await anext(batches)
        assert [bool(one.get("missed")) for one in second.happened] == [False]
    with pytest.raises(ConfigError, match="has no time any more"):
        await happened(trigger("timer", calendar="2001-01-01"), "", 1)


async def test_a_clock_that_was_set_forward_fires_once_and_the_rest_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = trigger("timer", calendar="*-*-* *:*:00")
    shift_s = 0.0
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + shift_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + round(shift_s * 1e9))
    monkeypatch.setattr(sources, "_CHUNK_S", 0.1)
    async with asyncio.timeout(30), aclosing(follow(file)) as batches:
        await anext(batches)
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.3)
        shift_s = 600.0
        batch = await waiting
    assert [one["missed"] for one in batch.happened] == [True] * (len(batch.happened) - 1) + [False]
    assert len(batch.happened) in (10, 11)


# The journal


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    found = tmp_path / "journal"
    found.mkdir()
    monkeypatch.setenv("LIGHTAGENT_JOURNAL", str(found))
    return found


def row(after_s: float, message: str, **fields: str | bytes) -> tuple[int, dict[str, str | bytes]]:
    return START_US + int(after_s * 1e6), {"MESSAGE": message, "PRIORITY": "6", **fields}


async def test_entries_that_fit_are_told_once_and_from_the_position_on(folder: Path) -> None:
    fits: dict[str, str | bytes] = {"_SYSTEMD_UNIT": "web.service", "PRIORITY": "3"}
    rows: Rows = [row(0, "failed before", **fits)]
    write_journal(folder / "a.journal", rows)
    file = trigger("journal", match={"_SYSTEMD_UNIT": "web*", "PRIORITY": "3"}, pattern="fail")
    async with aclosing(follow(file)) as batches:
        position = (await anext(batches)).position
    rows += [
        row(1, "it failed", **fits),
        row(2, "all well", **fits),
        row(3, "it failed", **{**fits, "PRIORITY": "4"}),
        row(4, "it failed", **{**fits, "_SYSTEMD_UNIT": "db.service"}),
        row(5, "failed again", **fits, BYTES=b"\xff\x00"),
    ]
    write_journal(folder / "a.journal", rows)
    found, position = await happened(file, position, 2)
    assert [one["data"]["message"] for one in found] == ["it failed", "failed again"]
    assert {one["missed"] for one in found} == {True}
    assert found[0]["data"]["unit"] == "web.service"
    assert found[1]["data"]["_SYSTEMD_UNIT"] == "web.service"
    rows.append(row(6, "failed once more", **fits))
    write_journal(folder / "a.journal", rows)
    found, _ = await happened(file, position, 1)
    assert [one["data"]["message"] for one in found] == ["failed once more"]


@pytest.mark.parametrize("match", [{}, {"PRIORITY": "3"}])  # nothing of before fits the second
async def test_a_new_entry_is_told_as_it_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, match: dict[str, str]
) -> None:
    monkeypatch.setattr(sources, "_CHUNK_S", 0.3)  # libsystemd looks itself only for what journald tells it
    rows: Rows = [row(0, "start")]
    write_journal(folder / "a.journal", rows)
    later = row(time.time() + 3600 - START_US / 1e6, "failed now", PRIORITY="3")

    def add() -> None:
        write_journal(folder / "b.journal", [later])

    found, _ = await happened(trigger("journal", pattern="fail", match=match), "", 1, then=add)
    assert [(one["data"]["message"], one["missed"]) for one in found] == [("failed now", False)]


async def test_after_entries_that_are_gone_nothing_is_passed_over(folder: Path) -> None:
    rows: Rows = [row(number, f"failed {number}") for number in range(5)]
    write_journal(folder / "a.journal", rows[:2])
    file = trigger("journal", pattern="fail")
    async with aclosing(follow(file)) as batches:
        position = (await anext(batches)).position
    write_journal(folder / "a.journal", [rows[0], *rows[2:]])
    found, _ = await happened(file, position, 3)
    assert [one["data"]["message"] for one in found] == ["failed 2", "failed 3", "failed 4"]


async def test_a_failed_unit_is_what_the_service_manager_says(folder: Path) -> None:
    write_journal(folder / "a.journal", [row(0, "start")])
    file = trigger("unit-failed", unit="*.service")
    async with aclosing(follow(file)) as batches:
        position = (await anext(batches)).position
    began_us = int(position.removeprefix("@"))
    whose: dict[str, str | bytes] = {"_PID": "1"}
    of_unit = "UNIT"
    if os.geteuid() != 0:
        whose, of_unit = {"_COMM": "systemd", "_UID": str(os.geteuid())}, "USER_UNIT"
    failed: dict[str, str | bytes] = {"MESSAGE_ID": UNIT_FAILED, "UNIT_RESULT": "oom-kill"}
    after_s = (began_us - START_US) / 1e6 + 1
    rows: Rows = [
        row(after_s + 1, "forged", **failed, _PID="4711", **{of_unit: "forged.service"}),
        row(after_s + 2, "web failed", **failed, **whose, **{of_unit: "web.service"}),
        row(after_s + 3, "mount failed", **failed, **whose, **{of_unit: "srv.mount"}),
        row(after_s + 4, "own", **failed, **whose, **{of_unit: "lightagent-triage@x.service.service"}),
        row(after_s + 5, "started", MESSAGE_ID="0" * 32, **whose, **{of_unit: "web.service"}),
        row(after_s + 6, "db failed", **failed, **whose, **{of_unit: "db.service"}),
    ]
    write_journal(folder / "a.journal", rows)
    found, _ = await happened(file, position, 2)
    assert [one["data"]["unit"] for one in found] == ["web.service", "db.service"]
    assert found[0]["data"]["result"] == "oom-kill"


async def test_a_field_that_cannot_be_one_is_said_to_be_so(folder: Path) -> None:
    write_journal(folder / "a.journal", [row(0, "start")])
    with pytest.raises(ConfigError, match="'no field' is no field of the journal"):
        await happened(trigger("journal", match={"no field": "x"}), "", 1)


# Files


async def test_changes_in_a_folder_are_told_and_those_of_before_were_missed(tmp_path: Path) -> None:
    watched = tmp_path / "in"
    watched.mkdir()
    file = trigger("inotify", path=str(watched), include=["*.csv"], changes=["close_write", "delete"])

    def add() -> None:
        (watched / "a.txt").write_text("no")
        (watched / "a.csv").write_text("yes")

    found, position = await happened(file, "", 1, then=add)
    assert [(one["data"]["path"], one["data"]["kind"]) for one in found] == [
        (f"{watched}/a.csv", "close_write")
    ]
    assert not found[0]["missed"]
    (watched / "late.csv").write_text("missed")
    found, _ = await happened(file, position, 1)
    assert [(one["data"]["path"], one["missed"]) for one in found] == [(f"{watched}/late.csv", True)]


async def test_one_file_is_watched_by_its_name_and_what_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.write_text("x")
    found, _ = await happened(trigger("inotify", path=str(one)), "", 1, then=lambda: one.write_text("y"))
    assert found[0]["data"]["path"] == str(one)
    with pytest.raises(NotFound, match="to watch"):
        await happened(trigger("inotify", path=str(tmp_path / "gone")), "", 1)


# Devices


def device_event(action: str, name: str) -> bytes:
    """A message as systemd-udevd sends it to its listeners (libudev's monitor, in network byte order)."""
    known = {"ACTION": action, "DEVPATH": f"/devices/virtual/mem/{name}", "SUBSYSTEM": "mem", "SEQNUM": "1"}
    known |= {"DEVNAME": f"/dev/{name}", "MAJOR": "1", "MINOR": "3", "USEC_INITIALIZED": "1"}
    properties = b"".join(f"{key}={value}\0".encode() for key, value in known.items())
    head_bytes = 40
    head = struct.pack("=8s", b"libudev\0") + struct.pack(">I", 0xFEEDCAFE)
    head += struct.pack("=III", head_bytes, head_bytes, len(properties)) + bytes(16)
    return head + properties


@needs_root
async def test_devices_that_fit_are_told_as_they_come() -> None:
    kernel_events, listeners = 15, 2
    file = trigger("udev", action="change", match={"DEVNAME": "/dev/n*"})
    async with aclosing(follow(file)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.2)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, kernel_events) as sender:
            sender.bind((0, 0))
            for action, name in (("add", "null"), ("change", "zero"), ("change", "null")):
                sender.sendto(device_event(action, name), (0, listeners))
        async with asyncio.timeout(30):
            batch = await waiting
    (one,) = batch.happened
    assert (one["data"]["DEVNAME"], one["data"]["action"], one["data"]["subsystem"]) == (
        "/dev/null",
        "change",
        "mem",
    )
