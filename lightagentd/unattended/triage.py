"""`lightagent-triage@.service`: a unit failed, and an agent explains why, in the journal.

An administrator writes `OnFailure=lightagent-triage@%n.service` into any unit. The answer is one entry of
this unit's journal, and through OBJECT_SYSTEMD_UNIT= also of the failed one's (systemd.journal-fields(7)). It
only logs that it does nothing for units of this program (a drop-in for all services would make it follow
itself), for a unit that had its diagnosis a moment ago, when too many units fail at once, and while the
daemon does not run: none of that is a failure of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Protocol

from lightagentd.errors import DaemonUnreachable, LightagentError, LimitExceeded
from lightagentd.events.journal.journal_socket import SOCKET
from lightagentd.unattended import journal
from lightagentd.unattended.allowance import Allowance
from lightagentd.unattended.asking import Asker, run_until_told

RUNTIME = Path("/run/lightagent-triage")
EACH, ALL_TOGETHER, PERIOD_S = 1, 10, 600.0
"""Diagnoses of one unit, and of all units together, in each PERIOD_S."""
_SUFFIX = re.compile(r"\.(?:service|socket|device|mount|automount|swap|target|path|timer|slice|scope)\Z")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}\Z")
_OWN = re.compile(r"(?:system-)?lightagentd?(?:[-@.]|\\x2d)|dbus-org\.lightagent1\.")


class _Say(Protocol):
    def __call__(self, kind: journal.Kind, message: str, priority: str, **fields: str) -> None: ...


def unit_name(instance: str) -> str:
    """The unit of an instance name: `%n` as it is, and `%N`, which has no suffix, as a service.

    Raises LightagentError for an invalid unit name, see systemd.unit(5).
    """
    name = instance if _SUFFIX.search(instance) else f"{instance}.service"
    if not _UNIT.match(name):
        raise LightagentError(
            f"{instance[:60]!r} is not the name of a unit.",
            suggestion="Write OnFailure=lightagent-triage@%n.service into the unit.",
        )
    return name


def is_own(unit: str) -> bool:
    """Whether a unit belongs to this program, whose failures it does not diagnose."""
    return _OWN.match(unit) is not None


def triage(
    unit: str,
    *,
    agent: str,
    flow: str = "",
    timeout_s: float,
    runtime: Path = RUNTIME,
    control: Path | None = None,
    journal_socket: Path = SOCKET,
) -> int:
    """Have the agent explain why a unit failed, or a flow run about it; that goes into the journal.
    Returns the exit status.
    """
    about = {"OBJECT_SYSTEMD_UNIT": unit}

    def say(kind: journal.Kind, message: str, priority: str, **fields: str) -> None:
        entry = {**about, **fields}
        journal.enter(kind, message, priority=priority, fields=entry, socket=journal_socket)

    if is_own(unit):
        about = {}  # a message could go to the journal of a unit that fails in a loop
        say("triage.skipped", f"No diagnosis of {unit}: it is a unit of lightagentd itself.", journal.INFO)
        return 0
    correlation_id = f"triage:{unit}"[:256]
    asker = Asker(control)
    allowance = Allowance(runtime / "taken", each=EACH, all_together=ALL_TOGETHER, period_s=PERIOD_S)
    try:
        allowance.take(unit)
        answer = run_until_told(
            lambda: asker.ask(
                "triage",
                {"unit": unit},
                agent=None if flow else agent,
                flow=flow or None,
                correlation_id=correlation_id,
                timeout_s=timeout_s,
            )
        )
    except LimitExceeded as err:
        if asker.session:  # not our own limit, but the turn's
            return _failed(unit, err, say)
        say("triage.skipped", f"No diagnosis of {unit}: {err}", journal.NOTICE)
        return 0
    except DaemonUnreachable as err:
        if asker.session:
            return _failed(unit, err, say)
        say("triage.skipped", f"No diagnosis of {unit}: {err} {err.suggestion}", journal.WARNING)
        return 0
    except LightagentError as err:
        return _failed(unit, err, say)
    whom = f"the flow {flow}" if flow else f"the agent {agent}"
    fields = journal.fields_of("" if flow else agent, answer, correlation_id)
    say(
        "triage.answered",
        f"Diagnosis of {unit} by {whom}: {answer.text}",
        journal.NOTICE,
        **fields,
    )
    return 0


def _failed(unit: str, err: LightagentError, say: _Say) -> int:
    say("triage.failed", f"No diagnosis of {unit}: {err} {err.suggestion}".rstrip(), journal.ERROR)
    return err.exit_status


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-triage",
        description="Have an agent say why a unit failed, in the journal. It is what "
        "OnFailure=lightagent-triage@%%n.service starts.",
    )
    parser.add_argument("--unit", required=True, metavar="UNIT", help="the unit that failed")
    parser.add_argument("--agent", default="ops", help="whom to ask (default: ops)")
    parser.add_argument("--flow", default="", help="what runs in place of a question to an agent")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="how long to wait")
    options = parser.parse_args()
    try:
        unit = unit_name(options.unit)
        status = triage(unit, agent=options.agent, flow=options.flow, timeout_s=options.timeout)
    except LightagentError as err:
        sys.stderr.write(f"<3>lightagent-triage: {err} {err.suggestion}\n")
        status = err.exit_status
    sys.exit(status)


if __name__ == "__main__":
    main()
