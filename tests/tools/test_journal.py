"""`tools/journal.py` on journal files that `tests/fake_journal.py` writes: real files, the real library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.toolkit.journal import reader
from tests.fake_journal import write_journal
from tests.tools.conftest import Call, CallContext, Load, is_root

pytestmark = pytest.mark.usefixtures("nothing_left", "utc")
START_US = 1_700_000_000_000_000
"""2023-11-14 22:13:20 UTC."""
OLD, NEW = "0" * 31 + "1", "0" * 31 + "2"
Row = tuple[int, dict[str, str | bytes]]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A journal without files that the tool takes for the system's."""
    found = tmp_path / "journal"
    found.mkdir()
    monkeypatch.setenv("LIGHTAGENT_JOURNAL", str(found))
    return found


def row(after_s: float, message: str | bytes, **fields: str | bytes) -> Row:
    values: dict[str, str | bytes] = {"MESSAGE": message, "PRIORITY": "6", "SYSLOG_IDENTIFIER": "app"}
    return START_US + int(after_s * 1_000_000), {**values, **fields}


def write(folder: Path, *rows: Row) -> None:
    write_journal(folder / "system.journal", list(rows))


@pytest.fixture
def journal(folder: Path) -> Path:
    """Two boots; lines of two units, of systemd about one, and of somebody who claims to be systemd."""
    about = {"SYSLOG_IDENTIFIER": "systemd", "UNIT": "web.service"}
    write(
        folder,
        row(0, "first", _SYSTEMD_UNIT="web.service", _PID="7", _BOOT_ID=OLD),
        row(1, "Query done", _SYSTEMD_UNIT="db.service", _BOOT_ID=OLD, _UID="26"),
        row(2, "query failed", _SYSTEMD_UNIT="db.service", PRIORITY="3", _BOOT_ID=OLD, _UID="26"),
        row(3, "exited", _PID="1", _BOOT_ID=NEW, **about),
        row(4, "forged", _PID="666", _BOOT_ID=NEW, **about),
        row(5, "last", _SYSTEMD_UNIT="web.service", PRIORITY="4", _BOOT_ID=NEW),
    )
    return folder


async def messages(call: Call, **arguments: Any) -> list[str]:
    result = await call("journal", "query", **arguments)
    return [entry["message"] for entry in result.metadata["entries"]]


async def test_query_shows_time_program_pid_priority_and_message(journal: Path, call: Call) -> None:
    result = await call("journal", "query", limit=2)
    assert result.output.splitlines()[:2] == [
        "2023-11-14 22:13:25 app: <warning> last",
        "2023-11-14 22:13:24 systemd[666]: forged",
    ]
    first = result.metadata["entries"][0]
    assert first["time"] == "2023-11-14T22:13:25.000+00:00"
    assert first["unit"] == "web.service"
    assert first["priority"] == 4


async def test_query_is_newest_first_or_oldest_first(journal: Path, call: Call) -> None:
    oldest = await messages(call, order="oldest")
    assert oldest == ["first", "Query done", "query failed", "exited", "forged", "last"]
    assert await messages(call) == oldest[::-1]


async def test_query_of_a_unit_has_its_lines_and_what_systemd_says_of_it(journal: Path, call: Call) -> None:
    assert await messages(call, units=["web"], order="oldest") == ["first", "exited", "last"]


async def test_query_of_several_units_has_the_lines_of_each(journal: Path, call: Call) -> None:
    assert len(await messages(call, units=["web.service", "db"])) == 5


async def test_conditions_of_different_kinds_must_all_hold(journal: Path, call: Call) -> None:
    found = await messages(call, units=["web", "db"], priority="warning", fields={"_UID": "26"})
    assert found == ["query failed"]


async def test_priority_takes_more_urgent_entries_too(journal: Path, call: Call) -> None:
    assert await messages(call, priority="warning") == ["last", "query failed"]
    assert await messages(call, priority="err") == ["query failed"]


async def test_field_priority_narrows_the_argument_priority(journal: Path, call: Call) -> None:
    assert await messages(call, priority="warning", fields={"PRIORITY": "4"}) == ["last"]


async def test_identifier_selects_a_program(journal: Path, call: Call) -> None:
    assert await messages(call, identifier="systemd") == ["forged", "exited"]


async def test_since_and_until_are_inclusive_in_both_orders(journal: Path, call: Call) -> None:
    span = {"since": "2023-11-14 22:13:22", "until": "2023-11-14T22:13:24+00:00"}
    assert await messages(call, **span) == ["forged", "exited", "query failed"]
    assert await messages(call, **span, order="oldest") == ["query failed", "exited", "forged"]


async def test_time_without_a_zone_is_local(
    journal: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XST-2")
    time.tzset()
    result = await call("journal", "query", since="2023-11-15 00:13:25")
    assert result.output.splitlines()[0].startswith("2023-11-15 00:13:25 app:")
    assert "times in XST" in result.output


async def test_words_for_times_are_those_of_the_skills(folder: Path, call: Call) -> None:
    now = datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    moments = {
        "long ago": now - timedelta(days=400),
        "yesterday": midnight - timedelta(days=1, seconds=-1),
        "before boot": datetime.fromtimestamp(int(boot.split()[1])).astimezone() - timedelta(seconds=1),
        "now": now,
    }
    order = sorted(moments, key=moments.__getitem__)
    write(folder, *[row(moments[name].timestamp() - START_US / 1e6, name) for name in order])
    assert await messages(call, since="-1min") == ["now"]
    assert await messages(call, since="-2h", until="-30min") in ([], ["before boot"])
    assert "long ago" not in await messages(call, since="-7d")
    assert "yesterday" not in await messages(call, since="today")
    assert "yesterday" in await messages(call, since="yesterday", until="today")
    assert "yesterday" not in await messages(call, since="yesterday 12:00")
    since_boot = await messages(call, since="boot")
    assert "now" in since_boot
    assert "before boot" not in since_boot


async def test_time_that_is_none_is_refused_with_its_field(journal: Path, call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="'soonish' is no time") as caught:
        await call("journal", "query", until="soonish")
    assert caught.value.field == "until"
    assert "yesterday" in caught.value.suggestion


async def test_boot_is_counted_back_or_named(journal: Path, call: Call) -> None:
    assert await messages(call, boot=0) == ["last", "forged", "exited"]
    assert await messages(call, boot="-1") == ["query failed", "Query done", "first"]
    assert await messages(call, boot=OLD, units=["db"]) == ["query failed", "Query done"]


async def test_boot_that_is_not_there_is_refused(journal: Path, call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="no boot -2: it knows 2"):
        await call("journal", "query", boot=-2)


async def test_text_is_a_part_of_the_message(journal: Path, call: Call) -> None:
    assert await messages(call, text="query") == ["query failed"]
    assert await messages(call, text="query", ignore_case=True) == ["query failed", "Query done"]
    assert await messages(call, text="fail.d") == []


async def test_text_may_be_a_regular_expression(journal: Path, call: Call) -> None:
    assert await messages(call, text="^(first|last)$", regex=True) == ["last", "first"]
    assert await messages(call, text="^QUERY", regex=True, ignore_case=True) == ["query failed", "Query done"]


async def test_expression_that_is_none_is_refused(journal: Path, call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="not a regular expression") as caught:
        await call("journal", "query", text="(", regex=True)
    assert caught.value.field == "text"


async def test_expression_that_does_not_end_is_stopped_and_what_was_found_is_kept(
    folder: Path, call: Call, context: CallContext
) -> None:
    write(folder, row(0, "a" * 64 + "!"), row(1, "aaa"))
    context.timeout_s = 3.0
    result = await call("journal", "query", text="^(a|aa)+$", regex=True)
    assert [entry["message"] for entry in result.metadata["entries"]] == ["aaa"]
    assert result.metadata["stopped"] == "time"
    assert "Stopped when the time was up" in result.output


async def test_expression_that_does_not_end_and_finds_nothing_is_timed_out(
    folder: Path, call: Call, context: CallContext
) -> None:
    write(folder, row(0, "a" * 64 + "!"))
    context.timeout_s = 0.5
    with pytest.raises(errors.TimedOut, match="regular expression found nothing") as caught:
        await call("journal", "query", text="^(a|aa)+$", regex=True)
    assert "since" in caught.value.suggestion


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_cursor_goes_on_without_a_gap_or_a_repetition(journal: Path, call: Call, order: str) -> None:
    found: list[str] = []
    cursor = ""
    for _ in range(3):
        result = await call("journal", "query", order=order, limit=2, after_cursor=cursor)
        found += [entry["message"] for entry in result.metadata["entries"]]
        cursor = result.metadata["next_cursor"]
        assert "after_cursor" in result.output
        assert result.metadata["stopped"] == "limit"
    assert found == await messages(call, order=order)
    end = await call("journal", "query", order=order, limit=2, after_cursor=cursor)
    assert end.metadata["entries"] == []
    assert end.metadata["stopped"] == ""


async def test_cursor_goes_on_where_a_filter_skips_entries(journal: Path, call: Call) -> None:
    first = await call("journal", "query", units=["web"], limit=1)
    cursor = first.metadata["next_cursor"]
    assert await messages(call, units=["web"], after_cursor=cursor) == ["exited", "first"]


async def test_cursor_of_the_oldest_order_finds_entries_that_come_later(folder: Path, call: Call) -> None:
    rows = [row(0, "one"), row(1, "two")]
    write(folder, *rows)
    result = await call("journal", "query", order="oldest")
    write(folder, *rows, row(2, "three"))
    cursor = result.metadata["next_cursor"]
    assert await messages(call, order="oldest", after_cursor=cursor) == ["three"]


async def test_cursor_that_is_none_is_refused(journal: Path, call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="not a cursor") as caught:
        await call("journal", "query", after_cursor="behind the last one")
    assert caught.value.field == "after_cursor"


async def test_long_message_is_shortened_and_says_so(folder: Path, call: Call) -> None:
    write(folder, row(0, "x" * 5000))
    [message] = await messages(call)
    assert message == "x" * reader.MESSAGE_CHARS + " [... 3000 more characters]"


async def test_answer_is_bounded_and_can_be_gone_on_with(folder: Path, call: Call) -> None:
    write(folder, *[row(number, f"{number} " + "\U0001f600" * 1500) for number in range(60)])
    found: list[str] = []
    stops: list[str] = []
    cursor = ""
    while not stops or stops[-1]:
        result = await call("journal", "query", limit=1000, after_cursor=cursor)
        found += [entry["message"].split()[0] for entry in result.metadata["entries"]]
        cursor = result.metadata["next_cursor"]
        stops.append(result.metadata["stopped"])
    assert found == [str(number) for number in range(59, -1, -1)]
    assert stops == ["size", "size", ""]


async def test_binary_and_strange_values_never_break(folder: Path, call: Call) -> None:
    write(
        folder,
        row(0, b"bad \xff\nsecond\x1b[31m line", PRIORITY="urgent", _PID=b"\xfe"),
        row(1, "out of range", COREDUMP_TIMESTAMP="9" * 30, MESSAGE_ID="none", PRIORITY="9"),
        (START_US + 2_000_000, {"_SYSTEMD_UNIT": "silent.service"}),
    )
    result = await call("journal", "query", order="oldest")
    assert result.output.splitlines()[:4] == [
        "2023-11-14 22:13:20 app[\\xfe]: bad \\xff",
        "    second\\x1b[31m line",
        "2023-11-14 22:13:21 app: out of range",
        "2023-11-14 22:13:22 ?: ",
    ]


async def test_damaged_file_is_no_crash(journal: Path, call: Call) -> None:
    whole = (journal / "system.journal").read_bytes()
    (journal / "cut.journal").write_bytes(whole[: len(whole) // 2])
    (journal / "random.journal").write_bytes(b"LPKSHHRH" + bytes(range(256)) * 20)
    assert "last" in await messages(call)


async def test_query_without_a_match_says_so(journal: Path, call: Call) -> None:
    result = await call("journal", "query", units=["nothing"])
    assert result.output == "(no entry)\n0 entries."
    assert result.metadata["next_cursor"] == ""


@pytest.mark.skipif(is_root(), reason="root may read every file")
async def test_query_that_finds_nothing_says_which_files_are_closed(journal: Path, call: Call) -> None:
    write_journal(journal / "other.journal", [row(9, "hidden")])
    (journal / "other.journal").chmod(0)
    result = await call("journal", "query", units=["nothing"])
    assert "1 of 2 journal files may not be read by this user" in result.output


@pytest.mark.skipif(is_root(), reason="root may read every file")
async def test_journal_that_may_not_be_read_names_the_group(journal: Path, call: Call) -> None:
    (journal / "system.journal").chmod(0)
    with pytest.raises(errors.ToolError, match="may not read the journal") as caught:
        await call("journal", "query")
    assert "systemd-journal" in caught.value.suggestion


@pytest.mark.parametrize("action", ["query", "fields", "boots"])
async def test_machine_without_a_journal_is_told(folder: Path, call: Call, action: str) -> None:
    with pytest.raises(errors.ToolError, match="There is no journal on this machine") as caught:
        await call("journal", action)
    assert "systemd-journald" in caught.value.suggestion


async def test_folder_that_is_not_there_is_named(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_JOURNAL", str(folder / "none"))
    with pytest.raises(errors.ToolError, match=r"There is no folder .*/none"):
        await call("journal", "query")


@pytest.mark.parametrize(
    "arguments",
    [
        {"units": ["a b"]},
        {"units": ["--all"], "fields": {"lower": "x"}},
        {"fields": {"A=B": "x"}},
        {"priority": "loud"},
        {"boot": "yesterday"},
        {"limit": 1001},
        {"limit": 0},
        {"order": "random"},
    ],
)
async def test_wrong_arguments_are_refused(call: Call, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        await call("journal", "query", **arguments)


async def test_fields_gives_the_values_of_a_field_sorted(journal: Path, call: Call) -> None:
    result = await call("journal", "fields", name="_SYSTEMD_UNIT")
    assert result.metadata["values"] == ["db.service", "web.service"]
    assert result.output == "db.service\nweb.service\n2 values of _SYSTEMD_UNIT."


async def test_fields_without_a_name_gives_the_names(journal: Path, call: Call) -> None:
    result = await call("journal", "fields")
    assert result.metadata["values"] == sorted(
        ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "UNIT", "_BOOT_ID", "_PID", "_SYSTEMD_UNIT", "_UID"]
    )


async def test_fields_stops_at_its_limit_and_counts_the_rest(folder: Path, call: Call) -> None:
    write(folder, *[row(number, "x", CODE=f"{number:03}" + "y" * 300) for number in range(30)])
    result = await call("journal", "fields", name="CODE", limit=10)
    assert len(result.metadata["values"]) == 10
    assert result.metadata["values"][0].startswith("000yyy")
    assert result.metadata["values"][0].endswith(" [... 103 more characters]")
    assert result.output.endswith("30 values of CODE. 20 more are not shown.")


async def test_boots_are_listed_with_their_first_and_last_entry(journal: Path, call: Call) -> None:
    result = await call("journal", "boots")
    assert [(boot["index"], boot["boot"]) for boot in result.metadata["boots"]] == [(0, NEW), (-1, OLD)]
    assert result.metadata["boots"][1]["first"] == "2023-11-14T22:13:20.000+00:00"
    assert result.metadata["boots"][1]["last"] == "2023-11-14T22:13:22.000+00:00"
    assert result.output.endswith("2 boots.")


async def test_boots_stop_at_their_limit(journal: Path, call: Call) -> None:
    result = await call("journal", "boots", limit=1)
    assert [boot["boot"] for boot in result.metadata["boots"]] == [NEW]
    assert result.metadata["total"] == 2
    assert "Stopped at the limit" in result.output


def test_query_and_fields_taint_and_all_only_observe(load: Load) -> None:
    actions = load("journal").actions
    assert {name: action.taints for name, action in actions.items()} == {
        "query": True,
        "fields": True,
        "boots": False,
    }
    assert {action.effect for action in actions.values()} == {"observe"}


async def test_journals_library_is_not_loaded_into_the_worker(journal: Path, call: Call) -> None:
    """The reader is a process of its own; the worker keeps neither its memory nor its crashes."""
    await call("journal", "query")
    mapped = Path(f"/proc/{os.getpid()}/maps").read_text()
    assert str(journal) not in mapped
