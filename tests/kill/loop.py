"""One kill after the other: where each of them comes, and what is looked at after it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from lightagentd.errors import LightagentError
from tests.faults.shim import AFTER, BEFORE, HALF
from tests.kill import after, inspection
from tests.kill.ledger import Ledger
from tests.kill.load import Load
from tests.kill.stage import Stage

How = Literal["time", "write", "start", "group"]
HOW: dict[How, int] = {"time": 4, "write": 8, "start": 2, "group": 1}
"""How often each kind of kill comes: after a time; at a write, sync or rename; in the middle of a start;
after a time together with every process below the daemon."""
LONGEST_S = 1.2
"""How long the load lasts at the most before the daemon is killed."""
MOST_WRITES = 500
MOST_WRITES_OF_START = 60


class Loop:
    """The rounds over one stage. Its owner removes the stage's folder, unless something was found."""

    def __init__(self, stage: Stage, seed: str, *, say: Callable[[str], None]) -> None:
        self.stage, self.seed, self.say = stage, seed, say
        self.ledger = Ledger()
        self.round = 0
        self.kills = 0
        self.events = 0
        self.began = time.monotonic()

    @property
    def killed(self) -> Path:
        """Where the store lies as the last kill left it."""
        return self.stage.base / "killed"

    def run(self, rounds: Iterable[int]) -> list[str]:
        """Gives what is wrong, as sentences, as soon as something is."""
        for self.round in rounds:
            rng = random.Random(f"{self.seed}/{self.round}")
            (how,) = rng.choices(list(HOW), list(HOW.values()))
            try:
                said = self._kill_in_start(rng) if how == "start" else self._kill_under_load(rng, how)
                problems = self._look()
            except (AssertionError, LightagentError) as err:
                return [f"round {self.round}: {type(err).__name__}: {err}"]
            self.say(f"{self.round}: seed {self.seed}/{self.round}, killed {said}, head {self.events}")
            if problems:
                return problems
        self._start()
        try:
            problems = after.ask(self.stage, self.ledger, prompts=True)
            return problems or after.come_to_rest(self.stage, self.ledger)
        finally:
            self.stage.daemon.stop()

    def remove(self) -> None:
        shutil.rmtree(self.stage.base)

    def summary(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.ledger.done.items()))
        refused = ", ".join(f"{count} {what}" for what, count in sorted(self.ledger.refused.items()))
        seconds = time.monotonic() - self.began
        return (
            f"{self.kills} kills in {seconds:.0f} s, {self.events} events\nacknowledged: {done}\n"
            f"refused: {refused or 'nothing'}"
        )

    def _start(self) -> None:
        self.stage.shim.kill_at(0)
        self.stage.daemon.start()

    def _kill_in_start(self, rng: random.Random) -> str:
        daemon, shim = self.stage.daemon, self.stage.shim
        if rng.random() < 0.5:
            number = rng.randint(1, MOST_WRITES_OF_START)
            shim.kill_at(number, rng.choice((BEFORE, AFTER, HALF)))
            daemon.spawn()
            ended = daemon.ends_within(5.0)
            where = f"in its start, at write {number}" + ("" if ended else " (which did not come)")
        else:
            seconds = rng.uniform(0.0, 1.0)
            daemon.spawn()
            time.sleep(seconds)
            where = f"{seconds:.2f} s after its start began"
        self._end()
        return where

    def _kill_under_load(self, rng: random.Random, how: How) -> str:
        daemon, shim = self.stage.daemon, self.stage.shim
        self._start()
        self.ledger.problems += after.ask(self.stage, self.ledger, prompts=True)
        load = Load(self.stage, self.ledger, f"{self.seed}/{self.round}")
        load.start()
        try:
            if how == "write":
                time.sleep(rng.uniform(0.0, 0.3))
                number, when = rng.randint(1, MOST_WRITES), rng.choice((BEFORE, AFTER, HALF))
                shim.kill_at(number, when)
                ended = daemon.ends_within(4 * LONGEST_S)
                place = {BEFORE: "before", AFTER: "after", HALF: "in the middle of"}[when]
                where = f"{place} write {number}" + ("" if ended else " (which did not come)")
            else:
                seconds = rng.uniform(0.05, LONGEST_S)
                time.sleep(seconds)
                where = f"{seconds:.2f} s into the load" + (" with its group" if how == "group" else "")
            self._end(group=how == "group")
        finally:
            load.join()
        return where

    def _end(self, *, group: bool = False) -> None:
        if group:
            self.stage.kill_everything()
        else:
            self.stage.daemon.kill()
        self.kills += 1

    def _look(self) -> list[str]:
        """What the kill left, before any start mends it."""
        shutil.rmtree(self.killed, ignore_errors=True)
        history = self.stage.paths.history
        if not (history / "data.mdb").exists():
            return list(self.ledger.problems)  # killed before there was one
        shutil.copytree(self.stage.paths.state, self.killed, ignore=shutil.ignore_patterns("*.sock"))
        problems = [*self.ledger.problems, *inspection.look(history, self.ledger)]
        self.ledger.problems.clear()
        for backup in self.ledger.backups:
            problems += inspection.look_at_backup(Path(backup))
        self.events = max(self.events, inspection.head(history))
        return problems
