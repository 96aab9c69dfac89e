"""Assesses the agent ops with the built-in model, and writes what comes out into docs/assessment.md.

`assessment.py [TIMES]` starts a daemon of its own from the checkout, has the cases of agent/ops/evals
answered, and puts the tables between the two marks of the page. It says nothing about time, so that the page
changes only with the results.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightagentd.assessment.cases import read_cases
from lightagentd.assessment.figures import of_run
from lightagentd.assessment.report import percent

REPOSITORY = Path(__file__).resolve().parents[2]
CASES = REPOSITORY / "agent" / "ops" / "evals"
PAGE = REPOSITORY / "docs" / "assessment.md"
BEGIN, END = "<!-- the result -->", "<!-- end of the result -->"
TIMES = 3
_FAILED = 82
_WAIT_S = 60.0


def main(times: int) -> None:
    """Run the cases so often, and write the page. Raises SystemExit."""
    with tempfile.TemporaryDirectory(prefix="lightagent-") as name, _daemon(Path(name)) as socket:
        argv = ["eval", "run", str(CASES), "--agent", "ops", "--model", "runbook", "-n", str(times), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "lightagentd.cli.main", *argv],
            cwd=REPOSITORY,
            env={**os.environ, "LIGHTAGENT_SOCKET": str(socket)},
            stdout=subprocess.PIPE,
            check=False,
        )
    if done.returncode not in (0, _FAILED):
        raise SystemExit(done.returncode)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{result(json.loads(done.stdout))}\n{END}{after}")


def result(found: dict[str, Any]) -> str:
    """The tables in Markdown."""
    (model,) = of_run(found["run"], found["trials"])
    cases = {one.case: one for one in model.cases}
    lines = [
        f"{len(cases)} cases, {model.times} times each, with the model `{model.model}`: pass@1"
        f" **{percent(model.pass_1)}**, pass^{model.times} **{percent(model.pass_all)}**"
        f" (with 95 % intervals). {_flaky(model.flaky)}",
        "",
        "| cases | number | passed |",
        "|---|---|---|",
    ]
    for path in sorted(CASES.glob("*.toml")):
        names = [case.name for case in read_cases(path)]
        passed = sum(cases[name].share.passed == cases[name].share.of for name in names)
        lines.append(f"| {path.stem} | {len(names)} | {passed} |")
    lines += ["", "What does not pass, and why:", "", "| case | why |", "|---|---|"]
    for one in model.cases:
        why = next((trial["why"][0] for trial in one.trials if trial["why"]), "")
        if why:
            lines.append(f"| {one.case} | {why.replace('|', '/')} |")
    return "\n".join(lines)


def _flaky(names: list[str]) -> str:
    return f"Flaky: {', '.join(names)}." if names else "No case is flaky."


@contextlib.contextmanager
def _daemon(base: Path) -> Iterator[Path]:
    """A daemon of the checkout; gives its socket."""
    base.chmod(0o755)
    folders = [f"--config-dir={base}/etc", f"--state-dir={base}/state", f"--runtime-dir={base}/run"]
    with (base / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "lightagentd.daemon", *folders], cwd=REPOSITORY, stdout=log, stderr=log
        )
    try:
        socket, until_s = base / "run" / "control.sock", time.monotonic() + _WAIT_S
        while not socket.exists():
            if daemon.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"The daemon did not start:\n{(base / 'log').read_text()}")
            time.sleep(0.1)
        yield socket
    finally:
        daemon.terminate()
        daemon.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES)
