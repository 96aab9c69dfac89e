"""Faults that are staged for real in the booted container, one after the other, and what is asked about them.

The faults are in staged/*.yaml. A fault has:

    stage, undo  commands of bash that make it and take it back; see stager.py for the functions they have
    proof        a command that succeeds while the fault is there, and only then
    prompts      what an administrator asks
    first        regular expressions that the first sentence of each answer holds, with " & " between them;
                 neither their order nor case matters
    whole        those that the whole answer holds
    health       those that a finding of `lactl health` holds; without them health need not tell of the fault
    slow         health tells of it only when it lasts some time

By hand, to see what is answered and what is not:

    .venv/bin/python -m tests.e2e.staged [--verbose] [NAME...]
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from .debian import cache_folder, ensure_root
from .machine import Machine
from .product import install_product, start_service

FOLDER = Path(__file__).with_name("staged")
STAGER = Path(__file__).with_name("stager.py")
AT_ONCE = 9
"""So many faults are there at most when health is asked, besides those that must last."""
TIMEOUT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, as its file has it."""

    name: str
    stage: str
    undo: str
    proof: str
    prompts: tuple[str, str]
    first: str
    whole: str = ""
    health: str = ""
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one fault."""

    fault: Fault
    staged: bool
    undone: bool
    said: str
    """By the commands that staged it and took it back."""
    answers: tuple[str, ...]
    named: bool | None
    """By health; None where it need not."""
    took_s: tuple[float, ...]
    """To stage it, to answer, to take it back."""

    @property
    def right(self) -> tuple[bool, ...]:
        """For each answer, whether it names the cause anywhere."""
        fault = self.fault
        return tuple(_holds(fault.first, answer) and _holds(fault.whole, answer) for answer in self.answers)

    @property
    def first(self) -> tuple[bool, ...]:
        """For each answer, whether the first sentence names the cause."""
        return tuple(_holds(self.fault.first, first_sentence(answer)) for answer in self.answers)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of all."""

    healthy: tuple[str, ...]
    """What health found before the first fault."""
    outcomes: tuple[Outcome, ...]
    found: tuple[str, ...]
    """What health found with the faults there."""
    not_made: tuple[str, ...]
    """The checks that health could not make, and why."""
    health_s: tuple[float, ...]


def faults() -> list[Fault]:
    """All of staged/*.yaml."""
    read = {
        name: fault
        for file in sorted(FOLDER.glob("*.yaml"))
        for name, fault in yaml.safe_load(file.read_text(encoding="utf-8")).items()
    }
    return [Fault(name=name, prompts=tuple(fault.pop("prompts")), **fault) for name, fault in read.items()]


def first_sentence(answer: str) -> str:
    """The first sentence of the first line, without the marks of Markdown."""
    line = answer.strip().partition("\n")[0].replace("**", "").replace("`", "")
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", line)[0]


def stage_all(root: Path, chosen: Sequence[Fault]) -> Run:
    """Boot a machine with the daemon in it, and stage the faults there."""
    with Machine(root) as machine:
        install_product(machine)
        start_service(machine)
        return stage(machine, chosen)


def stage(machine: Machine, chosen: Sequence[Fault]) -> Run:
    """Stage the faults one after the other, and ask; then stage them in groups, and ask health."""
    lasting = [fault for fault in chosen if fault.slow]
    for_health = [fault for fault in chosen if fault.health and not fault.slow]
    count = max(1, math.ceil(len(for_health) / AT_ONCE))
    groups = [for_health[number::count] for number in range(count)]
    steps = {
        "each": [asdict(fault) for fault in chosen],
        "lasting": [asdict(fault) for fault in lasting],
        "together": [[asdict(fault) for fault in group] for group in groups],
    }
    argv = ["python3", "-c", STAGER.read_text(encoding="utf-8")]
    report = json.loads(machine.run(argv, input=json.dumps(steps), timeout_s=TIMEOUT_S).stdout)
    found = [_texts(health) for health in report["together"]]
    named = {
        fault.name: any(_holds(fault.health, text) for text in found[number])
        for number, group in enumerate(groups)
        for fault in (*group, *(lasting if number == count - 1 else ()))
    }
    return Run(
        healthy=_texts(report["healthy"]),
        outcomes=tuple(
            _outcome(fault, report["each"][fault.name], named.get(fault.name)) for fault in chosen
        ),
        found=tuple(text for texts in found for text in texts),
        not_made=_not_made([report["healthy"], *report["together"]]),
        health_s=tuple(health["took_s"] for health in (report["healthy"], *report["together"])),
    )


def _outcome(fault: Fault, told: dict[str, Any], named: bool | None) -> Outcome:
    return Outcome(
        fault=fault,
        staged=told["staged"],
        undone=told["undone"],
        said=told["said"],
        answers=tuple(told["answers"]),
        named=named,
        took_s=tuple(told["took_s"]),
    )


def _texts(health: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(finding["text"]) for finding in health["findings"])


def _not_made(healths: list[dict[str, Any]]) -> tuple[str, ...]:
    told = {f"{check}: {why}" for health in healths for check, why in health.get("not_made", {}).items()}
    return tuple(sorted(told))


def _holds(patterns: str, text: str) -> bool:
    return all(re.search(pattern, text, re.IGNORECASE) for pattern in patterns.split(" & "))


def table(run: Run) -> str:
    """One line for each fault: what is right, and the first line of each answer that is not."""
    marks = {True: "yes", False: "NO", None: "-"}
    lines = [f"{'fault':28} {'staged':7}{'answered':11}{'first':11}{'health':7}seconds"]
    for one in run.outcomes:
        staged = "yes" if one.staged and one.undone else "LEFT" if one.staged else "NO"
        answered, first = (" ".join(marks[x] for x in seen) for seen in (one.right, one.first))
        lines.append(
            f"{one.fault.name:28} {staged:7}{answered:11}{first:11}{marks[one.named]:7}"
            + " ".join(f"{seconds:.1f}" for seconds in one.took_s)
        )
        lines += [
            f"    {prompt}: {answer.partition(chr(10))[0]}"
            for prompt, answer, *is_right in zip(
                one.fault.prompts, one.answers, one.right, one.first, strict=True
            )
            if not all(is_right)
        ]
        if staged != "yes":
            lines.append(f"    the commands said: {one.said.strip()}")
    return "\n".join([*lines, "", *summary(run)])


def summary(run: Run) -> list[str]:
    right = [is_right for one in run.outcomes for is_right in one.right]
    first = [is_right for one in run.outcomes for is_right in one.first]
    named = [one.named for one in run.outcomes if one.named is not None]
    return [
        f"{sum(right)} of {len(right)} prompts answered, {sum(first)} in the first sentence, "
        f"{sum(named)} of {len(named)} faults named by health",
        f"health took {', '.join(f'{seconds:.1f} s' for seconds in run.health_s)}",
        *[f"on the healthy machine: {text}" for text in run.healthy],
        *[f"not checked: {check}" for check in run.not_made],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Stage faults in a booted container, and ask about them.")
    parser.add_argument("--verbose", action="store_true", help="print all answers and findings too")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these faults instead of all")
    options = parser.parse_args()
    chosen = [fault for fault in faults() if not options.names or fault.name in options.names]
    run = stage_all(ensure_root(cache_folder()), chosen)
    if options.verbose:
        for one in run.outcomes:
            for prompt, answer in zip(one.fault.prompts, one.answers, strict=True):
                print(f"===== {one.fault.name}: {prompt}\n{answer}\n")
        print("===== health", *run.found, "", sep="\n")
    print(table(run))


if __name__ == "__main__":
    main()
