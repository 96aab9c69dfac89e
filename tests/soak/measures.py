"""What a process takes: descriptors by what they are, tasks, and memory of its own.

The memory is `RssAnon` of proc_pid_status(5): without the pages of the history's file, which the kernel
counts for whoever has mapped them and takes back when it wants to. It is measured while nothing runs, after
garbage was collected, so that it is what stays: an answer of a megabyte takes many of them while it arrives.
malloc(3) keeps what was freed in pieces too small to give back, so that a single figure says little, and the
median of some counts.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

WARM_TURNS = 2000
"""By then every cache is as full as it gets, and every conversation has been shortened once."""
_COUNTED = 5
"""So many measures make a figure."""
MOST_GROWTH = 0.05


def descriptors(pid: int) -> Counter[str]:
    """How many descriptors of each kind a process has."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[re.sub(r":\[[0-9]+\]$", "", str(entry.readlink()))] += 1
        except OSError:
            continue  # it is closed by now
    return found


def anonymous_kib(pid: int) -> int:
    """The memory that is a process's alone, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+([0-9]+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


@dataclass
class Memory:
    """Samples of a process's memory: after how many turns, and KiB."""

    samples: list[tuple[int, int]] = field(default_factory=list)

    def take(self, turns: int, pid: int) -> None:
        self.samples.append((turns, anonymous_kib(pid)))

    def growth(self) -> float | None:
        """From the turn `WARM_TURNS` on to the last ones, as a part; None when there were too few."""
        warm = [kib for turns, kib in self.samples if turns >= WARM_TURNS]
        if len(warm) < 2 * _COUNTED:
            return None
        return statistics.median(warm[-_COUNTED:]) / statistics.median(warm[:_COUNTED]) - 1

    def curve(self) -> str:
        """The samples in a few words."""
        return ", ".join(f"{turns}: {kib / 1024:.1f}" for turns, kib in self.samples)
