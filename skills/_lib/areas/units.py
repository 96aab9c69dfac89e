"""Units: failed, crashing, stuck, without what they need, stopped by somebody, changed on disk."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import procfs
from causes import Run, last_run, why
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, stamp
from report import clean, plural, shorten, span
from systemd_units import Unit, enabled, loaded, moment, named

FAILURE_RESULT = "d9b373ed55a64feb8242e02dbe79a49c"
STARTED = "39f53479d3a045ac8e11786248231fbf"
ENDED = "7ad2d189f7e94e70a38c781354912448"
"""Message ids of systemd; see sd-messages(3)."""
_NOT_ACTIVATED = re.compile(r"(?:Activated|Failed to activate) service '([^']+)'(?: failed)?: (.*)")
_ADMINISTRATORS = "/etc/systemd/system"
_MOST = 20
"""For so many failed units the journal is read."""
_SLOW_S, _AGAIN_S, _LOOP_S, _LOOP = 15.0, 10.0, 900.0, 3
_WAITS_LONG_S = 6 * 3600.0


def ago(when: float | None) -> str:
    """` 12 min ago`, or an empty string where the time is not known."""
    if when and time.time() - when < 1:
        return " just now"
    return f" {span(time.time() - when)} ago" if when else ""


def is_crashing(unit: Unit) -> bool:
    """Whether it is between two automatic starts, or was started again some times and just now."""
    if unit.restarts_itself or unit.kind != "service":
        return unit.restarts_itself
    since = time.time() - (unit.changed or 0.0)
    count = unit.number("NRestarts")
    return (count >= _LOOP and since < _LOOP_S) or (count > 0 and since < _AGAIN_S)


def is_failed(unit: Unit) -> bool:
    return unit["ActiveState"] == "failed"


def is_stuck(unit: Unit, *, patience_s: float = _SLOW_S) -> bool:
    """Whether it starts or stops for longer than that does on a machine in order.

    A task of Type=oneshot may take its time; a backup that a timer started takes hours.
    """
    state = unit["ActiveState"]
    if state not in ("activating", "deactivating", "reloading") or unit.restarts_itself or not unit.changed:
        return False
    if state == "activating" and unit["Type"] == "oneshot" and unit["SubState"] == "start":
        patience_s = _WAITS_LONG_S if unit["TriggeredBy"] else 600.0
    return time.time() - unit.changed > patience_s


def failure(unit: Unit, run: Run | None = None) -> str:
    """What happened to a unit that failed or crashes, with the cause, as one sentence."""
    run = last_run(unit) if run is None else run
    cause = why(unit, run)
    for other in named(*unit["Triggers"].split()) if unit.kind in ("socket", "path") else ():
        cause += f"; {other.name} failed: {why(other, last_run(other))}" if is_failed(other) else ""
    if is_crashing(unit) and not is_failed(unit):
        count = plural(max(unit.number("NRestarts"), 0), "restart")
        state = "waits for its next start" if unit.restarts_itself else "runs again"
        return f"{unit.name} crashes again and again ({count}, it {state}): {cause}."
    given_up = run.says("Start request repeated too quickly") and unit["Result"] != "start-limit-hit"
    limit = "; systemd has given up restarting it (start limit hit)" if given_up else ""
    return f"{unit.name} failed{ago(unit.changed)}: {cause}{limit}."


def stuck(unit: Unit) -> str:
    """What a unit that starts or stops is waiting for."""
    for_s = span(time.time() - (unit.changed or time.time()))
    if unit["ActiveState"] == "deactivating":
        limit = f"; it is killed after {unit['TimeoutStopUSec']}" if unit["TimeoutStopUSec"] else ""
        return f"{unit.name} has been stopping for {for_s} ({unit['SubState']}){limit}."
    if unit["ActiveState"] == "reloading":
        return f"{unit.name} has been reloading for {for_s}: it has not said that it is done."
    limit = unit["TimeoutStartUSec"]
    until = f"; the time limit is {limit}" if limit not in ("", "infinity") else ""
    running = next(
        (f"{name}={shorten(ran['argv'], 60)}" for name, ran in unit.runs() if _is_running(ran)), ""
    )
    if unit["Type"] in ("notify", "notify-reload") and unit["SubState"] == "start":
        reason = "it has not told systemd that it is ready (Type=notify)"
    elif unit["Type"] == "forking" and unit["SubState"] == "start":
        reason = "its process has not gone into the background (Type=forking)"
    elif unit["Type"] == "dbus" and unit["SubState"] == "start":
        reason = f"it has not taken its bus name {unit['BusName']} (Type=dbus)"
    else:
        reason = f"{running} has not ended" if running else f"it is in the state {unit['SubState']}"
    return f"{unit.name} has been starting for {for_s}: {reason}{until}."


def missing_needs(unit: Unit, known: dict[str, Unit]) -> list[str]:
    """Why a unit cannot start: what it needs and what is masked, missing or failed."""
    others = {name: known[name] for name in unit.needs() if name in known}
    others |= {one.name: one for one in named(*(set(unit.needs()) - set(others)))}
    words = {"masked": "is masked", "not-found": "does not exist", "bad-setting": "has a bad setting"}
    told = [
        f"{_listed(one)} wait for each other (dependency cycle)"
        for one in cycles()
        if unit.name in one and not unit["InactiveExitTimestamp"]
    ]
    for name, other in sorted(others.items()):
        if other["LoadState"] in words:
            told.append(f"{name}, which it needs, {words[other['LoadState']]}")
        elif is_failed(other) or other.restarts_itself:
            told.append(f"{name}, which it needs, failed: {why(other, last_run(other))}")
    return told


@functools.lru_cache(maxsize=1)
def cycles() -> tuple[tuple[str, ...], ...]:
    """The units of each dependency cycle that systemd found in this boot."""
    entries, _ = journal("-b", "_PID=1", "-p", "warning", limit=500, timeout_s=5)
    return cycles_in(message(entry) for entry in entries)


def cycles_in(texts: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The cycles in what systemd logged: a line that begins with one, then a line for each unit of it."""
    found: list[set[str]] = []
    for text in texts:
        if "Found ordering cycle" in text:
            found.append(set())
        if found and re.search(r"Found (?:ordering cycle|dependency)", text):
            found[-1].update(re.findall(r"([\w:.\\@-]+\.[a-z]+)/\w+", text))
    return tuple(dict.fromkeys(tuple(sorted(one)) for one in found if len(one) > 1))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def bad_setting(unit: Unit) -> str:
    """Why systemd cannot load a unit's file: what it logged about its last try, else its own error."""
    entries, _ = journal("-b", f"UNIT={unit.name}", "-p", "warning", limit=20, timeout_s=5)
    return load_error(unit, entries)


def load_error(unit: Unit, entries: list[dict[str, Any]]) -> str:
    entries = [entry for entry in entries if not entry.get("JOB_TYPE")]
    lines = [message(entry) for entry in entries if stamp(entries[-1]) - stamp(entry) < 1]
    of_file = [line for line in lines if re.match(r"/\S+:\d+: ", line)]
    refused = [line for line in lines if "Refusing" in line]
    known = list(dict.fromkeys(of_file[-1:] + refused[-1:])) or lines[-1:]
    known = [line.replace(f"{unit.name}: ", "").replace(" Refusing.", "").rstrip(".") for line in known]
    cause = "; ".join(known) or clean(unit["LoadError"].partition(" ")[2].strip('".'))
    files = (
        "" if of_file else " and ".join(filter(None, (unit["FragmentPath"], *unit["DropInPaths"].split())))
    )
    return f"{unit.name} cannot be loaded: {cause or 'bad setting'}{f' (in {files})' if files else ''}."


def dangling(name: str, folder: str = _ADMINISTRATORS) -> str:
    """The link of the administrator's that a unit's name stands for, where it leads nowhere."""
    link = Path(folder, name)
    try:
        target = link.readlink()
        link.stat()
    except FileNotFoundError:
        return f"{link} is a link to {target}, which does not exist" if link.is_symlink() else ""
    except OSError:
        pass
    return ""


def is_wanted(unit: Unit, known: dict[str, Unit]) -> bool:
    """Whether a unit that does not run should: an active target or unit pulls it in."""
    pulls = f"{unit['WantedBy']} {unit['RequiredBy']} {unit['UpheldBy']}".split()
    return any(known[name].is_active for name in pulls if name in known)


def not_running(known: dict[str, Unit], units: Iterable[Unit]) -> list[Unit]:
    """Of these enabled units those that should run and do not, for another reason than a failure.

    What a timer, a socket or the bus starts may be idle; a oneshot is done; an unmet condition is intended.
    """
    return [
        unit
        for unit in units
        if unit["ActiveState"] == "inactive"
        and unit.kind in ("service", "socket", "timer", "path")
        and unit["LoadState"] == "loaded"
        and (
            unit["Type"] != "oneshot" or (unit["RemainAfterExit"] == "yes" and unit["InactiveExitTimestamp"])
        )
        and not unit["TriggeredBy"]
        and not (unit["ConditionTimestamp"] and unit["ConditionResult"] == "no")
        and not unit["Job"].strip("0")
        and is_wanted(unit, known)
    ]


def stopper(unit: Unit) -> tuple[str, float | None]:
    """How a unit that does not run came to its end, and when: `was stopped by alice (sudo ...)`.

    systemd forgets a unit that nothing needs, with its times; the journal of this boot does not.
    """
    when = moment(unit["InactiveEnterTimestamp"])
    ids = (f"MESSAGE_ID={STARTED}", f"MESSAGE_ID={ENDED}", f"MESSAGE_ID={FAILURE_RESULT}", "JOB_TYPE=stop")
    wanted = [word for one in ids for word in ("+", f"UNIT={unit.name}", one)]
    entries, problem = journal("-b", *wanted[1:], limit=20, timeout_s=5)
    began = max((at for at, entry in enumerate(entries) if entry.get("MESSAGE_ID") == STARTED), default=-1)
    stops = [entry for entry in entries[began + 1 :] if entry.get("JOB_TYPE") == "stop"]
    if stops:
        who = _who(unit.name, stamp(stops[0])) or "somebody with the rights of root"
        return f"was stopped {_because(unit, stamp(stops[0])) or f'by {who}'}", stamp(stops[0])
    if problem and not entries:
        ended = "ended, and how" if when else "does not run, and whether it did since boot"
        return f"{ended} is not known ({problem.rstrip('.')})", when
    if not when and not entries:
        return "has not been started since boot", None
    status = unit["ExecMainStatus"] or "0"
    return f"ended by itself with status {status}", when or stamp(entries[-1])


def _because(unit: Unit, when: float) -> str:
    """The other unit whose start or stop took this one along, or an empty string."""
    others = {one.name: one for one in named(*f"{unit['Conflicts']} {unit['ConflictedBy']}".split())}
    for name, other in others.items():
        began = moment(other["InactiveExitTimestamp"])
        if other.kind != "target" and other.is_active and began and abs(began - when) < 3:
            return f"by the start of {name} (they conflict)"
    for other in named(*f"{unit['BindsTo']} {unit['PartOf']} {unit['Requires']}".split()):
        ended = moment(other["InactiveEnterTimestamp"])
        if other.kind not in ("target", "slice") and not other.is_active and ended and abs(ended - when) < 3:
            return f"by the stop of {other.name} (it depends on that)"
    return ""


def last_stop(name: str) -> str:
    """When a unit was last stopped in this boot, and by whom: ` 5 min ago by alice (...)`."""
    entries, _ = journal("-b", f"UNIT={name}", "JOB_TYPE=stop", limit=1, timeout_s=5)
    if not entries:
        return ""
    who = _who(name, stamp(entries[-1]))
    return ago(stamp(entries[-1])) + (f" by {who}" if who else "")


def _who(name: str, when: float) -> str:
    """The user whose command was logged just before, and that command."""
    window = ("--since", f"@{int(when) - 90}", "--until", f"@{int(when) + 2}")
    entries, _ = journal(*window, *_sources(), limit=200, timeout_s=5)
    stem = name.rpartition(".")[0]
    for entry in reversed(entries):
        text = message(entry)
        command = re.search(r"^\s*(\S+) : .*COMMAND=(.*)", text)
        if (
            command
            and entry.get("_UID") == "0"
            and (stem in command[2] or re.search(r"\b(?:apt|dpkg|dnf|isolate)", command[2]))
        ):
            return f"{command[1]} (sudo {shorten(command[2], 80)})"
        polkit = re.search(r"manage-units for .*?\(owned by unix-user:([\w.-]+)\)|unix-user:([\w.-]+)", text)
        if polkit and "manage-units" in text:
            return f"{polkit[1] or polkit[2]} (polkit)"
        switched = re.search(
            r"\(to root\) (\S+) on|session opened for user root(?:\(uid=0\))? by (\w+)", text
        )
        if switched and (switched[1] or switched[2]):
            return f"{switched[1] or switched[2]} (as root by su or sudo)"
    return ""


def _sources() -> list[str]:
    return [f"_COMM={name}" for name in ("sudo", "su", "polkitd", "pkexec", "systemd-logind")]


def _is_running(ran: re.Match[str]) -> bool:
    return ran["pid"] != "0" and ran["code"] == "(null)"


@check("units.failed", "units that failed")
def failed() -> Iterator[Finding]:
    found = [unit for unit in loaded().values() if is_failed(unit)]
    for number, unit in enumerate(found):
        text = failure(unit, None if number < _MOST else Run())
        yield Finding(text, f"why is {unit.name} down", unit.changed)


@check("units.crashing", "units that crash again and again")
def crashing() -> Iterator[Finding]:
    for unit in loaded().values():
        if is_crashing(unit) and not is_failed(unit):
            yield Finding(failure(unit), f"why is {unit.name} down", unit.changed)


@check("units.stuck", "units that neither start nor stop")
def stuck_units() -> Iterator[Finding]:
    for unit in loaded().values():
        if is_stuck(unit, patience_s=_SLOW_S / 3):
            severity = PROBLEM if is_stuck(unit) else WARNING
            yield Finding(stuck(unit), f"why is {unit.name} down", unit.changed, severity)


@check("units.unloadable", "enabled units that are broken or lack what they need")
def unloadable() -> Iterator[Finding]:
    known = loaded()
    for unit in {one.name: one for one in (*known.values(), *enabled())}.values():
        if unit["LoadState"] in ("bad-setting", "error"):
            yield Finding(bad_setting(unit), f"why is {unit.name} down")
    for link in sorted(Path(_ADMINISTRATORS).glob("*.*")):
        if broken := dangling(link.name):
            yield Finding(f"{broken}.", f"why is {link.name} down", severity=WARNING)
    for unit in enabled():
        if unit["ActiveState"] == "inactive" and unit["LoadState"] == "loaded":
            for reason in missing_needs(unit, known):
                text = f"{unit.name} is enabled and cannot start: {reason}."
                yield Finding(text, f"why is {unit.name} down")


@check("units.not_running", "enabled units that do not run")
def stopped() -> Iterator[Finding]:
    known = loaded()
    for unit in not_running(known, enabled()):
        if not missing_needs(unit, known):
            how, when = stopper(unit)
            if how.endswith("with status 0") and unit["Type"] in ("simple", "exec", "idle"):
                continue  # such as anacron.service, which is done for today
            text = f"{unit.name} is enabled and does not run: it {how}{ago(when)}."
            yield Finding(text, f"who stopped {unit.name}", when, WARNING)


@check("units.changed_on_disk", "units whose files changed after systemd read them")
def changed_on_disk() -> Iterator[Finding]:
    found = [unit.name for unit in loaded().values() if unit["NeedDaemonReload"] == "yes"]
    if found:
        names = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        text = f"The files of {names} changed after systemd read them: run systemctl daemon-reload."
        yield Finding(text, f"status of {found[0]}", severity=WARNING)


@check("units.bus", "bus names whose program could not be started")
def bus() -> Iterator[Finding]:
    wanted = [f"SYSLOG_IDENTIFIER={one}" for one in ("dbus-daemon", "dbus-broker-launch", "dbus-broker")]
    entries, problem = journal("-b", "--since", "-1h", *wanted, limit=500, timeout_s=5)
    failed = {}
    for entry in entries:
        match = _NOT_ACTIVATED.search(message(entry))
        if match:
            failed[match[1]] = (stamp(entry), match[2])
    for name, (when, reason) in failed.items():
        text = f"The program of the bus name {name} cannot be started: {shorten(reason, 120).rstrip('.')}."
        yield Finding(text, "errors of dbus.service", when, WARNING)
    if problem:
        raise CannotSee(problem)


@check("units.users", "units of users' own managers that failed")
def users() -> Iterator[Finding]:
    found, problem = failed_of_users()
    for name, user, when, line in found:
        reason = f": {line}" if line else ""
        text = f"{name} of the user {user} failed{ago(when)}{reason}."
        yield Finding(text, f"errors of {name}", when, WARNING)
    if problem:
        raise CannotSee(problem)


def failed_of_users() -> tuple[list[tuple[str, str, float, str]], str]:
    """Units of users' managers whose last end in a day was a failure: (unit, user, when, its last line); and
    why this may not be all.
    """
    wanted = [f"MESSAGE_ID={one}" for one in (FAILURE_RESULT, STARTED)]
    entries, problem = journal("-b", "--since", "-1d", *wanted, "_COMM=systemd", limit=2000, timeout_s=5)
    last = {}
    for entry in entries:
        if entry.get("USER_UNIT"):
            last[str(entry["USER_UNIT"]), str(entry.get("_UID"))] = entry
    found = []
    for (name, uid), entry in last.items():
        if entry.get("MESSAGE_ID") == FAILURE_RESULT:
            identity = entry.get("USER_INVOCATION_ID", "")
            lines, _ = journal(f"_SYSTEMD_INVOCATION_ID={identity}", limit=40, timeout_s=5)
            line = Run(lines).cause()
            user = procfs.user(int(uid)) if uid.isdigit() else uid
            found.append((name, user, stamp(entry), line))
    return found, problem
