"""Says why a unit is down, or which units have a problem. Only observes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import network, units
from causes import Run, last_run
from checks import CannotSee, Finding, made, prompt, worst_first
from clock import show
from commands import journal, message, stamp, systemd_problem
from commands import run as run_command
from report import Report, options, plural, refuse, run, shorten
from systemd_units import Unit, loaded, moment, named, unit_name

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
_BEHIND = (
    (r"the filesystem (\S+) (?:is full|has no inodes)", "what fills {}"),
    (r"- (\S+) \(\S+\) is mounted read-only", "is the mount {} ok"),
    (r"(?<![\w/])(/[\w./@+-]+)\W{1,5}Permission denied", "permissions of {}"),
    (r"at step EXEC spawning (/\S+):", "$ ls -l {}"),
    (r"(/\S+): error while loading shared libraries", "$ ldd {}"),
    (r" - User=(\S+)", "$ getent passwd {}"),
    (r" - Group=(\S+)", "$ getent group {}"),
    (r" - (?:EnvironmentFile|WorkingDirectory)=(\S+)", "$ ls -ld {}"),
)
"""What is behind an error, and what to ask about it, or after `$` the command to look at it."""
_LINES = 12
_CHECKS = ("units.failed", "units.crashing", "units.stuck", "units.unloadable", "units.users")
_SHOWN = (
    "Description",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Result",
    "NRestarts",
    "MainPID",
    "ActiveEnterTimestamp",
    "StateChangeTimestamp",
    "FragmentPath",
    "TriggeredBy",
    "Triggers",
    "BusName",
    "StatusText",
    "NeedDaemonReload",
)


def resolved(name: str) -> Unit | None:
    """The unit, or the one that another distribution calls so; None where systemd says nothing."""
    found = named(name)
    stem, _, suffix = name.rpartition(".")
    if found and found[0]["LoadState"] == "not-found" and suffix == "service":
        others = [other for names in _OTHER_NAMES if stem in names for other in names if other != stem]
        also = [f"{stem}.{kind}" for kind in ("timer", "socket", "mount", "path", "target")]
        wanted = (*(f"{other}.service" for other in others), *also)
        there = [unit for unit in named(*wanted) if unit["FragmentPath"]]
        return (there or found)[0]
    return found[0] if found else None


def verdict(unit: Unit, run_of: Run) -> str:
    """The state of a unit and its cause, in one sentence."""
    name, active = unit.name, unit["ActiveState"]
    state = unit["LoadState"]
    if state == "not-found":
        if broken := units.dangling(name):
            return f"{name} cannot be loaded: {broken}."
        return f"There is no unit {name} on this machine."
    running = " It still runs." if unit.is_active else ""
    if state == "masked":
        return f"{name} is masked, so it cannot be started: systemctl unmask {name} undoes that.{running}"
    if state not in ("loaded", "merged"):
        return f"{units.bad_setting(unit)}{running}"
    if units.is_failed(unit) or units.is_crashing(unit):
        return units.failure(unit, run_of)
    if active in ("activating", "deactivating", "reloading"):
        return units.stuck(unit)
    if unit.is_active:
        return _active(unit, run_of)
    return _inactive(unit)


def _active(unit: Unit, run_of: Run) -> str:
    since = f" since {show(unit.changed)}" if unit.changed else ""
    restarts = max(0, unit.number("NRestarts"))
    again = f"; systemd restarted it {plural(restarts, 'time')}" if restarts else ""
    pid = f", main pid {unit['MainPID']}" if unit.number("MainPID") > 0 else ""
    reload = "; its files changed after systemd read them (systemctl daemon-reload)"
    stale = reload if unit["NeedDaemonReload"] == "yes" else ""
    for entry in reversed(run_of.lines):
        if message(entry).startswith("Reloaded "):
            break
        if entry.get("COMMAND") == "ExecReload" and run_of.exit():
            reason = ": ".join(filter(None, (run_of.exit(), run_of.cause())))
            return f"{unit.name} runs{since}{pid}, but its last reload failed: {reason}."
    if unit.kind in ("socket", "timer", "path", "automount"):
        job = unit["Triggers"].split(" ")[0]
        return f"{unit.name} is active ({unit['SubState']}){since} and starts {job or 'nothing'}{stale}."
    word = "runs" if unit["SubState"] == "running" else f"is active ({unit['SubState']})"
    return f"{unit.name} {word}{since}{pid}{again}{stale}."


def _inactive(unit: Unit) -> str:
    name = unit.name
    if reasons := units.missing_needs(unit, loaded()):
        return f"{name} does not run and cannot start: {'; '.join(reasons)}."
    if unit["ConditionTimestamp"] and unit["ConditionResult"] == "no":
        failed = _conditions(unit)
        return f"{name} does not run, because a condition was not met{failed}: that is no failure."
    if unit["AssertTimestamp"] and unit["AssertResult"] == "no":
        return f"{name} does not run: an assertion of its unit file (Assert...=) was not met."
    disabled = ", and it is not set to start at boot" if unit["UnitFileState"] == "disabled" else ""
    if starters := unit["TriggeredBy"]:
        when = moment(unit["InactiveEnterTimestamp"])
        ended = f"; it last ended{units.ago(when)}, well" if when else ""
        return f"{name} does not run now: {starters} starts it when it is needed{ended}."
    how, when = units.stopper(unit)
    return f"{name} does not run: it {how}{units.ago(when)}{disabled}."


def _conditions(unit: Unit) -> str:
    """The conditions of its files, for systemctl does not show which of them was not met."""
    answer = run_command("systemctl", "cat", "--no-pager", "--", unit.name)
    found = re.findall(r"^\s*((?:Condition)\w+=\S.*)$", answer.stdout, re.M)
    return f" ({', '.join(found[:3])})" if found else ""


def of_user(name: str, report: Report) -> bool:
    """Whether it is a unit of a user's own manager that failed; then the report says so."""
    found = [row for row in units.failed_of_users()[0] if row[0] == name]
    for unit, user, when, line in found:
        report.finding = f"{unit} of the user {user} failed{units.ago(when)}{f': {line}' if line else ''}."
        report.next = prompt(f"errors of {unit}")
    wanted = (f"USER_UNIT={name}", "+", f"_SYSTEMD_USER_UNIT={name}")
    entries, _ = journal("-b", *wanted, limit=_LINES, timeout_s=5) if found else ([], "")
    report.lines(f"Log of {name}", [_line(entry) for entry in entries])
    return bool(found)


def next_step(unit: Unit, text: str) -> str:
    """What to do or ask next."""
    need = re.search(r"(\S+), which it needs,|; (\S+) failed: ", text)
    holder = re.search(r"is held by pid \d+ \([^)]*\) of (\S+?)[ .(,]", text)
    if holder:
        return prompt(f"status of {holder[1]}")
    if need:
        return prompt(f"why is {need[1] or need[2]} down")
    if "for lack of memory" in text:
        return prompt(f"memory of {unit.name}")
    for behind, ask in _BEHIND:
        if found := re.search(behind, text):
            ask = ask.format(found[1])
            return ask[2:] if ask.startswith("$ ") else prompt(ask)
    if unit["LoadState"] != "loaded" or re.search("daemon-reload|condition|cycle|Protect|ReadOnly", text):
        return f"systemctl cat {unit.name}"
    if unit["ActiveState"] in ("failed", "activating", "inactive"):
        return prompt(f"errors of {unit.name} since today")
    return prompt(f"what is wrong with {unit.name}") if units.is_crashing(unit) else ""


def one(name: str, report: Report) -> None:
    unit = resolved(name)
    if unit is None:
        without_systemd(name, f"systemctl does not answer about {name}.", report)
        return
    run_of = last_run(unit)
    report.finding = verdict(unit, run_of)
    if unit["LoadState"] == "not-found":
        if of_user(unit.name, report):
            return
        if "cannot be loaded" in report.finding:
            report.next = f"ls -l /etc/systemd/system/{unit.name}"
            return
        stem = unit.name.rpartition(".")[0]
        if Path("/sys/class/net", stem).is_dir():
            wrong = next((found.text for found in network.links() if f" {stem} " in found.text), "")
            report.finding = wrong or f"There is no unit {unit.name}; {stem} is a network interface."
            report.next = prompt(f"interface {stem}")
            return
        report.found_nothing = True
        like = similar(unit.name)
        report.table("Units with a similar name", ("Unit",), [(other,) for other in like])
        report.next = prompt(f"status of {like[0]}") if like else ""
        processes_named(unit.name, report)
        return
    report.next = next_step(unit, report.finding)
    report.note(run_of.problem)
    shown = [entry for entry in run_of.lines if message(entry)]
    title = f"Log of its {'failed' if units.is_failed(unit) else 'last'} run"
    report.lines(title, [_line(entry) for entry in shown[-_LINES:]])
    if not shown:
        entries, problem = journal("-u", unit.name, limit=_LINES, timeout_s=5)
        report.note(problem)
        report.lines(f"Last log lines of {unit.name}", [_line(entry) for entry in entries])
    needs = [other for other in named(*unit.needs()[:20]) if not other.is_active]
    rows = [(other.name, other["LoadState"], other["ActiveState"]) for other in needs]
    report.table("Units that it needs and that are not active", ("Unit", "Loaded", "State"), rows)
    triggers = [other for other in named(*unit["TriggeredBy"].split()) if other["ActiveState"] == "failed"]
    for other in triggers:
        report.text("What starts it", f"{other.name} failed ({other['Result']}), so nothing starts it.")
    ran = [(name, _ended(match), shorten(match["argv"], 70)) for name, match in unit.runs()]
    report.table("Its commands", ("Setting", "Last ended", "Command"), ran)
    report.table("State", ("Property", "Value"), [(key, unit[key]) for key in _SHOWN if unit[key]])


def _ended(match: re.Match[str]) -> str:
    if match["code"] == "(null)":
        return "runs" if match["pid"] != "0" else "-"
    return f"{match['code']}, status {match['status']}"


def _line(entry: dict[str, object]) -> str:
    return f"{show(stamp(entry))[11:]} {shorten(message(entry), 180)}"


def similar(name: str) -> list[str]:
    stem = re.split(r"[.@-]", name)[0]
    if not re.fullmatch(r"\w{3,}", stem):
        return []
    answer = run_command("systemctl", "list-units", "--all", "--plain", "--no-legend", f"*{stem}*")
    return [line.split()[0] for line in answer.stdout.splitlines() if line.split()][:10]


def all_units(report: Report) -> None:
    """All units that have a problem, the worst first."""
    outcomes = made(_CHECKS, timeout_s=15)
    for outcome in outcomes:
        report.note(outcome.problem)
    found = worst_first(outcomes)
    try:
        known = loaded()
    except CannotSee as err:
        report.finding = f"The units cannot be listed: {err}"
        return
    if not found:
        running = sum(1 for unit in known.values() if unit.kind == "service" and unit.is_active)
        starting = [unit for unit in known.values() if unit["ActiveState"] == "activating"]
        later = f" {plural(len(starting), 'unit')} still start." if starting else ""
        none = "No unit has failed, crashes again and again or is stuck"
        report.finding = f"{none}; {plural(running, 'service')} run.{later}"
        report.table(
            "Units that are starting", ("Unit", "State"), [(u.name, u["SubState"]) for u in starting]
        )
        return
    report.finding = headline(found)
    report.next = prompt(found[0].ask)
    if found[1:]:
        report.text("Problems", *(f"- {finding.text}" for finding in found))
    report.table(
        "Units that failed",
        ("Unit", "State", "Result", "Since"),
        [
            (
                unit.name,
                f"{unit['ActiveState']}/{unit['SubState']}",
                unit["Result"],
                unit["StateChangeTimestamp"],
            )
            for unit in known.values()
            if units.is_failed(unit) or units.is_crashing(unit)
        ],
    )


def headline(found: list[Finding]) -> str:
    """The one problem, or how many there are and the first of them."""
    if len(found) == 1:
        return found[0].text
    names = list(dict.fromkeys(one.text.split(" ")[0] for one in found))
    some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{plural(len(names), 'unit')} have a problem ({some}); the first: {found[0].text}"


def without_systemd(name: str, problem: str, report: Report) -> None:
    """The report without systemd: whether a process of that name runs."""
    report.note(problem)
    if not name:
        report.finding = "Failed units cannot be found here, because systemd does not answer."
        return
    report.note(procfs.processes_are_whole())
    count = processes_named(name, report)
    stem = name.rpartition(".")[0] or name
    if count:
        runs = "runs" if count == 1 else "run"
        report.finding = f"systemd does not answer here; {plural(count, 'process')} named like {stem} {runs}."
    else:
        report.finding = f"systemd does not answer here, and no process named like {stem} runs."


def processes_named(name: str, report: Report) -> int:
    stem = re.split(r"[.@]", name)[0]
    names = {stem, *(other for group in _OTHER_NAMES if stem in group for other in group)}
    names |= {f"{other}d" for other in names}
    rows = []
    for pid in procfs.pids():
        if procfs.name(pid) in {other[:15] for other in names}:
            state = procfs.status(pid).get("State", "?")
            rows.append((pid, procfs.user_of(pid), state, procfs.command(pid)))
    report.table("Processes of that name", ("Pid", "User", "State", "Command"), rows)
    return len(rows)


def make(report: Report) -> None:
    name = options(str(__doc__), unit="the unit to look at; without it all that have a problem").unit
    if name is not None and not re.fullmatch(r"-\.(mount|slice)|[\w][\w:.\\@-]*", name):
        refuse(f"--unit={name} is not the name of a unit.")
    problem = systemd_problem()
    if problem:
        without_systemd(unit_name(name) if name else "", problem, report)
    elif name:
        one(unit_name(name), report)
    else:
        all_units(report)


run(make)
