"""How long the embedded model takes to find the skill for a prompt, and to load what it has learned.

How often it finds the right one is told by `python -m learning` (packaging/learning/__main__.py).
"""

from __future__ import annotations

import statistics
import time

from lightagentd.host.paths import share_folder
from lightagentd.llm.runbook import weights
from lightagentd.llm.runbook.matching import SkillIndex
from lightagentd.skills import load_skills
from tests.bench.rig import show

EACH = 15
"""Of the examples one of so many is asked."""
TARGET_MS, TARGET_LOAD_MS = 5, 100


def run(rounds: int) -> None:
    skills = load_skills([share_folder() / "skills"]).skills.values()
    prompts = [example.text for skill in skills for example in skill.examples][::EACH]
    loads: list[float] = []
    medians: list[float] = []
    longest: list[float] = []
    for _ in range(rounds):
        weights.load.cache_clear()
        started = time.perf_counter()
        index = SkillIndex(skills)
        loads.append((time.perf_counter() - started) * 1000)
        times = []
        for prompt in prompts:
            started = time.perf_counter()
            index.match(prompt)
            times.append((time.perf_counter() - started) * 1000)
        medians.append(statistics.median(times))
        longest.append(max(times))
    size_kib = weights.FILE.stat().st_size / 1024
    show(f"match, loading {size_kib:.0f} KiB of weights (target: at most {TARGET_LOAD_MS})", loads, "ms")
    show(f"match, each prompt (target: at most {TARGET_MS})", medians, "ms")
    show("match, longest of a round", longest, "ms")
