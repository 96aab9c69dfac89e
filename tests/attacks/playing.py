"""The test's side of a `stage`, wherever that runs: starts it, tells it what to play, reads what came.

with Playing(["nobody"], guarded=[config]) as playing:      # or with a prefix that enters a container
    … write the agents with playing.base_url, start the daemon …
    playing.set_up(socket=…, secrets=…, names=…)
    playing.play_all([("a fork bomb", "observe")])
"""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.attacks import exhausting, misleading
from tests.attacks.cases import CASES
from tests.attacks.counted import BY_MODEL
from tests.attacks.spoken import ENDLESS, GULLIBLE

REPOSITORY = Path(__file__).resolve().parents[2]

ALL = [(case.name, effect) for case in CASES.values() for effect in case.effects]
"""Each case with each of its effects."""
USE_UP_PROCESSES = (
    "a fork bomb",
    "a fork bomb in sessions of its own",
    "a million threads",
    "zombies",
    "no signal heeded",
)

SAME_ANYWHERE = {case.name for case in (*misleading.CASES, *exhausting.CASES)} - {
    *("a fork bomb", "all the memory", "all the descriptors", "no signal heeded", "output held open"),
    *("the scratch folder full", "folders that are closed", "pseudo terminals and kernel I/O of all"),
    *("output without an end", "a log with instructions"),
    *("an effect that the agent lacks", "another agent's reach"),
}
"""Cases that end at what the daemon and its workers do in every place, not at what holds a worker in one."""


def one_effect_each() -> Iterator[tuple[str, str]]:
    """Each case that ends at what holds a worker, with its effects by turns: for a second place."""
    turns = itertools.count()
    for case in CASES.values():
        if case.name not in SAME_ANYWHERE:
            yield case.name, case.effects[next(turns) % 2 if len(case.effects) == 2 else 0]


Outcomes = dict[tuple[str, str], dict[str, Any]]
"""What came of plays, by name and effect."""
Came = Callable[[str, str, str], dict[str, Any]]
"""What came of a play, by name, effect and speaker."""


def plays(cases: Iterable[tuple[str, str]], by: str = BY_MODEL, *more: str) -> list[Any]:
    """Cases with their effects, and what else the test takes, as parameters of a test."""
    mark = [pytest.mark.uses_up_processes]
    return [
        pytest.param(
            *one,
            *more,
            id=f"{one[0]}, {one[1]}, {by}",
            marks=mark if one[0] in USE_UP_PROCESSES else [],
        )
        for one in cases
    ]


AGENTS = {"mallory": "[observe, reach]", "peeper": "[observe]", GULLIBLE: "[observe, reach]"}
"""The agents that the cases name, and their effects."""


class Playing:
    """Owns the stage's process while the block runs."""

    def __init__(
        self,
        worker_users: Sequence[str],
        guarded: Sequence[str],
        *,
        enter: Sequence[str] = (),
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._argv = [*enter, python, "-m", "tests.attacks.stage", ",".join(worker_users), *guarded]
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None
        self.base_url = ""
        self.names: dict[str, str] = {}
        self.secrets: dict[str, str] = {}

    def __enter__(self) -> Playing:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._env or None,
            cwd=REPOSITORY,
            text=True,
        )
        found = self._read()
        self.base_url, self.names, self.secrets = found["base_url"], found["names"], found["secrets"]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def set_up(
        self,
        *,
        socket: str,
        secrets: dict[str, str],
        names: dict[str, str],
        facts: Sequence[Sequence[str]] = (),
    ) -> None:
        """`names` are for the arguments of attacks, `facts` commands that must always print the same."""
        told = {"socket": socket, "known_secrets": secrets, "names": names, "facts": [*facts]}
        self._say({"setup": told})

    def play_all(self, cases: Sequence[tuple[str, str]], speaker: str = "") -> Outcomes:
        """What came of each of the cases with its effect, which run beside each other: `findings` is empty
        when the attack came to nothing.
        """
        return dict(zip(cases, self._say({"play": [*cases], "speaker": speaker}), strict=True))

    def control(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._say({"control": name})
        return found

    def _say(self, line: dict[str, Any]) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the stage ended with status {self._process.poll()}"
        return json.loads(line)


def played(playing: Playing, request: pytest.FixtureRequest) -> Came:
    """For a fixture of a module: what came of each attack that was chosen.

    Those of a speaker run beside each other. The endless ones come after them, and have the daemon for
    themselves: each lasts until it is ended. Those that use up processes are played when they are asked for.
    """
    chosen = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        if request.fixturename in item.fixturenames
    ]

    @functools.cache
    def together(speaker: str, endless: bool) -> Outcomes:
        wanted = [(str(one["name"]), str(one["effect"])) for one in chosen if one["speaker"] == speaker]
        of_these = [
            one for one in wanted if (one[0] in ENDLESS) is endless and one[0] not in USE_UP_PROCESSES
        ]
        return playing.play_all(of_these, speaker)

    def of(name: str, effect: str, speaker: str) -> dict[str, Any]:
        if name in USE_UP_PROCESSES:
            return playing.play_all([(name, effect)], speaker)[name, effect]
        return together(speaker, name in ENDLESS)[name, effect]

    return of


def agent_file(base_url: str, effects: str, key_file: str) -> str:
    """The AGENT.md of an agent whose model is the stage's."""
    return (
        f"---\nmodel: openai/x\nbase_url: {base_url}\napi_key_file: {key_file}\n"
        f"effects: {effects}\nlimits:\n  max_steps: 40\n---\nDo what you are asked.\n"
    )


def settings(names: Mapping[str, str]) -> str:
    """The daemon's configuration: short times, and one private web server that may be asked."""
    return (
        "[limits]\ncall_timeout_s = 12\n"
        f'[worker]\nweb_allow = ["127.0.0.1:{names["web"]}"]\nmax_per_effect = 1\n'
    )


def explain(outcome: Mapping[str, Any]) -> str:
    """Findings and results for an assertion's message."""
    lines = [*outcome["findings"], "", *(f"{code}: {text}" for code, text in outcome.get("results", ()))]
    return "\n".join(lines)[:20_000]


RULE = """\
# What a session has read must not keep it from trying to reach out: the sandbox is what is on trial.
[[rule]]
name = "attackers-may-try"
agent = "mallory"
effect = "reach"
decision = "allow"
even_if_tainted = true
"""
