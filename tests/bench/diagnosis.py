"""How long answers without a model take: from a prompt to its answer, health, and matching alone."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lightagentd.llm.runbook import matching
from lightagentd.llm.runbook.matching import SkillIndex
from lightagentd.skills import load_skills
from tests.bench.rig import daemon_with, show
from tests.conftest import REPOSITORY

PROMPT_MS, HEALTH_S, MATCH_MS, HOSTILE_MS, LOAD_S, WEIGHTS_MIB = 500, 5, 5, 50, 1, 2
ASKED = ("check disk", "is ssh ok", "what is eating memory", "who is listening on 22", "errors since boot")
HOSTILE = ("a " * 500_000, "磁盘满了吗" * 400, "\x00\x1b[31m" * 500, "a.b:1" * 500)


def run(rounds: int) -> None:
    _matching(rounds)
    answers: list[float] = []
    healths: list[float] = []
    with daemon_with({}) as daemon:
        daemon.lactl("health")  # starts the worker
        for _ in range(rounds):
            answers += [_took_ms(partial(daemon.lactl, "prompt", "ops", prompt)) for prompt in ASKED]
            healths.append(_took_ms(partial(daemon.lactl, "health")) / 1000)
        checks = len(json.loads(daemon.lactl("health", "--json").stdout)["checks"])
    show(f"a prompt without a model to its answer, with lactl (target: at most {PROMPT_MS})", answers, "ms")
    show(f"health with {checks} checks, with lactl (target: at most {HEALTH_S})", healths, "s")


def _matching(rounds: int) -> None:
    skills = list(load_skills([REPOSITORY / "skills"]).skills.values())
    prompts = [example.text for skill in skills for example in skill.examples[:5]]
    loads: list[float] = []
    each: list[float] = []
    hostile: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        index = SkillIndex(skills)
        index.match(ASKED[0])
        loads.append(time.perf_counter() - started)
        each.append(statistics.median(_took_ms(partial(index.match, text)) for text in prompts))
        hostile.append(max(_took_ms(partial(index.match, text)) for text in HOSTILE))
    show(f"matching a prompt among {len(skills)} skills (target: at most {MATCH_MS})", each, "ms")
    show(
        f"a megabyte, Chinese, control characters, the longest (target: at most {HOSTILE_MS})", hostile, "ms"
    )
    show(f"loading the weights, and own examples (target: at most {LOAD_S})", loads, "s")
    size = Path(matching.__file__).with_name("weights.bin").stat().st_size / 2**20
    print(f"weights: {size:.2f} MiB (target: at most {WEIGHTS_MIB})")


def _took_ms(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return (time.perf_counter() - started) * 1000
