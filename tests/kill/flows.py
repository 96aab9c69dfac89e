"""Kills the daemon again and again in runs of a flow: `python -m tests.kill.flows [KILLS]`.

Each run has 20 steps, of which every second one adds a line to a file. A person who is asked what a step did
looks into the file, and says so. At the end of each run the file has each line once, and the run each output.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path

from lightagentd.client import Client
from lightagentd.errors import InputClosed
from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write

STEPS = 20
_LONGEST_S = 1.2
_TIMEOUT_S = 120.0


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory(prefix="la-flows-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        print(_loop(base, kills))


def _loop(base: Path, kills: int) -> str:
    chance = random.Random(1)
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    out = base / "lines"
    _write(paths, out)
    daemon = DaemonProcess(paths)
    done = asked = runs = 0
    try:
        daemon.start()
        while done < kills:
            out.write_text("")
            with daemon.client() as client:
                run = client.flows_run(flow="many")["run"]["id"]
            runs += 1
            while True:
                over, answered = _until(daemon, run, out, time.monotonic() + chance.uniform(0.0, _LONGEST_S))
                asked += answered
                if over or done >= kills:
                    break
                daemon.kill()
                daemon.start()
                done += 1
            deadline = time.monotonic() + _TIMEOUT_S
            while not over:
                over, answered = _until(daemon, run, out, time.monotonic() + 1.0)
                asked += answered
                assert time.monotonic() < deadline, "the run is stuck"
            _check(daemon, run, out)
    finally:
        daemon.close()
    return f"{done} kills in {runs} runs of {STEPS} steps: no output lost, no line twice; {asked} questions"


def _write(paths: Paths, out: Path) -> None:
    lines = ['description = "Many steps"\nagent = "ops"\n']
    for number in range(STEPS):
        after = f'depends_on = ["s{number - 1}"]\n' if number else ""
        change = f'command = "echo {number} >> {out}; echo {number}", effect = "change"'
        observe = f'command = "echo {number}", effect = "observe"'
        args = change if number % 2 else observe
        lines.append(f'[[step]]\nname = "s{number}"\n{after}call = "bash.exec"\nargs = {{ {args} }}\n')
    write(paths.config / "flows" / "many.toml", "".join(lines))
    write(paths.config / "lightagentd.toml", '[worker]\nchange_agents = ["ops"]\n')
    rule = '[[rule]]\nname = "many"\ntool = "bash"\ndecision = "allow"\neven_if_tainted = true\n'
    write(paths.config / "policy.d" / "many.toml", rule)


def _until(daemon: DaemonProcess, run: str, out: Path, until_s: float) -> tuple[bool, int]:
    """Whether the run is over by then, and how many questions were answered."""
    asked = 0
    with daemon.client() as client:
        while True:
            found = client.flows_show(run=run)["shown"]
            if found["run"]["state"] not in ("running", "waiting"):
                return True, asked
            for step in found["steps"]:
                if step["waits_for"]:
                    there = step["name"][1:] in out.read_text().split()
                    _answer(client, step["waits_for"], "it is done" if there else "run it again")
                    asked += 1
            if time.monotonic() >= until_s:
                return False, asked
            time.sleep(0.01)


def _answer(client: Client, question: str, text: str) -> None:
    with contextlib.suppress(InputClosed):  # answered a moment ago
        client.inputs_answer(input=question, text=text)


def _check(daemon: DaemonProcess, run: str, out: Path) -> None:
    with daemon.client() as client:
        found = client.flows_show(run=run)["shown"]
    assert found["run"]["state"] == "success", found["run"]
    assert out.read_text().split() == [str(number) for number in range(1, STEPS, 2)]
    for number, step in enumerate(found["steps"]):
        assert step["state"] == "success", step
        if not step["message"]:  # else a person said that it is done
            assert step["output"] == str(number), step


if __name__ == "__main__":
    main()
