"""The figures here and in the booted Debian 13 of tests/e2e, with the installed package, side by side.

It needs root, and what tests/e2e needs. The container has no network, so `peers` is measured here alone, and
so is `start`, which boots one itself. Its disk is memory, so what waits for a disk is faster there.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.e2e.debian import cache_folder, ensure_root
from tests.e2e.machine import Machine
from tests.e2e.product import install_product

FOLDER = "/opt/lightagent-bench"
TIMEOUT_S = 3600.0
_PURE = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging")
"""What tests/conftest.py needs and the root does not have."""
_ONLY_HERE = frozenset({"peers", "start"})
_FIGURE = re.compile(r"(?P<name>.*): (?P<value>[^()]*(\([^()]*\))?)")
"""A line of a benchmark. A colon may be in the name, and in what follows the value in parentheses."""


def run(options: Sequence[str], names: Sequence[str]) -> int:
    """Run the benchmarks of these names in both places; gives the exit status."""
    inside = [name for name in names if name not in _ONLY_HERE]
    if not inside:
        sys.exit(f"{', '.join(names)} cannot be measured in the container.")
    command = [sys.executable, "-m", "tests.bench", *options, *names]
    here = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    with Machine(ensure_root(cache_folder())) as machine:
        install_product(machine)
        machine.copy_in(REPOSITORY / "tests", f"{FOLDER}/tests")
        for name in _PURE:
            machine.copy_in(_source(name), f"{FOLDER}/{_source(name).name}")
        there = machine.run(
            ["python3", "-m", "tests.bench", *options, *inside],
            env={"PYTHONPATH": FOLDER, "HOME": "/root"},
            timeout_s=TIMEOUT_S,
            check=False,
        )
    for line in side_by_side(here.stdout, there.stdout):
        print(line)
    if there.status:
        print(there.stderr, file=sys.stderr)
    return here.returncode or there.status


def side_by_side(here: str, there: str) -> list[str]:
    """Each figure once, with what it is in both places; `-` where it is not."""
    found: dict[str, list[str]] = {"": ["here", "Debian 13"]}
    for column, text in enumerate((here, there)):
        for line in text.splitlines():
            if split := _FIGURE.fullmatch(line):
                found.setdefault(split["name"], ["-", "-"])[column] = split["value"]
    widths = [max(map(len, found)), max(len(values[0]) for values in found.values())]
    return [f"{name:{widths[0]}}  {one:{widths[1]}}  {other}" for name, (one, other) in found.items()]


def _source(name: str) -> Path:
    """The folder or the file of a package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin
