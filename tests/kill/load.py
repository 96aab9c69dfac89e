"""The load of the kill loop: clients that do what people do, until the daemon is gone.

Each client is a thread with sessions of its own, which outlive the daemon; what it does comes from its seed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from lightagentd.errors import DaemonUnreachable, LightagentError
from tests.conftest import REPOSITORY
from tests.kill.answers import VERBS
from tests.kill.ledger import Known, Ledger, Value
from tests.kill.stage import AGENT, Stage

CLIENTS = 4
MOST_SESSIONS = 4
"""How many sessions each client keeps; then it deletes."""
ANSWERING = {"approvals": 3, "inputs": 2, "wait": 3}
CARING = {"prune": 3, "compact": 1, "verify": 1, "backup": 1, "reload": 1, "wait": 6}
PROMPTING = {
    "create": 2,
    "prompt": 14,
    "prompt_and_leave": 8,
    "rename": 3,
    "pause": 1,
    "resume": 3,
    "switch": 1,
    "fork": 2,
    "delete": 1,
    "export_and_import": 1,
    "begin_plan": 1,
    "set_plan": 1,
    "apply_plan": 2,
    "end_plan": 1,
    "remember": 2,
    "forget": 1,
    "set_profile": 1,
    "call_tool": 3,
    "query": 2,
}


class Load:
    """All clients of one life of the daemon: `start`, and after the daemon's end `join`."""

    def __init__(self, stage: Stage, ledger: Ledger, seed: str) -> None:
        self._stage, self._ledger, self._seed = stage, ledger, seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(CLIENTS):
            chooses = random.Random(f"{self._seed}/{number}")
            self._run(_Person(self._stage, self._ledger, number, chooses, self._over).live)
        self._run(
            _Answering(
                self._stage, self._ledger, random.Random(f"{self._seed}/a"), self._over, ANSWERING
            ).live
        )
        self._run(
            _Caring(self._stage, self._ledger, random.Random(f"{self._seed}/c"), self._over, CARING).live
        )
        self._run(self._subscribe)

    def join(self) -> None:
        """Wait for the clients, which end when the daemon is gone."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self._ledger.problems.append("a client hangs although the daemon is gone")
        self._threads.clear()

    def _run(self, target: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                target()
            except DaemonUnreachable:
                return
            except Exception as err:  # noqa: BLE001 - a client that fails is a finding, and the loop reports it
                self._ledger.problems.append(f"a client failed: {type(err).__name__}: {err}")

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _subscribe(self) -> None:
        with self._stage.daemon.client() as client:
            for reply in client.stream("Events.Subscribe", follow=True):
                if (event := reply["event"]) is not None:
                    self._ledger.events[event["seq"]] = event["hash"]


class _Client:
    """A client that does one thing after another, each chosen from `weights`."""

    def __init__(
        self,
        stage: Stage,
        ledger: Ledger,
        rng: random.Random,
        over: threading.Event,
        weights: dict[str, int],
    ) -> None:
        self.weights = dict(weights)
        self.stage, self.ledger, self.rng, self.over = stage, ledger, rng, over

    def live(self) -> None:
        with self.stage.daemon.client() as self.client:
            while not self.over.is_set():
                (what,) = self.rng.choices(list(self.weights), list(self.weights.values()))
                try:
                    if getattr(self, f"_{what}")() is not False:
                        self.ledger.count(self.ledger.done, what)
                except DaemonUnreachable:
                    return
                except LightagentError as err:
                    self._refused(what, err)
                self._breathe()

    def _breathe(self) -> None:
        self.over.wait(self.rng.uniform(0, 0.01))

    def _refused(self, what: str, err: LightagentError) -> None:
        if err.code == "method_not_found":
            self.weights = {name: weight for name, weight in self.weights.items() if name != what}
        if err.code == "internal":
            self.ledger.problems.append(f"{what}: {err}")
        self.ledger.count(self.ledger.refused, f"{what}: {err.code}")


class _Person(_Client):
    """Prompts, and looks after his sessions and memories."""

    def __init__(
        self, stage: Stage, ledger: Ledger, number: int, rng: random.Random, over: threading.Event
    ) -> None:
        super().__init__(stage, ledger, rng, over, PROMPTING)
        self.number = number

    def _mine(self) -> list[Known]:
        return [known for known in self.ledger.living() if known.title.possible[0].startswith(self._mark)]

    @property
    def _mark(self) -> str:
        return f"c{self.number} "

    def _one(self) -> Known:
        mine = self._mine()
        return self.rng.choice(mine) if mine else self._made()

    def _made(self) -> Known:
        title = f"{self._mark}{self.rng.getrandbits(40):x}"
        made = self.client.call("Sessions.Create", agent=AGENT, title=title)["session"]
        return self._keep(made, title)

    def _keep(self, made: dict[str, Any], title: str) -> Known:
        known = Known(id=made["id"], title=Value(title))
        self.ledger.sessions[known.id] = known
        return known

    def _create(self) -> bool:
        if len(self._mine()) >= MOST_SESSIONS:
            return False
        self._made()
        return True

    def _text(self) -> str:
        return f"p{self.rng.getrandbits(48):x} {self.rng.choice(VERBS)}"

    def _prompt(self) -> None:
        """Prompt, and read the turn for some time or to its end."""
        self._say(leave_after=200 if self.rng.random() < 0.7 else 4)

    def _prompt_and_leave(self) -> None:
        self._say(leave_after=1)

    def _say(self, *, leave_after: int) -> None:
        known, text = self._one(), self._text()
        with self.stage.daemon.client() as client:
            events = client.stream("Sessions.Prompt", session=known.id, text=text)
            for number, reply in enumerate(events, 1):
                event = reply["event"]
                if number == 1:
                    known.prompts.append(text)
                if event["type"] == "done":
                    known.answered.append(text)
                if number >= leave_after or event["type"] in ("approval_requested", "input_requested"):
                    return

    def _rename(self) -> None:
        known, title = self._one(), f"{self._mark}{self.rng.getrandbits(40):x}"
        with known.title.changed_to(title):
            self.client.call("Sessions.Rename", session=known.id, title=title)

    def _pause_session(self, known: Known, *, paused: bool) -> None:
        with known.paused.changed_to(paused):
            self.client.call(f"Sessions.{'Pause' if paused else 'Resume'}", session=known.id)

    def _pause(self) -> None:
        known = self._one()
        if known.paused.possible == [False]:
            self._pause_session(known, paused=True)

    def _resume(self) -> bool:
        paused = [known for known in self._mine() if known.paused.possible == [True]]
        if not paused:
            return False
        self._pause_session(self.rng.choice(paused), paused=False)
        return True

    def _switch(self) -> None:
        self.client.call("Sessions.Switch", session=self._one().id)

    def _fork(self) -> bool:
        if len(self._mine()) >= MOST_SESSIONS:
            return False
        title = f"{self._mark}{self.rng.getrandbits(40):x}"
        self._keep(self.client.call("Sessions.Fork", session=self._one().id, title=title)["session"], title)
        return True

    def _delete(self) -> bool:
        mine = self._mine()
        if len(mine) < MOST_SESSIONS - 1:
            return False
        known = self.rng.choice(mine)
        with known.there.changed_to(False):
            self.client.call("Sessions.Delete", session=known.id, confirmed=True)
        return True

    def _export_and_import(self) -> bool:
        if len(self._mine()) >= MOST_SESSIONS:
            return False
        text = self.client.call("Sessions.Export", session=self._one().id, format="jsonl")["export"]["text"]
        title = f"{self._mark}{self.rng.getrandbits(40):x}"
        self._keep(self.client.call("Sessions.Import", agent=AGENT, text=text, title=title)["session"], title)
        return True

    def _begin_plan(self) -> None:
        self.client.call("Plans.Begin", session=self._one().id)

    def _set_plan(self) -> None:
        tasks = [{"text": f"task-{self.rng.getrandbits(40):x} look"} for _ in range(2)]
        self.client.call("Plans.Set", session=self._one().id, plan={"title": "set", "tasks": tasks})

    def _apply_plan(self) -> None:
        known = self._one()
        phase = self.client.call("Plans.Get", session=known.id)["plan"]
        if phase["phase"] == "ready" or phase["stopped_at"]:
            choice = "skip" if phase["stopped_at"] else ""
            self.client.call("Plans.Apply", session=known.id, choice=choice)

    def _end_plan(self) -> None:
        self.client.call("Plans.End", session=self._one().id)

    def _remember(self) -> None:
        made = self.client.call("Memory.Remember", text=f"Fact {self.rng.getrandbits(48):x}.")["memory"]
        self.ledger.memories[made["id"]] = Value(True)

    def _forget(self) -> bool:
        of_mine = [key for key in list(self.ledger.memories) if crc32(key.encode()) % CLIENTS == self.number]
        there = [key for key in of_mine if self.ledger.memories[key].possible == [True]]
        if not there:
            return False
        key = self.rng.choice(there)
        with self.ledger.memories[key].changed_to(False):
            self.client.call("Memory.Forget", memory=key)
        return True

    def _set_profile(self) -> bool:
        if self.number:
            return False
        text = f"I am {self.rng.getrandbits(40):x}."
        with self.ledger.profile.changed_to(text):
            self.client.call("Memory.SetProfile", text=text)
        return True

    def _call_tool(self) -> None:
        with self.stage.daemon.client() as client:
            for _ in client.stream(
                "Tools.Call", agent=AGENT, tool="file", action="stat", args={"path": "/etc/hostname"}
            ):
                pass

    def _query(self) -> None:
        self.client.call("History.Query", session=self._one().id, limit=20)


class _Answering(_Client):
    """Answers what agents ask for, or lets it wait."""

    def _approvals(self) -> None:
        for asked in self.client.call("Approvals.List")["approvals"]:
            answer = self.rng.choice(("granted", "granted", "denied", ""))
            if answer and asked["state"] == "waiting":
                method = "Approve" if answer == "granted" else "Deny"
                self.client.call(f"Approvals.{method}", approval=asked["id"])
                self.ledger.answers[asked["id"]] = answer

    def _inputs(self) -> None:
        for asked in self.client.call("Inputs.List")["inputs"]:
            if self.rng.random() < 0.6:
                self.client.call("Inputs.Answer", input=asked["id"], text="yes")
                self.ledger.answers[asked["id"]] = "yes"

    def _wait(self) -> None:
        self.over.wait(0.03)


class _Caring(_Client):
    """An administrator: retention, compaction, backups, verification."""

    def _prune(self) -> None:
        self.client.call("History.Prune", dry_run=False)

    def _compact(self) -> None:
        self.client.call("History.Compact")

    def _verify(self) -> None:
        found = self.client.call("History.Verify")["verification"]
        if not found["ok"]:
            self.ledger.problems.append(f"the running daemon says that its history is bad: {found}")

    def _backup(self) -> bool:
        file = self.stage.base / f"backup-{self.rng.getrandbits(40):x}"
        done = self._lactl("history", "backup", str(file))
        if done.returncode:
            self.ledger.count(self.ledger.refused, f"backup: exit status {done.returncode}")
            if "No such command" in done.stderr:
                self.weights = {name: weight for name, weight in self.weights.items() if name != "backup"}
            return False
        for old in self.ledger.backups:
            Path(old).unlink()
        self.ledger.backups[:] = [str(file)]
        return True

    def _lactl(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lightagentd.cli.main", *args],
            cwd=REPOSITORY,
            env={
                **self.stage.daemon.env,
                "LD_PRELOAD": "",
                "LIGHTAGENT_STATE_DIR": str(self.stage.paths.state),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def _reload(self) -> None:
        self.client.call("Manager.Reload")

    def _wait(self) -> None:
        self.over.wait(0.1)
