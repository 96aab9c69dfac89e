"""Why a unit failed, from what systemctl and the journal say: real output, in tables."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.skills.library import module

causes, systemd_units, units = module("causes"), module("systemd_units"), module("areas.units")

PRE = (
    "ExecStartPre={ path=/bin/sh ; argv[]=/bin/sh -c echo broken >&2; exit 7 ; ignore_errors=no ; "
    "start_time=[n/a] ; stop_time=[n/a] ; pid=123 ; code=exited ; status=7/NOTRUNNING }\n"
)
# Ahead of now, for a test may come late.
NOW = time.strftime("StateChangeTimestamp=Mon %Y-%m-%d %H:%M:%S UTC", time.localtime(time.time() + 7200))
OLD = "StateChangeTimestamp=Mon 2020-01-06 10:00:00 UTC"


def unit(text: str, name: str = "app.service") -> Any:
    [found] = systemd_units.parsed(f"{text}\nId={name}\n")
    return found


def run(*lines: str | dict[str, str]) -> Any:
    entries = [{"MESSAGE": line} if isinstance(line, str) else line for line in lines]
    return causes.Run([{"PRIORITY": "6", **entry} for entry in entries])


def by_systemd(text: str, **more: str) -> dict[str, str]:
    return {"MESSAGE": text, "SYSLOG_IDENTIFIER": "systemd", "UNIT": "app.service", **more}


def test_units_are_read_though_a_command_has_several_lines() -> None:
    command = "{ path=/bin/sh ; argv[]=/bin/sh -c \n\necho a=b\n ; ignore_errors=no ; pid=0 }"
    text = f"Type=oneshot\nExecStart={command}\nId=a.service\n"
    found = systemd_units.parsed(f"{text}\n\nId=b.timer\nTriggers=b.service\n")
    assert [one.name for one in found] == ["a.service", "b.timer"]
    assert (found[0]["Type"], found[1]["Triggers"]) == ("oneshot", "b.service")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1min 30s", 90),
        ("3h 45min 45.5s", 13545.5),
        ("100ms", 0.1),
        ("infinity", None),
        ("0", 0),
        ("2d", 172800),
    ],
)
def test_spans_of_systemd_are_seconds(text: str, seconds: float | None) -> None:
    assert systemd_units.seconds(text) == seconds


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["starting", "bind() to 0.0.0.0:80 failed (98: Address already in use)", "bye"], "bind() to"),
        (["Traceback (most recent call last):", '  File "x"', "ValueError: no such key"], "ValueError"),
        (["cannot open /srv/data: No such file or directory", "exiting"], "cannot open /srv/data"),
        (
            [by_systemd("app.service: Failed at step EXEC spawning /x: No such file or directory")],
            "Failed at step",
        ),
        (["all is well", by_systemd("app.service: Failed with result 'exit-code'.")], "all is well"),
        ([by_systemd("Failed to start app.service.", JOB_RESULT="failed")], ""),
    ],
)
def test_the_line_that_tells_most_is_the_cause(lines: list[str | dict[str, str]], cause: str) -> None:
    assert run(*lines).cause().startswith(cause)
    assert bool(run(*lines).cause()) == bool(cause)


@pytest.mark.parametrize(
    ("properties", "lines", "words"),
    [
        (
            f"Result=exit-code\nExecMainStatus=0\n{PRE}",
            [],
            "ExecStartPre=/bin/sh -c echo broken >&2; exit 7 ended with status 7",
        ),
        (
            "Result=exit-code\nExecMainStatus=0",
            [
                by_systemd(
                    "app.service: Control process exited, code=exited, status=3/X", COMMAND="ExecStartPre"
                )
            ],
            "ExecStartPre ended with status 3",
        ),
        ("Result=exit-code\nExecMainStatus=0", [], "one of its control processes failed"),
        ("Result=exit-code\nExecMainStatus=203\nExecMainCode=1", [], "cannot be executed"),
        ("Result=signal\nExecMainStatus=11\nExecMainCode=2", [], "killed by SIGSEGV"),
        ("Result=core-dump\nExecMainStatus=6\nExecMainCode=3", [], "SIGABRT and dumped core"),
        ("Result=oom-kill\nMemoryMax=20971520", [], "MemoryMax=20.0 MiB"),
        (
            "Result=timeout\nTimeoutStartUSec=1min 30s\nType=notify",
            [],
            "did not start within 1min 30s; it never told",
        ),
        (
            "Result=timeout\nTimeoutStopUSec=5s",
            ["State 'stop-sigterm' timed out. Killing."],
            "did not stop within 5s",
        ),
        ("Result=start-limit-hit", [], "start limit hit"),
    ],
)
def test_how_a_unit_ended(properties: str, lines: list[str], words: str) -> None:
    assert words in causes.how(unit(properties), run(*lines))


@pytest.mark.parametrize(
    ("properties", "is_crashing", "is_failed"),
    [
        (
            f"ActiveState=activating\nSubState=auto-restart\nNRestarts=4\n{NOW}",
            True,
            False,
        ),
        ("ActiveState=activating\nSubState=auto-restart-queued", True, False),
        (f"ActiveState=active\nSubState=running\nNRestarts=9\n{NOW}", True, False),
        (f"ActiveState=active\nSubState=running\nNRestarts=1\n{NOW}", True, False),
        (f"ActiveState=active\nSubState=running\nNRestarts=1\n{OLD}", False, False),
        (
            f"ActiveState=active\nSubState=running\nNRestarts=9\n{OLD}",
            False,
            False,
        ),
        ("ActiveState=failed\nSubState=failed", False, True),
    ],
    ids=map(str, range(7)),  # the values have the time in them
)
def test_a_unit_in_auto_restart_is_a_problem(properties: str, is_crashing: bool, is_failed: bool) -> None:
    assert (units.is_crashing(unit(properties)), units.is_failed(unit(properties))) == (
        is_crashing,
        is_failed,
    )


@pytest.mark.parametrize(
    ("properties", "is_stuck", "words"),
    [
        (
            "ActiveState=activating\nSubState=start\nType=notify\nTimeoutStartUSec=90s",
            True,
            "not told systemd that it is ready",
        ),
        ("ActiveState=activating\nSubState=start\nType=oneshot\nTriggeredBy=a.timer", True, "starting"),
        ("ActiveState=deactivating\nSubState=stop-sigterm\nTimeoutStopUSec=90s", True, "stopping"),
        ("ActiveState=activating\nSubState=auto-restart", False, ""),
        ("ActiveState=active\nSubState=running", False, ""),
    ],
)
def test_a_unit_that_starts_or_stops_for_long_is_stuck(properties: str, is_stuck: bool, words: str) -> None:
    one = unit(f"{properties}\n{OLD}")
    assert units.is_stuck(one) == is_stuck
    if is_stuck:
        assert words in units.stuck(one)


def test_what_a_unit_needs_and_what_is_masked_or_failed_is_named() -> None:
    known = {
        one.name: one
        for one in (
            unit("LoadState=masked", "db.service"),
            unit("LoadState=loaded\nActiveState=failed\nResult=start-limit-hit", "net.service"),
            unit("LoadState=loaded\nActiveState=active", "ok.service"),
        )
    }
    needy = unit("Requires=db.service ok.service\nBindsTo=net.service")
    masked, failed = units.missing_needs(needy, known)
    assert masked == "db.service, which it needs, is masked"
    assert failed.startswith("net.service, which it needs, failed: it was started too often")


def test_the_units_of_a_dependency_cycle_are_named() -> None:
    old = [
        "a.service: Found ordering cycle on b.service/start",
        "a.service: Found dependency on a.service/start",
        "a.service: Unable to break cycle starting with a.service/start",
    ]
    new = ["d.service: Found ordering cycle: e.service/start after c.timer/start after d.service/start"]
    assert units.cycles_in(["a.service: broke", *old, *old, *new]) == (
        ("a.service", "b.service"),
        ("c.timer", "d.service", "e.service"),
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [
                (1, "/etc/x.timer:2: fixed since"),
                (9, "/etc/x.timer:3: Bad, ignoring: y"),
                (9, "x: No value. Refusing."),
            ],
            "/etc/x.timer:3: Bad, ignoring: y; x: No value.",
        ),
        (
            [(9, "app.service: Two ExecStart=. Refusing.")],
            "Two ExecStart= (in /etc/app.service and /etc/o.conf).",
        ),
        ([], "Bad thing (in /etc/app.service and /etc/o.conf)."),
    ],
)
def test_why_a_unit_cannot_be_loaded(lines: list[tuple[int, str]], said: str) -> None:
    one = unit('FragmentPath=/etc/app.service\nDropInPaths=/etc/o.conf\nLoadError=org.x "Bad thing."')
    entries = [{"MESSAGE": text, "__REALTIME_TIMESTAMP": f"{second}000000"} for second, text in lines]
    assert units.load_error(one, entries) == f"app.service cannot be loaded: {said}"


def test_a_link_that_leads_nowhere_is_no_missing_unit(tmp_path: Path) -> None:
    (tmp_path / "gone.service").symlink_to("/opt/gone.service")
    (tmp_path / "masked.service").symlink_to("/dev/null")
    names = ("gone.service", "masked.service", "absent.service")
    assert [units.dangling(name, str(tmp_path)) for name in names] == [
        f"{tmp_path}/gone.service is a link to /opt/gone.service, which does not exist",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("properties", "runs_not"),
    [
        ("", True),
        ("Type=oneshot", False),
        ("TriggeredBy=a.timer", False),
        ("ConditionTimestamp=now\nConditionResult=no", False),
        ("LoadState=masked", False),
        ("WantedBy=rescue.target", False),
        ("ActiveState=failed", False),
    ],
)
def test_enabled_units_that_may_be_idle_are_not_told_of(properties: str, runs_not: bool) -> None:
    target = unit("ActiveState=active", "multi-user.target")
    one = unit(f"LoadState=loaded\nActiveState=inactive\nWantedBy=multi-user.target\n{properties}")
    assert bool(units.not_running({target.name: target}, [one])) == runs_not


def test_a_line_of_a_process_that_ended_at_once_belongs_to_the_run_in_which_it_came() -> None:
    lines = [
        {"MESSAGE": "of the run before"},
        {"MESSAGE": "Starting", "INVOCATION_ID": "new"},
        {"MESSAGE": "license expired"},
        {"MESSAGE": "of another", "_SYSTEMD_INVOCATION_ID": "old"},
    ]
    assert [entry["MESSAGE"] for entry in causes._of_run(lines, "new")] == ["Starting", "license expired"]


def test_what_is_behind_an_error_is_looked_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = causes.behind(f"bind() to 127.0.0.1:{port} failed (98: Address already in use)")
        assert f"port {port} is held by pid {os.getpid()} (" in told
        listens = unit(f"Listen=127.0.0.1:{port} (Stream)", "app.socket")
        assert f"port {port} is held" in causes.behind("Address already in use", listens)
    refused = causes.behind(f"dial tcp 127.0.0.1:{port}: connect: Connection refused")
    assert refused == f"nothing listens on port {port}"
    (tmp_path / "key.pem").touch(0o640)
    denied = causes.behind(f"cannot open {tmp_path}/key.pem: Permission denied", unit("User=www-data"))
    assert denied.endswith("with mode 0640; the unit runs as www-data")
    step = causes.behind("Failed at step USER spawning /bin/x: No such process", unit("User=nobody-here"))
    assert step == "User=nobody-here"
    for head, said in (
        ("#!/bin/sh\r\n", "has the line ends of Windows"),
        ("#!/opt/none -x\n", "wants the interpreter /opt/none, which does not exist"),
        ("#!/bin/sh\n", ""),
    ):
        script = tmp_path / "script"
        script.write_text(head, newline="")
        script.chmod(0o755)
        told = causes.behind(f"Failed at step EXEC spawning {script}: No such file or directory")
        assert said in told
        assert bool(said) is bool(told)
        assert causes.behind(f"{script}: it is broken") == ""
    script.write_text("echo\n")
    assert "has no #! line" in causes.behind(f"Failed at step EXEC spawning {script}: Exec format error")
    assert causes.script_fault(str(script)) == ""
    assert causes.behind("all is well") == ""
