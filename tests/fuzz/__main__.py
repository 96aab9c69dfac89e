"""The fuzzer: `python -m tests.fuzz --seconds 600 --seed 7`.

The time is shared by the targets; every input comes from the seed, the target's name and its number.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.running import ALL, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--target", action="append", choices=ALL, metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--only", type=int, default=0, metavar="N", help="only the input with this number")
    options = parser.parse_args()
    names = options.target or list(ALL)
    failures = []
    for name in names:
        if options.only:
            count, failure = run(name, options.seed, inputs=1, first=options.only)
        else:
            count, failure = run(name, options.seed, seconds=options.seconds / len(names))
        print(f"{name}: {count} inputs, {'FAILED' if failure else 'none failed'}", flush=True)
        if failure:
            failures.append(failure)
            again = f"--target {name} --seed {failure.seed} --only {failure.number}"
            print(f"{failure.trace}\nagain: python -m tests.fuzz {again}", flush=True)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
