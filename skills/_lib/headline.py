"""Turns findings into the head of a report: the worst one first, what to do next, and the others below."""

from __future__ import annotations

from collections.abc import Iterable

from checks import PROBLEM, Finding, prompt
from report import Report, plural


def tell(report: Report, found: Iterable[Finding], good: str, *, look: str = "", own: str = "") -> bool:
    """Set the finding to the worst of these, or to `good`; returns whether there is any.

    `look` is the command to give next where a finding leads back to this skill, by the prompt `own`.
    """
    ranked = sorted(found, key=lambda one: one.severity != PROBLEM)
    if not ranked:
        report.finding = good
        return False
    first = ranked[0]
    problems = sum(one.severity == PROBLEM for one in ranked)
    counts = [plural(problems, "problem")] if problems else []
    if len(ranked) > problems:
        counts.append(plural(len(ranked) - problems, "warning"))
    report.finding = first.text if len(ranked) == 1 else f"{' and '.join(counts)}: {first.text}"
    report.next = prompt(first.ask) if first.ask and first.ask != own else look
    if ranked[1:]:
        report.text("Also wrong", *(f"- {one.text}" for one in ranked[1:]))
    return True
