"""What hooks cost a step: turns with one hook in each phase, and turns of a daemon without any, one after the
other.
"""

from __future__ import annotations

import statistics

from lightagentd.toolkit.hook import PHASES
from tests.bench.rig import rig, show
from tests.bench.step import STEPS, one_turn

TARGET = 1.3
_HOOKS = "".join(f"def {phase}(payload):\n    return None\n\n" for phase in PHASES)


def run(rounds: int) -> None:
    with (
        rig(STEPS) as without,
        rig(STEPS, hooks=_HOOKS) as hooked,
        without.daemon.client() as bare,
        hooked.daemon.client() as asked,
    ):
        assert asked.call("org.lightagent1.Hooks.List")["hooks"][0]["phases"] == [*PHASES]
        plain: list[float] = []
        with_hooks: list[float] = []
        for number in range(rounds + 1):
            one, other = one_turn(bare), one_turn(asked)
            if number:  # the first round warms both up
                plain.append(one / (STEPS + 1) * 1000)
                with_hooks.append(other / (STEPS + 1) * 1000)
    show("hooks, step without", plain, "ms")
    show("hooks, step with one in each phase", with_hooks, "ms")
    ratios = [other / one for one, other in zip(plain, with_hooks, strict=True)]
    print(f"hooks, ratio: {statistics.median(ratios):.2f} (target: at most {TARGET})")
