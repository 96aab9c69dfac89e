"""What health looks for, and skills too: cheap checks that give findings, registered by name and run at once.

A check is a generator function of the modules in `areas`, under the decorator `check`. It needs no argument,
takes under two seconds, and yields one `Finding` for each thing that is wrong; nothing on a healthy machine.
Where it may not see what it is about it raises `CannotSee`: silence means that everything could be seen.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from report import clean

_PLAIN = re.compile(r"[\w .,:?@/+=-]*")
"""What means nothing to a shell between double quotes."""
PROBLEM, WARNING = "problem", "warning"
"""A problem breaks something now; a warning is what will, or what somebody should look at."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in one sentence that names it and its cause."""

    text: str
    ask: str = ""
    """What to ask the agent next, in words that a skill answers: `why is nginx.service down`."""
    since: float | None = None
    """Seconds since 1970."""
    severity: str = PROBLEM

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean(self.text))  # names on the machine may have any character


class CannotSee(Exception):
    """Why a check could not be made, or not for everything, as a sentence."""


@dataclass(frozen=True)
class Check:
    """A registered check; `about` says what it looks for: `units that failed`."""

    name: str
    about: str
    make: Callable[[], Iterator[Finding]]


@dataclass
class Outcome:
    """What a check found until it ended or its time was over; `problem` says why it was not whole."""

    check: Check
    findings: list[Finding] = field(default_factory=list)
    problem: str = ""


CHECKS: dict[str, Check] = {}


def check(
    name: str, about: str
) -> Callable[[Callable[[], Iterator[Finding]]], Callable[[], Iterator[Finding]]]:
    """Register a check as `name`, of the form `area.what`."""

    def register(make: Callable[[], Iterator[Finding]]) -> Callable[[], Iterator[Finding]]:
        CHECKS[name] = Check(name, about, make)
        return make

    return register


def load_areas() -> None:
    """Import every module of `areas`, so that its checks are registered."""
    import areas

    for module in pkgutil.iter_modules(areas.__path__):
        importlib.import_module(f"areas.{module.name}")


def made(names: Collection[str] | None = None, *, timeout_s: float = 5.0) -> list[Outcome]:
    """Run these checks, or all, at once; what is not done in time is told as not made.

    A check that is late goes on in its thread, which does not hold up the end of the program.
    """
    outcomes = [Outcome(one) for name, one in sorted(CHECKS.items()) if names is None or name in names]
    threads = [threading.Thread(target=_make, args=(outcome,), daemon=True) for outcome in outcomes]
    end = time.monotonic() + timeout_s
    for outcome, thread in zip(outcomes, threads, strict=True):
        try:
            thread.start()
        except RuntimeError as err:  # as many tasks as this sandbox or user may have
            outcome.problem = f"It could not start: {err}."
    for outcome, thread in zip(outcomes, threads, strict=True):
        if thread.ident is None:
            continue
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            outcome.problem = f"It did not end within {timeout_s:.0f} s."
    return outcomes


def worst_first(outcomes: list[Outcome]) -> list[Finding]:
    """All findings: problems before warnings, the oldest first, each text once."""
    found = {one.text: one for outcome in outcomes for one in outcome.findings}
    return sorted(
        found.values(), key=lambda one: (one.severity != PROBLEM, one.since or float("inf"), one.text)
    )


def prompt(ask: str) -> str:
    """The command that asks this, to be pasted into a shell: a name in it may be one that others chose."""
    return (
        f'lactl prompt ops "{ask}"' if _PLAIN.fullmatch(ask) else shlex.join(["lactl", "prompt", "ops", ask])
    )


def _make(outcome: Outcome) -> None:
    try:
        for one in outcome.check.make():
            outcome.findings.append(one)
    except CannotSee as err:
        outcome.problem = str(err)
    except Exception as err:
        outcome.problem = f"It stopped early: {type(err).__name__}: {clean(str(err))}."
