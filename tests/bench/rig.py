"""What the benchmarks share: a daemon process with one agent that talks to a scripted model server."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.host.paths import Paths
from tests.conftest import REPOSITORY, DaemonProcess, write


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running daemon and a running model server, each a process of its own."""

    daemon: DaemonProcess
    model_url: str
    model_pid: int


@contextlib.contextmanager
def rig(steps: int, *, hooks: str = "") -> Iterator[Rig]:
    """A rig whose model makes `steps` tool calls for each prompt, and then answers. `hooks` is the text of a
    file of hooks.
    """
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
        if hooks:
            write(base / "etc/hooks/bench.py", hooks)
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        stack.callback(daemon.close)
        daemon.start()
        yield Rig(daemon=daemon, model_url=url, model_pid=server.pid)


@contextlib.contextmanager
def daemon_with(
    agents: Mapping[str, str], prompt: str = "Be brief.", *, all_tools: Collection[str] = ()
) -> Iterator[DaemonProcess]:
    """A running daemon with agents, each with its model's base URL. They have one small tool, but for those
    with `all_tools`.
    """
    with tempfile.TemporaryDirectory(prefix="la-bench-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        for name, url in agents.items():
            write(
                base / f"etc/agent/{name}/AGENT.md",
                f"---\nmodel: openai/scripted\nbase_url: {url}\n"
                f"{'' if name in all_tools else 'tools: [file.stat]'}\n"
                f"limits: {{max_steps: 1000}}\n---\n{prompt}\n",
            )
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.close()


def show(what: str, values: Sequence[float], unit: str) -> float:
    """Print the median of some measurements with their least and greatest; gives the median."""
    middle = statistics.median(values)
    print(f"{what}: {middle:.3g} {unit} (median of {len(values)}; {min(values):.3g} to {max(values):.3g})")
    return middle
