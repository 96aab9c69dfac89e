"""The kill loop: `python -m tests.kill --kills 500 --seed 1`.

Each round starts the daemon, puts it under load, kills it with SIGKILL at a random moment or write, looks at
the store and at the next start whether all that was acknowledged is there, and goes on with the same state.
Everything that is random comes from the seed and the round's number; how the machine interleaves it does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kill.inspection import look
from tests.kill.ledger import Ledger
from tests.kill.loop import Loop
from tests.kill.stage import Stage

MAX_BYTES = 4 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=500, metavar="N")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="the number of the first round")
    parser.add_argument("--look", type=Path, metavar="FOLDER", help="only look at a store that was kept")
    options = parser.parse_args()
    if options.look:
        problems = look(options.look, Ledger())
        print("\n".join(problems) or "nothing is wrong")
        return bool(problems)
    base = Path(tempfile.mkdtemp(prefix="la-kill-"))
    with Stage(base, max_bytes=MAX_BYTES) as stage:
        loop = Loop(stage, options.seed, say=lambda text: print(text, flush=True))
        problems = loop.run(range(options.first, options.first + options.kills))
    print(loop.summary())
    if problems:
        print("\n".join(f"PROBLEM: {problem}" for problem in problems))
        print(f"kept: {base}")
        print(
            f"again, from nothing: python -m tests.kill --seed {options.seed} --first {loop.round} --kills 1"
        )
        print(f"the store as the kill left it: python -m tests.kill --look {loop.killed}")
        return 1
    loop.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
