"""Finds why a unit failed: the line of its failed run that tells most, how its process ended, and what is
behind the error of that line (who holds the port, which mount is read-only, what is full).
"""

from __future__ import annotations

import os
import re
import signal
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import procfs
from commands import journal, message, read
from report import human, shorten
from systemd_units import Unit

_TELLING = re.compile(
    r"in use|denied|no such|not found|no space|read-only|cannot|can't|could not|couldn't|unable|refused|"
    r"invalid|unknown|unexpected|syntax|missing|not permitted|out of memory|timed out|unreachable|"
    r"expired|mismatch|too many|failed at step|not exist|unrecognized|undefined|must be|is not|quota",
    re.I,
)
_BAD = re.compile(
    r"\b(?:error|fatal|emerg|crit(?:ical)?|panic|fail(?:ed|ure)?|exception|abort(?:ed|ing)?)\b|Error\b", re.I
)
_MANAGER_TELLS = re.compile(
    r"Failed at step|Failed to (?!start\b|mount\b|listen on sockets|spawn 'start'|run 'start)|Unable to |"
    r"cannot |denied|bad unit|not found",
    re.I,
)
_EXITED = re.compile(
    r"(?P<kind>Main|Control|Mount|Swap) process exited, code=(?P<code>\w+),? status=(?P<status>\d+)"
)
_NO_CAUSE = re.compile(
    r"See ['\"]?systemctl|^\s+at |^\s*File \"|^Traceback|^\s*\^|Stopp(?:ing|ed)|exiting", re.I
)
_PATH = re.compile(r"(?<![\w/])/[\w.@+~-][\w./@+~-]*")
_PORT = re.compile(r"(?:[\]\d*]|\b[a-z]+):(\d{2,5})\b|\bport[ =:#]+(\d{2,5})\b", re.I)
_SETTINGS = (
    ("failed at step user", "User"),
    ("failed at step group", "Group"),
    ("failed at step chdir", "WorkingDirectory"),
    ("environment file", "EnvironmentFiles"),
)
"""What systemd complains of, and the setting that says which one it is."""
_STEPS = {
    200: "CHDIR: its working directory is not there",
    203: "EXEC: its program cannot be executed",
    216: "GROUP: its group does not exist",
    217: "USER: its user does not exist",
    226: "NAMESPACE: its sandbox cannot be set up",
    238: "STATE_DIRECTORY",
    243: "CREDENTIALS: a credential cannot be loaded",
}
"""Statuses that systemd gives for a process that it could not start; see systemd.exec(5)."""


@dataclass
class Run:
    """What the journal has of one run of a unit."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""

    def says(self, words: str) -> bool:
        return any(words in message(entry) for entry in self.lines)

    def cause(self) -> str:
        """The line that tells most of why it failed; of equal ones the last."""
        best, most = "", 0
        for entry in self.lines:
            text = re.sub(r"^\S+\.(?:service|mount|socket|swap): ", "", message(entry))
            if (score := _score(entry, text)) >= max(most, 1):
                best, most = text, score
        return shorten(best, 180).rstrip(".")

    def exit(self) -> str:
        """How the last process that failed ended, as systemd logged it, or an empty string.

        systemd forgets the status of a control process when it reads its units anew; the journal does not.
        """
        for entry in reversed(self.lines):
            ended = _EXITED.search(message(entry))
            if ended and (ended["code"], ended["status"]) != ("exited", "0"):
                command = str(entry.get("COMMAND", ""))
                name = command if command.startswith("Exec") and command != "ExecStart" else "its process"
                if not command and ended["kind"] == "Control":
                    name = "a control process"
                return f"{name} {_ended(ended['code'], int(ended['status']))}"
        return ""


def last_run(unit: Unit) -> Run:
    """The newest lines of the last run of this unit, and what systemd says of it."""
    identity = unit["InvocationID"]
    runs_again = unit.is_active and unit.number("NRestarts") > 0  # so the run that failed is one before
    if not re.fullmatch(r"[0-9a-f]{32}", identity) or runs_again:
        return Run(*journal("-b", "-u", unit.name, limit=80, timeout_s=5))
    its_own = (f"_SYSTEMD_INVOCATION_ID={identity}", "+", f"INVOCATION_ID={identity}")
    lines, problem = journal(*its_own, "+", f"_SYSTEMD_UNIT={unit.name}", limit=120, timeout_s=5)
    return Run(_of_run(lines, identity), problem)


def _of_run(lines: list[dict[str, Any]], identity: str) -> list[dict[str, Any]]:
    """The lines of this run; what a process wrote that ended at once names the unit and no run."""
    began = False
    kept = []
    for entry in lines:
        run = entry.get("INVOCATION_ID") or entry.get("_SYSTEMD_INVOCATION_ID")
        began = began or run == identity
        if run == identity or (began and not run):
            kept.append(entry)
    return kept


def how(unit: Unit, run: Run) -> str:
    """How it ended, in a few words: `ExecStartPre ended with status 7`."""
    result = unit["Result"]
    if result in ("exit-code", "signal", "core-dump", "success"):
        if ended := run.exit():
            return ended
        for name, ran in reversed(unit.runs()):
            is_main = name == "ExecStart" and ran["pid"] == unit["ExecMainPID"]
            if not is_main and not _went_well(ran):
                return f"{name}={shorten(ran['argv'], 50)} {_ended(ran['code'], int(ran['status']))}"
        code, status = unit["ExecMainCode"], max(0, unit.number("ExecMainStatus"))
        if result == "success":
            return "its process ended with status 0"
        if status == 0:
            return "one of its control processes failed"
        return f"its process {_ended({'2': 'killed', '3': 'dumped'}.get(code, 'exited'), status)}"
    if result == "oom-kill":
        limit = unit.number("MemoryMax")
        if limit > 0:
            return f"killed for lack of memory: its control group's limit is MemoryMax={human(limit)}"
        return "killed for lack of memory"
    if result == "timeout":
        if "stop" in " ".join(message(entry) for entry in run.lines if "timed out" in message(entry)):
            return f"it did not stop within {unit['TimeoutStopUSec'] or 'its time'}"
        ready = "; it never told systemd that it is ready" if unit["Type"].startswith("notify") else ""
        return f"it did not start within {unit['TimeoutStartUSec'] or 'its time'}{ready}"
    return {
        "watchdog": f"it did not answer its watchdog within {unit['WatchdogUSec'] or 'its time'}",
        "start-limit-hit": "it was started too often in a short time (start limit hit)",
        "resources": "systemd could not set it up",
        "protocol": "it ended without telling systemd that it is ready",
        "dependency": "a unit that it needs failed",
        "service-start-limit-hit": "its service was started too often in a short time",
        "trigger-limit-hit": "it was triggered too often in a short time",
    }.get(result, f"result {result}")


def why(unit: Unit, run: Run) -> str:
    """The cause in one clause: the line, what is behind it, and how the process ended."""
    line, end = run.cause(), how(unit, run)
    if not line:
        silent = run.lines and not run.problem and unit["Result"] in ("exit-code", "signal", "core-dump")
        return f"{end}, and it wrote no reason to the journal" if silent else end
    told = " - ".join(filter(None, (line, behind(line, unit))))
    return f"{told} ({end})"


def behind(line: str, unit: Unit | None = None) -> str:
    """What an error is about, from the system as it is now; an empty string where nothing is known."""
    paths = [path.rstrip(".:") for path in _PATH.findall(line)]
    lower = line.lower()
    if "address already in use" in lower or "eaddrinuse" in lower:
        return _holder(line, unit)
    if "connection refused" in lower or "econnrefused" in lower:
        return _nobody(line)
    if "read-only file system" in lower or "erofs" in lower:
        return _read_only(paths, unit)
    if "no space left" in lower or "enospc" in lower:
        return _full(paths)
    if "permission denied" in lower or "eacces" in lower:
        return _denied(paths, unit)
    if re.search(r"\bexec|no such file|not found|bad interpreter", lower):
        faults = (script_fault(path, is_refused="exec format" in lower) for path in paths)
        if script := next(filter(None, faults), ""):
            return script
    for words, name in _SETTINGS:
        if words in lower and unit and unit[name]:
            values = re.findall(r"(\S+)(?: \(.*?\))?", unit[name])
            missing = (one for one in values if one.startswith("/") and not Path(one.lstrip("-")).exists())
            return f"{name.removesuffix('s')}={next(missing, values[0])}"
    return ""


def script_fault(path: str, *, is_refused: bool = False) -> str:
    """Why the kernel cannot start a script that is there (execve(2)), or an empty string.

    A text without #! is one only where the kernel refused its format: a shell runs it.
    """
    try:
        if not os.access(path, os.X_OK) or Path(path).is_dir():
            return ""
        with Path(path).open("rb") as file:
            head = file.read(256)
    except OSError:
        return ""
    line = head.partition(b"\n")[0].decode("utf-8", "replace")
    if not line.startswith("#!"):
        is_text = is_refused and bool(line) and line.isprintable()
        return f"{path} has no #! line, which names the program that reads it" if is_text else ""
    program = (line[2:].split(maxsplit=1) or [""])[0]
    if line.endswith("\r"):
        return f"{path} has the line ends of Windows (CR LF), so the kernel looks for {program}\\r"
    return "" if Path(program).exists() else f"{path} wants the interpreter {program}, which does not exist"


def _score(entry: dict[str, Any], text: str) -> int:
    if not text or _NO_CAUSE.search(text):
        return 0
    if entry.get("SYSLOG_IDENTIFIER") == "systemd" and (entry.get("UNIT") or entry.get("USER_UNIT")):
        return 4 if _MANAGER_TELLS.search(text) and not entry.get("JOB_RESULT") else 0
    score = 1 + 2 * bool(_TELLING.search(text)) + bool(_BAD.search(text))
    return score + (str(entry.get("PRIORITY", "6")) in ("0", "1", "2", "3"))


def _went_well(ran: re.Match[str]) -> bool:
    if ran["code"] == "(null)" or "yes" in ran["flags"] or "ignore-failure" in ran["flags"]:
        return True
    return (ran["code"], ran["status"]) == ("exited", "0")


def _ended(code: str, status: int) -> str:
    if code in ("killed", "dumped"):
        try:
            name = signal.Signals(status).name
        except ValueError:
            name = f"signal {status}"
        return f"was killed by {name}" + (" and dumped core" if code == "dumped" else "")
    step = f"/{_STEPS[status]}" if status in _STEPS else ""
    return f"ended with status {status}{step}"


def _holder(line: str, unit: Unit | None) -> str:
    listening = {one.port: one for one in reversed(procfs.sockets()) if one.is_listening}
    texts = [line, *((unit["Listen"], *(ran["argv"] for _, ran in unit.runs())) if unit else ())]
    ports = [int(first or second) for text in texts for first, second in _PORT.findall(text)]
    ports += [int(word) for text in texts[1:] for word in re.findall(r"\b\d{2,5}\b", text)]
    port = next((port for port in ports if port in listening), None)
    if port is None:
        return ""
    owners, _ = procfs.socket_owners()
    pids = owners.get(listening[port].inode, [])
    if not pids:
        return f"port {port} is held by a process of the user {procfs.user(listening[port].uid)}"
    return f"port {port} is held by {process(pids[0])}"


def _nobody(line: str) -> str:
    """Whether anything listens where this machine itself was called."""
    listening = {one.port for one in procfs.sockets() if one.is_listening}
    ports = [int(first or second) for first, second in _PORT.findall(line)]
    if ports and ports[0] not in listening and re.search(r"127\.0\.0\.|localhost|::1", line):
        return f"nothing listens on port {ports[0]}"
    return ""


def process(pid: int) -> str:
    """`pid 812 (apache2) of apache2.service`."""
    unit = procfs.unit_of(pid)
    return f"pid {pid} ({procfs.name(pid)})" + (f" of {unit}" if unit else "")


def mount_of(path: str) -> tuple[str, str, str]:
    """The mount point of a path, its filesystem type and its options, as the first process sees it."""
    best = ("", "", "")
    for line in (read("/proc/1/mountinfo") or read("/proc/self/mountinfo") or "").splitlines():
        columns = line.split()
        point = columns[4].replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            rest = columns[columns.index("-") + 1 :]
            best = (point, rest[0], f"{columns[5]},{rest[2]}")
    return best


def _read_only(paths: list[str], unit: Unit | None) -> str:
    for path in paths:
        point, kind, modes = mount_of(path)
        if "ro" in modes.split(","):
            return f"{point} ({kind}) is mounted read-only"
        if unit and (unit["ProtectSystem"] not in ("", "no") or unit["ReadOnlyPaths"]):
            names = [name for name in ("ProtectSystem", "ReadOnlyPaths") if unit[name] not in ("", "no")]
            own = ", ".join(f"{name}={unit[name]}" for name in names)
            return f"the unit's own settings make {path} read-only ({own}), {point} is not"
    return ""


def _full(paths: list[str]) -> str:
    for path in map(Path, [*paths, "/", "/var", "/tmp", "/run"]):  # noqa: S108 - nothing is written
        there = next((one for one in (path, *path.parents) if one.exists()), path)
        try:
            space = os.statvfs(there)
        except OSError:
            continue
        point = mount_of(str(there))[0]
        if space.f_files and not space.f_favail:
            return f"the filesystem {point} has no inodes left ({space.f_files} in use)"
        if space.f_bavail * space.f_frsize < 1 << 20:
            return f"the filesystem {point} is full ({human(space.f_blocks * space.f_frsize)})"
    return ""


def _denied(paths: list[str], unit: Unit | None) -> str:
    for path in paths:
        # The folder that is closed to this script may be to the unit; in which one nothing can be made, too.
        for one in (Path(path), *Path(path).parents[:-1]):
            try:
                there = one.stat()
            except (PermissionError, FileNotFoundError):
                continue
            except OSError:
                break
            owner = procfs.user(there.st_uid)
            user = f"; the unit runs as {unit['User'] or 'root'}" if unit else ""
            return f"{one} belongs to {owner} with mode {stat.S_IMODE(there.st_mode):04o}{user}"
    return ""
