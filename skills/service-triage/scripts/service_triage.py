"""Says what is wrong with a systemd unit, or which units failed. Only observes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from clock import show
from commands import journal, message, stamp, systemd_problem
from commands import run as run_command
from report import Report, options, plural, refuse, run, shorten

_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,ExecMainStatus,ExecMainCode,ExecMainPID,MainPID,NRestarts,"
    "StateChangeTimestamp,ActiveEnterTimestamp,FragmentPath,Description,Requires,Requisite,BindsTo,NeedDaemonReload,"
    "MemoryCurrent,TriggeredBy,ConditionResult"
)
_OTHER_NAMES = (
    ("ssh", "sshd"),
    ("apache", "apache2", "httpd"),
    ("mysql", "mysqld", "mariadb"),
    ("postgres", "postgresql"),
    ("cron", "crond"),
    ("chrony", "chronyd"),
    ("ntp", "ntpd", "ntpsec"),
    ("bind9", "named"),
    ("redis", "redis-server"),
    ("samba", "smbd"),
    ("exim", "exim4"),
    ("mongodb", "mongod"),
    ("grafana", "grafana-server"),
    ("rabbitmq", "rabbitmq-server"),
)
_LINES = 15
_MOST_UNITS = 5
_RESULTS = {
    "exit-code": "its process ended with an error",
    "signal": "its process was ended by a signal",
    "core-dump": "its process crashed and dumped core",
    "oom-kill": "the kernel killed it for lack of memory",
    "timeout": "it did not start or stop in time",
    "watchdog": "it stopped answering its watchdog",
    "start-limit-hit": "it was started too often in a short time",
    "resources": "systemd could not set it up",
}


def properties(unit: str) -> dict[str, str]:
    answer = run_command("systemctl", "show", f"--property={_PROPERTIES}", "--", unit)
    pairs = (line.partition("=") for line in answer.stdout.splitlines())
    return {key: value for key, _, value in pairs}


def resolved(unit: str) -> dict[str, str]:
    """The properties of the unit, or of the name that another distribution gives to the same service."""
    found = properties(unit)
    stem, _, suffix = unit.rpartition(".")
    if found.get("LoadState") == "not-found" and suffix == "service":
        for names in _OTHER_NAMES:
            for other in names if stem in names else ():
                if other != stem:
                    known = properties(f"{other}.service")
                    if known.get("LoadState") not in ("not-found", None):
                        return known
    return found


def verdict(found: dict[str, str]) -> str:
    unit, active = found.get("Id", "?"), found.get("ActiveState", "unknown")
    if found.get("LoadState") == "not-found":
        return f"There is no unit {unit} on this machine."
    if found.get("LoadState") == "masked":
        return f"{unit} is masked, so it cannot be started."
    since = f" since {found['StateChangeTimestamp']}" if found.get("StateChangeTimestamp") else ""
    if active == "failed":
        result = found.get("Result", "")
        status = found.get("ExecMainStatus", "0")
        why = _RESULTS.get(result, result)
        return f"{unit} has failed{since}: {why} (result {result}, status {status})."
    restarts = found.get("NRestarts", "0")
    again = f"; systemd restarted it {restarts} times" if restarts not in ("0", "") else ""
    if active == "active":
        pid = found.get("MainPID", "0")
        return (
            f"{unit} is {active} ({found.get('SubState')}){since}"
            + (f", main pid {pid}" if pid != "0" else "")
            + f"{again}."
        )
    if active in ("activating", "deactivating", "reloading"):
        return f"{unit} is {active} ({found.get('SubState')}){since}{again}."
    reason = " and is not set to start at boot" if found.get("UnitFileState") == "disabled" else ""
    return f"{unit} is {active}{since}{reason}."


def dependencies(found: dict[str, str]) -> list[tuple[str, str, str]]:
    """The units that this one needs and that are not active."""
    needed = sorted(
        {unit for key in ("Requires", "Requisite", "BindsTo") for unit in found.get(key, "").split()}
    )
    rows = []
    for unit in needed[:20]:
        other = properties(unit)
        if other.get("ActiveState") != "active":
            rows.append((unit, other.get("LoadState", "?"), other.get("ActiveState", "?")))
    return rows


def log_lines(unit: str, report: Report) -> None:
    entries, problem = journal("-u", unit, limit=_LINES)
    report.lines(
        f"Last log lines of {unit}",
        [f"{show(stamp(entry))} {shorten(message(entry), 200)}" for entry in entries],
    )
    report.note(problem)


def one(unit: str, report: Report) -> None:
    found = resolved(unit)
    if not found:
        without_systemd(unit, f"systemctl does not answer about {unit}.", report)
        return
    report.finding = report.finding or verdict(found)
    unit = found.get("Id", unit)
    if found.get("LoadState") == "not-found":
        like = similar(unit)
        report.table("Units with a similar name", ("Unit",), [(name,) for name in like])
        processes_named(unit, report)
        return
    keys = (
        "Description",
        "LoadState",
        "ActiveState",
        "SubState",
        "UnitFileState",
        "Result",
        "ExecMainStatus",
        "NRestarts",
        "MainPID",
        "ActiveEnterTimestamp",
        "StateChangeTimestamp",
        "FragmentPath",
        "TriggeredBy",
        "NeedDaemonReload",
    )
    report.table(
        f"State of {unit}", ("Property", "Value"), [(key, found[key]) for key in keys if found.get(key)]
    )
    report.table(
        "Units that it needs and that are not active", ("Unit", "Loaded", "State"), dependencies(found)
    )
    log_lines(unit, report)


def similar(unit: str) -> list[str]:
    stem = re.split(r"[.@-]", unit)[0]
    if not re.fullmatch(r"\w{3,}", stem):
        return []
    answer = run_command("systemctl", "list-units", "--all", "--plain", "--no-legend", f"*{stem}*")
    return [line.split()[0] for line in answer.stdout.splitlines() if line.split()][:10]


def failed(report: Report) -> None:
    answer = run_command("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager")
    if answer.problem:
        report.finding = f"The failed units cannot be listed: {answer.problem}"
        return
    units = [line.split()[0] for line in answer.stdout.splitlines() if line.split()]
    if not units:
        count = run_command(
            "systemctl", "list-units", "--state=active", "--type=service", "--plain", "--no-legend"
        )
        running = len(count.stdout.splitlines())
        report.finding = (
            f"No unit has failed; {plural(running, 'service')} {'is' if running == 1 else 'are'} active."
        )
        slow = run_command("systemctl", "list-units", "--state=activating", "--plain", "--no-legend")
        rows = [(line.split()[0],) for line in slow.stdout.splitlines() if line.split()]
        report.table("Units that are still starting", ("Unit",), rows)
        return
    report.finding = f"{plural(len(units), 'unit')} failed: {', '.join(units)}."
    report.table(
        "Failed units", ("Unit", "What is known"), [(unit, verdict(properties(unit))) for unit in units]
    )
    for unit in units[:_MOST_UNITS]:
        log_lines(unit, report)
    if len(units) > _MOST_UNITS:
        report.note(
            f"The log lines of {len(units) - _MOST_UNITS} more failed units; ask for one by its name."
        )


def without_systemd(unit: str, problem: str, report: Report) -> None:
    """The report without systemd: whether a process of that name runs."""
    if not unit:
        report.finding = "Failed units cannot be found here, because systemd does not answer."
        report.note(problem)
        return
    report.note(problem)
    report.note(procfs.processes_are_whole())
    count = processes_named(unit, report)
    stem = unit.rpartition(".")[0] or unit
    report.finding = (
        (
            f"systemd does not answer here; {plural(count, 'process')} named like {stem} "
            f"{'runs' if count == 1 else 'run'}."
        )
        if count
        else f"systemd does not answer here, and no process named like {stem} runs."
    )


def processes_named(unit: str, report: Report) -> int:
    stem = re.split(r"[.@]", unit)[0]
    names = {stem, *(other for group in _OTHER_NAMES if stem in group for other in group)}
    rows = []
    for pid in procfs.pids():
        comm = procfs.name(pid)
        if (
            comm in names
            or comm in {f"{name}d" for name in names}
            or comm[:15] in {name[:15] for name in names}
        ):
            rows.append((pid, procfs.user_of(pid), procfs.status(pid).get("State", "?"), procfs.command(pid)))
    report.table("Processes of that name", ("Pid", "User", "State", "Command"), rows)
    return len(rows)


def make(report: Report) -> None:
    unit = options(str(__doc__), unit="the unit to look at; without it the failed units").unit
    if unit is not None and not re.fullmatch(r"-\.(mount|slice)|[\w][\w:.\\@-]*", unit):
        refuse(f"--unit={unit} is not the name of a unit.")
    if unit and not re.search(
        r"\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$", unit
    ):
        unit += ".service"
    problem = systemd_problem()
    if problem:
        without_systemd(unit or "", problem, report)
    elif unit:
        one(unit, report)
    else:
        failed(report)


run(make)
