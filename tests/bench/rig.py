"""What the benchmarks share: a daemon process with one agent that talks to a scripted model server."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.paths import Paths
from tests.conftest import REPOSITORY, DaemonProcess, write


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running daemon and a running model server, each a process of its own."""

    daemon: DaemonProcess
    model_url: str


@contextlib.contextmanager
def rig(steps: int) -> Iterator[Rig]:
    """A rig whose model makes `steps` tool calls for each prompt, and then answers."""
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="la-bench-")))
        base.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.scripted_model", "0", str(steps)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(server.wait, 10)
        stack.callback(server.terminate)
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        write(
            base / "etc/agent/bench/AGENT.md",
            f"---\nmodel: openai/scripted\nbase_url: {url}\nlimits: {{max_steps: {steps + 1}}}\n---\n",
        )
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        stack.callback(daemon.close)
        daemon.start()
        yield Rig(daemon=daemon, model_url=url)


def show(what: str, values: Sequence[float], unit: str) -> float:
    """Print the median of some measurements with their least and greatest; gives the median."""
    middle = statistics.median(values)
    print(f"{what}: {middle:.3g} {unit} (median of {len(values)}; {min(values):.3g} to {max(values):.3g})")
    return middle
