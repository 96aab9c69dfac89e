"""How long answers without a model take: from a prompt to its answer, and what health takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from tests.bench.rig import daemon_with, show

PROMPT_MS, HEALTH_S = 500, 5
ASKED = ("check disk", "is ssh ok", "what is eating memory", "who is listening on 22", "errors since boot")


def run(rounds: int) -> None:
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


def _took_ms(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return (time.perf_counter() - started) * 1000
