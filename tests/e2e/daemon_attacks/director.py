"""Carries out the attacks, one after the other, and prints what came of each as a line of JSON.

It runs as root beside the attacker. Its arguments are the two sockets of the attacker, and the names of those
attacks or modules that are to be carried out.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from . import code, flooding, later, lying, people, rules, seeing, signatures, system
from .stage import ATTACKS, MARKS, Attack, Hand, Stage, eventually, fresh

MODULES = (signatures, rules, code, later, people, seeing, lying, system, flooding)


def carried_out(stage: Stage, one: Attack) -> dict[str, Any]:
    mark = MARKS / one.name
    stage.said.clear()
    began, problem, effect = time.monotonic(), "", False
    try:
        effect = bool(one.run(stage, mark))
    except Exception:  # noqa: BLE001 - the others are to be carried out as well
        problem = traceback.format_exc()
    wait_s = 5.0 if one.is_control else 0.0
    effect = eventually(mark.exists, wait_s) or effect
    took_s = time.monotonic() - began
    answers = sorted({said.partition(":")[0][:40] for said in stage.said})
    told = {"name": one.name, "told": one.told, "control": one.is_control, "took_s": took_s}
    return {**told, "effect": effect, "problem": problem, "codes": answers, "said": stage.said[-6:]}


def main() -> None:
    stage = Stage(Hand(sys.argv[1]), Hand(sys.argv[2]))
    fresh(MARKS)
    for one in ATTACKS:
        if {one.name, one.run.__module__.rpartition(".")[2]} & {*sys.argv[3:]}:
            print(json.dumps(carried_out(stage, one)), flush=True)


if __name__ == "__main__":
    main()
