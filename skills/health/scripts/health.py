"""Says what is wrong with this machine: every cheap check at once, the worst first. Only observes."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import checks
from report import Report, option_parser, plural, run, span

_TIMEOUT_S, _BUSY_TIMES = 4.0, 3.0
"""How long checks may take; with Python's start and the report it is under five seconds. A machine that has
more to do than processors gets up to so many times that."""

_MOST_AS_JSON = 100
"""The result of a call is bounded."""


def headline(found: list[checks.Finding], outcomes: list[checks.Outcome]) -> str:
    """How many problems and warnings there are and the worst of them, or that nothing is wrong."""
    unmade = [outcome for outcome in outcomes if outcome.problem]
    rest = f", {len(unmade)} could not be made ({unmade[0].problem.rstrip('.')})" if unmade else ""
    if not found:
        return f"Nothing is wrong in {plural(len(outcomes) - len(unmade), 'check')}{rest}."
    problems = sum(one.severity == checks.PROBLEM for one in found)
    counts = [plural(problems, "problem")] if problems else []
    if len(found) > problems:
        counts.append(plural(len(found) - problems, "warning"))
    return f"{' and '.join(counts)}: {found[0].text}"


def line(number: int, one: checks.Finding, now: float) -> str:
    age = f" (for {span(now - one.since)})" if one.since else ""
    ask = f" Ask: `{one.ask}`" if one.ask else ""
    return f"{number}. {one.severity}: {one.text}{age}{ask}"


def as_json(found: list[checks.Finding], outcomes: list[checks.Outcome], report: str) -> str:
    whole = {
        "findings": [asdict(one) for one in found[:_MOST_AS_JSON]],
        "checks": [one.check.name for one in outcomes],
        "not_made": {one.check.name: one.problem for one in outcomes if one.problem},
        "report": report,
    }
    return json.dumps(whole)


def _busy() -> float:
    """How many times slower than at rest the machine may be."""
    return min(_BUSY_TIMES, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def make(report: Report) -> None:
    parser = option_parser(str(__doc__))
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    options = parser.parse_args()
    Report.full = options.full
    checks.load_areas()
    outcomes = checks.made(timeout_s=_TIMEOUT_S * _busy())
    found = checks.worst_first(outcomes)
    report.finding = headline(found, outcomes)
    if found and found[0].ask:
        report.next = checks.prompt(found[0].ask)
    now = time.time()
    if found:
        lines = [line(number, one, now) for number, one in enumerate(found, start=1)]
        report.text("What is wrong, worst first", *lines)
    unmade: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.problem:
            unmade.setdefault(outcome.problem, []).append(outcome.check.about)
    for problem, abouts in unmade.items():
        report.note(f"{problem} Not looked for: {', '.join(abouts)}.")
    if options.json:
        sys.stdout.write(as_json(found, outcomes, report.render()) + "\n")
        raise SystemExit(0)


run(make)
