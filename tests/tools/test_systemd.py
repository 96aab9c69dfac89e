"""The tool systemd against a fake systemd on a real, private bus; and where there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.bus.connection import Variant
from lightagentd.tool import Effect
from tests.fake_journal import write_journal
from tests.fake_systemd import FakeUnit, fake_systemd, private_bus
from tests.tools.conftest import AskPreview, Call, CallContext, Load

pytestmark = pytest.mark.usefixtures("nothing_left")
NEVER = 2**64 - 1


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A private bus that the tool takes for the system bus, and a journal without entries."""
    with private_bus() as found:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", found)
        monkeypatch.setenv("LIGHTAGENT_JOURNAL", str(tmp_path))
        yield found


def web(**changes: object) -> FakeUnit:
    unit = FakeUnit("web.service", description="A web server", active="active", sub="running")
    unit.unit = {
        "StateChangeTimestamp": Variant("t", 1_700_000_000_000_000),
        "UnitFileState": Variant("s", "enabled"),
        "TriggeredBy": Variant("as", ["web.socket"]),
        "Documentation": Variant("as", ["man:web(8)"]),
        "NeedDaemonReload": Variant("b", False),
        "Requires": Variant("as", ["db.service", "system.slice"]),
        "RequiredBy": Variant("as", ["shop.target"]),
    }
    unit.typed = {
        "MainPID": Variant("u", 4242),
        "Result": Variant("s", "success"),
        "MemoryCurrent": Variant("t", 3 * 2**20),
        "CPUUsageNSec": Variant("t", 1_500_000_000),
        "TasksCurrent": Variant("t", NEVER),
        "ExecMainCode": Variant("i", 0),
        "ExecMainStatus": Variant("i", 0),
        "ExecMainExitTimestamp": Variant("t", 0),
        "NRestarts": Variant("u", 2),
    }
    for key, value in changes.items():
        setattr(unit, key, value)
    return unit


def broken() -> FakeUnit:
    unit = FakeUnit("broken.service", active="failed", sub="failed", start_result="failed")
    unit.typed = {
        "Result": Variant("s", "exit-code"),
        "ExecMainCode": Variant("i", 1),
        "ExecMainStatus": Variant("i", 203),
        "ExecMainExitTimestamp": Variant("t", 1_700_000_000_000_000),
    }
    return unit


async def test_list_shows_failed_units_first_and_counts(address: str, call: Call) -> None:
    async with fake_systemd(address, web(), broken(), FakeUnit("a.timer")):
        result = await call("systemd", "list")
    lines = result.output.splitlines()
    assert lines[0].split()[:4] == ["broken.service", "loaded", "failed", "failed"]
    assert lines[-1] == "3 units, 1 failed."
    assert [unit["name"] for unit in result.metadata["units"]] == ["broken.service", "a.timer", "web.service"]


async def test_list_filters_by_state_type_and_part_of_the_name(address: str, call: Call) -> None:
    async with fake_systemd(address, web(), broken(), FakeUnit("web.timer"), FakeUnit("a.timer")):
        by_state = await call("systemd", "list", state="failed")
        by_type = await call("systemd", "list", type="timer")
        by_part = await call("systemd", "list", pattern="eb.")
        by_glob = await call("systemd", "list", pattern="?.timer")
    names = [
        [unit["name"] for unit in found.metadata["units"]] for found in (by_state, by_type, by_part, by_glob)
    ]
    assert names == [["broken.service"], ["a.timer", "web.timer"], ["web.service", "web.timer"], ["a.timer"]]


async def test_list_says_how_many_units_a_limit_left_out(address: str, call: Call) -> None:
    async with fake_systemd(address, *(FakeUnit(f"u{number}.service") for number in range(5))):
        result = await call("systemd", "list", limit=2)
    assert len(result.metadata["units"]) == 2
    assert "5 units, 0 failed. 3 more are not shown." in result.output


async def test_status_shows_state_process_resources_and_triggers(address: str, call: Call) -> None:
    async with fake_systemd(address, web()):
        result = await call("systemd", "status", unit="web")
    for line in (
        "web.service - A web server",
        "Active: active (running) since 2023-11-14 22:13:20 UTC",
        "Loaded: loaded, enabled",
        "Main pid: 4242",
        "Memory: 3.0 MiB",
        "CPU: 1.5 s",
        "Restarts: 2",
        "Triggered by: web.socket",
        "Documentation: man:web(8)",
    ):
        assert line in result.output.splitlines()
    assert "Tasks" not in result.output, "a number that systemd does not have must not be shown"
    assert result.metadata["tasks"] is None
    assert result.metadata["cpu_s"] == 1.5


async def test_status_of_a_failed_unit_has_result_and_exit_status(address: str, call: Call) -> None:
    async with fake_systemd(address, broken()):
        result = await call("systemd", "status", unit="broken.service")
    assert "Result: exit-code, exit status 203" in result.output
    assert result.metadata["main_exit_status"] == 203


async def test_status_of_a_timer_has_its_next_run(address: str, call: Call) -> None:
    timer = FakeUnit("a.timer", active="active", sub="waiting")
    timer.typed = {
        "NextElapseUSecRealtime": Variant("t", 1_700_000_000_000_000),
        "LastTriggerUSec": Variant("t", 0),
    }
    async with fake_systemd(address, timer):
        result = await call("systemd", "status", unit="a.timer")
    assert "Next run: 2023-11-14 22:13:20 UTC" in result.output
    assert "Last run" not in result.output


async def test_unknown_unit_is_not_found_with_near_names(address: str, call: Call) -> None:
    async with fake_systemd(address, web(), broken()):
        with pytest.raises(errors.NotFound, match=r"no unit wep\.service") as caught:
            await call("systemd", "status", unit="wep")
    assert "web.service" in caught.value.suggestion


@pytest.mark.parametrize(
    ("given", "complete"),
    [
        ("web", "web.service"),
        ("web.timer", "web.timer"),
        ("getty@tty1", "getty@tty1.service"),
        ("my.app", "my.app.service"),
        ("-.mount", "-.mount"),
        ("dev-disk-by\\x2duuid.device", "dev-disk-by\\x2duuid.device"),
    ],
)
def test_unit_names_are_completed(load: Load, given: str, complete: str) -> None:
    assert load("systemd").actions["start"].args_model.model_validate({"unit": given}).model_dump() == {
        "unit": complete
    }


@pytest.mark.parametrize("name", ["", "a b", "../x", "web;reboot", "x" * 256, "ä.service", "*.service"])
def test_other_unit_names_are_refused(load: Load, name: str) -> None:
    with pytest.raises(ValidationError):
        load("systemd").actions["start"].args_model.model_validate({"unit": name})


async def test_cat_shows_the_unit_file_and_its_drop_ins(address: str, call: Call, tmp_path: Path) -> None:
    fragment, drop_in = tmp_path / "web.service", tmp_path / "limit.conf"
    fragment.write_bytes(b"[Service]\nExecStart=/bin/web \xff\n")
    drop_in.write_text("[Service]\nLimitNOFILE=5\n")
    unit = web()
    paths = {"FragmentPath": Variant("s", str(fragment)), "DropInPaths": Variant("as", [str(drop_in)])}
    unit.unit |= {**paths, "NeedDaemonReload": Variant("b", True)}
    async with fake_systemd(address, unit):
        result = await call("systemd", "cat", unit="web")
    assert f"# {fragment}\n[Service]\nExecStart=/bin/web \ufffd" in result.output
    assert f"# {drop_in}\n[Service]\nLimitNOFILE=5" in result.output
    assert "systemctl daemon-reload" in result.output


async def test_cat_of_a_missing_or_masked_file_says_so(address: str, call: Call, tmp_path: Path) -> None:
    masked, gone, bare = web(name="m.service"), web(name="g.service"), web(name="b.service")
    masked.unit = {"FragmentPath": Variant("s", "/dev/null")}
    gone.unit = {"FragmentPath": Variant("s", str(tmp_path / "gone"))}
    async with fake_systemd(address, masked, gone, bare):
        assert "not a regular file" in (await call("systemd", "cat", unit="m")).output
        assert "cannot be read: No such file" in (await call("systemd", "cat", unit="g")).output
        assert "has no file" in (await call("systemd", "cat", unit="b")).output


async def test_dependencies_are_a_tree_with_states_and_end_in_a_cycle(address: str, call: Call) -> None:
    database = FakeUnit("db.service", active="failed", sub="failed")
    database.unit = {"Wants": Variant("as", ["web.service", "log.service"])}
    async with fake_systemd(address, web(), database):
        result = await call("systemd", "dependencies", unit="web", depth=5)
    assert result.output.splitlines() == [
        "web.service  active",
        "  db.service  failed",
        "    log.service  not loaded",
        "    web.service  active  (shown above)",
        "  system.slice  not loaded",
    ]


async def test_dependencies_stop_at_their_depth_and_go_backwards(address: str, call: Call) -> None:
    database = FakeUnit("db.service")
    database.unit = {"Wants": Variant("as", ["log.service"])}
    async with fake_systemd(address, web(), database):
        flat = await call("systemd", "dependencies", unit="web", depth=1)
        back = await call("systemd", "dependencies", unit="web", reverse=True)
    assert "log.service" not in flat.output
    assert back.output.splitlines() == ["web.service  active", "  shop.target  not loaded"]


async def test_dependencies_are_bounded(address: str, call: Call) -> None:
    unit = web()
    unit.unit = {"Wants": Variant("as", [f"n{number}.service" for number in range(300)])}
    async with fake_systemd(address, unit):
        result = await call("systemd", "dependencies", unit="web")
    assert result.output.endswith("100 more are not shown.")
    assert result.metadata["left_out"] == 100


async def test_start_waits_for_its_own_job(address: str, call: Call) -> None:
    """The fake reports somebody else's failed job first."""
    async with fake_systemd(address, FakeUnit("app.service")) as fake:
        result = await call("systemd", "start", unit="app")
        assert fake.called.index("Subscribe") < fake.called.index("StartUnit")
    assert "it was inactive and is active (running)" in result.output
    assert result.metadata["job_result"] == "done"


async def test_failed_start_is_an_error_with_result_and_log(address: str, call: Call) -> None:
    async with fake_systemd(address, broken()):
        with pytest.raises(errors.ToolError) as caught:
            await call("systemd", "start", unit="broken")
    message = caught.value.message
    assert "The start of broken.service failed (job: failed)" in message
    assert "exit-code, exit status 203" in message
    assert "The journal has no such lines of broken.service." in message
    assert "systemd logs broken.service" in caught.value.suggestion


async def test_start_that_is_done_but_fails_at_once_is_an_error(address: str, call: Call) -> None:
    unit = FakeUnit("app.service", state_after_start=("activating", "auto-restart"))
    async with fake_systemd(address, unit):
        with pytest.raises(errors.ToolError, match=r"restart of app\.service failed"):
            await call("systemd", "restart", unit="app")


async def test_stop_waits_and_reports_the_new_state(address: str, call: Call) -> None:
    async with fake_systemd(address, web()):
        result = await call("systemd", "stop", unit="web")
    assert "it was active and is inactive (dead)" in result.output


async def test_reload_of_a_unit_that_cannot_is_a_conflict(address: str, call: Call) -> None:
    async with fake_systemd(address, web(can_reload=False)):
        with pytest.raises(errors.Conflict, match="reload is not applicable"):
            await call("systemd", "reload", unit="web")


async def test_start_of_a_masked_unit_is_a_conflict(address: str, call: Call) -> None:
    async with fake_systemd(address, FakeUnit("m.service", load="masked")):
        with pytest.raises(errors.Conflict, match="is masked"):
            await call("systemd", "start", unit="m")


async def test_start_that_takes_too_long_times_out_and_says_that_the_job_goes_on(
    address: str, call: Call, context: CallContext
) -> None:
    context.timeout_s = 3.0
    async with fake_systemd(address, FakeUnit("slow.service", start_result="")):
        with pytest.raises(errors.TimedOut, match="the job goes on"):
            await call("systemd", "start", unit="slow")


async def test_what_polkit_refuses_is_permission_denied(address: str, call: Call) -> None:
    async with fake_systemd(address, web()) as fake:
        fake.refuses = {"StopUnit", "EnableUnitFiles"}
        for action in ("stop", "enable"):
            with pytest.raises(errors.PermissionDenied, match="authentication required"):
                await call("systemd", action, unit="web")


async def test_enable_and_disable_say_what_changed_and_reload_systemd(address: str, call: Call) -> None:
    async with fake_systemd(address, web()) as fake:
        first = await call("systemd", "enable", unit="web")
        again = await call("systemd", "enable", unit="web")
        assert fake.called.count("Reload") == 2
        removed = await call("systemd", "disable", unit="web")
        assert fake.enabled == set()
    link = "/etc/systemd/system/multi-user.target.wants/web.service"
    assert first.output == f"web.service is enabled.\nsymlink: {link} -> /usr/lib/systemd/system/web.service"
    assert again.output == "web.service was enabled already."
    assert removed.output == f"web.service is disabled.\nunlink: {link}"


async def test_enable_without_an_install_section_is_an_error(address: str, call: Call) -> None:
    async with fake_systemd(address, web(installs=False)):
        with pytest.raises(errors.ToolError, match=r"no \[Install\] section"):
            await call("systemd", "enable", unit="web")


@pytest.fixture
def journal(address: str, tmp_path: Path) -> None:
    """A journal with lines of two units, of systemd about one, and of somebody who claims to be systemd."""

    def line(after_s: int, message: str | bytes, **fields: str) -> tuple[int, dict[str, str | bytes]]:
        row: dict[str, str | bytes] = {
            "MESSAGE": message,
            "PRIORITY": "6",
            "SYSLOG_IDENTIFIER": "app",
            **fields,
        }
        return 1_700_000_000_000_000 + after_s * 1_000_000, row

    about = {"SYSLOG_IDENTIFIER": "systemd", "UNIT": "broken.service"}
    lines = [
        line(0, "first", _SYSTEMD_UNIT="broken.service", _PID="7"),
        # Anybody may log such a field; the library's converter for it raises OverflowError.
        line(1, "hostile", _SYSTEMD_UNIT="hostile.service", COREDUMP_TIMESTAMP="9" * 30),
        line(1, "of another unit", _SYSTEMD_UNIT="web.service"),
        line(2, b"bad \xff\nbyte", _SYSTEMD_UNIT="broken.service", PRIORITY="3"),
        line(3, "exited", _PID="1", **about),
        line(4, "forged", _PID="666", **about),
    ]
    write_journal(tmp_path / "system.journal", lines)


async def test_logs_show_a_units_lines_and_what_systemd_says_of_it(journal: None, call: Call) -> None:
    result = await call("systemd", "logs", unit="broken")
    assert result.output.splitlines() == [
        "2023-11-14 22:13:20 app[7]: first",
        "2023-11-14 22:13:22 app: <err> bad \\xff",
        "    byte",
        "2023-11-14 22:13:23 systemd[1]: exited",
    ]


async def test_no_logged_field_can_break_the_reading(journal: None, call: Call) -> None:
    result = await call("systemd", "logs", unit="hostile")
    assert result.output.endswith("hostile")


async def test_logs_are_the_newest_lines_since_a_time_and_of_a_priority(journal: None, call: Call) -> None:
    newest = await call("systemd", "logs", unit="broken", lines=1)
    since = await call("systemd", "logs", unit="broken", since="2023-11-14T22:13:23")
    urgent = await call("systemd", "logs", unit="broken", priority="warning")
    assert newest.output == since.output == "2023-11-14 22:13:23 systemd[1]: exited"
    assert urgent.metadata["lines"] == 1
    assert "<err> bad" in urgent.output


async def test_failed_start_and_status_show_the_last_log_lines(
    journal: None, address: str, call: Call
) -> None:
    async with fake_systemd(address, broken()):
        with pytest.raises(errors.ToolError, match=r"systemd\[1\]: exited"):
            await call("systemd", "start", unit="broken")
        assert "systemd[1]: exited" in (await call("systemd", "status", unit="broken")).output


async def test_logs_without_lines_say_so(address: str, call: Call) -> None:
    result = await call("systemd", "logs", unit="web", since="2h", priority="err")
    assert result.output == "The journal has no such lines of web.service."
    assert result.metadata["lines"] == 0


async def test_logs_refuse_a_time_that_is_none(address: str, call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="'yesterdayish' is no time"):
        await call("systemd", "logs", unit="web", since="yesterdayish")


async def test_bus_without_systemd_is_systemd_unavailable(address: str, call: Call) -> None:
    with pytest.raises(errors.SystemdUnavailable, match="systemd does not answer"):
        await call("systemd", "list")


async def test_machine_without_a_bus_is_systemd_unavailable(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with pytest.raises(errors.SystemdUnavailable, match="cannot be reached") as caught:
        await call("systemd", "start", unit="web")
    assert "proc" in caught.value.suggestion


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs on this machine")
async def test_machine_without_systemd_is_systemd_unavailable(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS", raising=False)
    with pytest.raises(errors.SystemdUnavailable, match="not running on this machine"):
        await call("systemd", "list")


async def test_calls_beside_each_other_do_not_disturb(address: str, call: Call) -> None:
    units = [FakeUnit(f"u{number}.service") for number in range(8)]
    async with fake_systemd(address, *units):
        results = await asyncio.gather(*(call("systemd", "start", unit=unit.name) for unit in units))
    assert all("is active (running)" in result.output for result in results)


def test_effects_and_taints_are_declared(load: Load) -> None:
    actions = load("systemd").actions
    changing = {name for name, found in actions.items() if found.effect is Effect.CHANGE}
    assert changing == {"start", "stop", "restart", "reload", "enable", "disable"}
    tainting = {name for name, found in actions.items() if found.taints}
    assert tainting == {"list", "dependencies", "status", "logs", "cat"}


def test_relative_times_are_ages(load: Load) -> None:
    module = load("systemd").actions["logs"].method.__globals__
    assert abs(module["_since_us"]("2h") / 1e6 - (time.time() - 7200)) < 5
    assert module["_since_us"]("1970-01-01T00:00:01Z") == 1_000_000
    assert module["_since_us"]("") is None


async def test_a_change_is_previewed_with_the_units_present_state(address: str, preview: AskPreview) -> None:
    async with fake_systemd(address, web()):
        for action in ("start", "stop", "restart", "reload", "enable", "disable"):
            shown = await preview("systemd", action, unit="web")
            assert shown is not None
            assert shown.text == (
                f"{action.capitalize()} web.service (A web server); it is active (running), enabled.\n"
            )
        assert await preview("systemd", "status", unit="web") is None
        with pytest.raises(errors.NotFound):
            await preview("systemd", "stop", unit="nowhere")


async def test_a_preview_without_systemd_says_that_the_state_is_not_seen(
    preview: AskPreview, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    shown = await preview("systemd", "stop", unit="web")
    assert shown is not None
    assert shown.text.startswith("Stop web.service. Its present state cannot be seen:")


@pytest.mark.parametrize("unit", ["--now", "-H root@example.org", "web.service --no-block", "a/../b"])
async def test_a_unit_is_a_name_and_never_an_option(call: Call, address: str, unit: str) -> None:
    async with fake_systemd(address, web()):
        with pytest.raises((ValidationError, errors.NotFound)):
            await call("systemd", "status", unit=unit)
