"""Says by cross-validation how well prompts are matched that were not learned.

    PYTHONPATH=.:packaging .venv/bin/python -m learning [FOLDS] [--errors]

Of five parts of the examples each is matched by what the other four taught. It says what each least
confidence gives, the share of right prompts of each skill, which skills are taken for which, and the values
of `CONFIDENCE` that fit best. With `--errors` also each prompt that went wrong.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.llm.runbook.matching import SkillIndex
from lightagentd.skills.arguments import ArgSpec
from lightagentd.skills.front_matter import FrontMatter
from lightagentd.skills.skill import Skill

from .examples import NONE, Example, read_examples
from .training import NOW, UNIT_SUFFIX, as_weights, parts_of

PARTS = 5
STEPS = 12
FOREIGN_WEIGHT = 3.0
"""A foreign prompt that is answered counts so many times."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a prompt."""

    example: Example
    skill: str
    """The best, or none."""
    evidence: tuple[float, ...]
    args_right: bool


def stand_in(name: str, examples: Sequence[Example]) -> Skill:
    """A skill with the arguments that its examples have."""
    kinds = {mark.name for example in examples if example.skill == name for mark in example.marks}
    specs = {
        arg: ArgSpec.model_validate({"kind": "time" if arg == "since" else arg, "description": arg})
        for arg in sorted(kinds)
    }
    front = FrontMatter(name=name, description=name)
    return Skill(
        name=name,
        description=name,
        body="",
        folder=Path(name),
        origin="",
        front=front,
        runbook=Path(name),
        args=specs,
    )


def outcomes(examples: Sequence[Example], folds: int) -> list[Outcome]:
    skills = [stand_in(name, examples) for name in sorted({example.skill for example in examples} - {NONE})]
    found = []
    for fold in range(folds):
        taught = [example for at, example in enumerate(examples) if at % PARTS != fold]
        index = SkillIndex(skills, as_weights(*parts_of(taught)))
        for example in examples[fold::PARTS]:
            skill, evidence = index.judged(example.text, now=NOW)
            right = example.skill == NONE or index.arguments(example.skill, example.text, now=NOW) == wanted(
                example
            )
            found.append(Outcome(example=example, skill=skill, evidence=evidence, args_right=right))
    return found


def wanted(example: Example) -> dict[str, str]:
    """The arguments of an example."""
    args: dict[str, str] = {}
    for mark in example.marks:
        bare = mark.name == "unit" and not UNIT_SUFFIX.search(mark.value)
        args.setdefault(mark.name, f"{mark.value}.service" if bare else mark.value)
    return args


def fitted(found: Sequence[Outcome]) -> list[float]:
    """The weights of the evidence by logistic regression, with Newton's method."""
    rows = [
        (one.evidence, one.skill == one.example.skill, one.example.skill == NONE)
        for one in found
        if one.skill != NONE
    ]
    size = len(rows[0][0])
    weights = [0.0] * size
    for _ in range(STEPS):
        system = [[1e-6 * (at == to) for to in range(size)] + [0.0] for at in range(size)]
        for evidence, is_right, is_foreign in rows:
            share = FOREIGN_WEIGHT if is_foreign else 1.0
            chance = likelihood(weights, evidence)
            for at in range(size):
                system[at][size] += share * (is_right - chance) * evidence[at]
                for to in range(size):
                    system[at][to] += share * chance * (1 - chance) * evidence[at] * evidence[to]
        weights = [weight + step for weight, step in zip(weights, solved(system), strict=True)]
    return weights


def likelihood(weights: Sequence[float], evidence: Sequence[float]) -> float:
    odds = math.fsum(weight * value for weight, value in zip(weights, evidence, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))


def solved(system: list[list[float]]) -> list[float]:
    """The solution of linear equations, by Gauss and Jordan."""
    for at, row in enumerate(system):
        system[at] = [value / row[at] for value in row]
        for other, values in enumerate(system):
            if other != at:
                system[other] = [
                    value - values[at] * by for value, by in zip(values, system[at], strict=True)
                ]
    return [row[-1] for row in system]


def main(folds: int, *, errors: bool) -> None:
    found = outcomes(read_examples(Path("skills")), folds)
    asked = [one for one in found if one.example.skill != NONE]
    foreign = [one for one in found if one.example.skill == NONE]
    weights = fitted(found)
    print(f"{len(asked)} prompts, {len(foreign)} foreign ones; CONFIDENCE = {[round(w, 2) for w in weights]}")
    print(f"all arguments right: {sum(one.args_right for one in asked) / len(asked):.1%}")
    for least in (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        sure = [one for one in found if one.skill != NONE and likelihood(weights, one.evidence) >= least]
        right = sum(one.skill == one.example.skill for one in sure)
        taken = sum(one.example.skill == NONE for one in sure)
        wrong = len(sure) - right - taken
        print(
            f"confidence {least:.2f}: right {right / len(asked):.1%}, wrong {wrong / len(asked):.1%}, "
            f"foreign taken {taken / len(foreign):.1%}"
        )
    counts = Counter(one.example.skill for one in found)
    right_ones = Counter(one.example.skill for one in found if one.skill == one.example.skill)
    print(" ".join(f"{name} {right_ones[name] / counts[name]:.0%}" for name in sorted(counts)))
    confused = Counter((one.example.skill, one.skill) for one in found if one.skill != one.example.skill)
    print("; ".join(f"{times} {name} -> {other}" for (name, other), times in confused.most_common(40)))
    for one in found if errors else ():
        if one.skill != one.example.skill or not one.args_right:
            sure_of = likelihood(weights, one.evidence)
            print(
                f"{one.example.skill} -> {one.skill} {sure_of:.2f} args={one.args_right}: {one.example.text}"
            )


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main(numbers[0] if numbers else PARTS, errors="--errors" in sys.argv)
