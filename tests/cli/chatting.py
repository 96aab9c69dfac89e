"""A daemon whose agent `test` speaks to `chatty_model`, and chats with it on a terminal."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightagentd.host.paths import Paths
from tests.cli.terminal import REPOSITORY, Program, Terminal, start
from tests.conftest import DaemonProcess, write
from tests.prepared import LACTL, forkable, prepared


@dataclass(frozen=True, kw_only=True)
class Chatty:
    """The daemon, and the folder that the test, the model and the commands share."""

    daemon: DaemonProcess
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return self.daemon.env | {"XDG_STATE_HOME": str(self.folder / "state-home")}

    def chat(self, *arguments: str, columns: int = 80, rows: int = 40, **env: str) -> Terminal:
        """A chat on a terminal, with a new session unless the arguments name one."""
        words = ["chat", "test", *(arguments or ["--new"])]
        return Terminal(words, env=self.env | env, columns=columns, rows=rows, start=forked)

    def lactl(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        return self.daemon.lactl(*arguments, stdin=stdin)

    def sessions(self, agent: str = "test") -> list[dict[str, Any]]:
        """The sessions, newest first."""
        found: list[dict[str, Any]] = json.loads(
            self.lactl("sessions", "list", "--agent", agent, "--json").stdout
        )
        return found

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    def close_gate(self) -> None:
        (self.folder / "open").unlink(missing_ok=True)


def forked(arguments: Sequence[str], env: dict[str, str], terminal: int) -> Program:
    """lactl on a terminal, forked (tests/prepared.py)."""
    if not forkable(env):
        return start(arguments, env, terminal)
    return prepared().fork(LACTL, arguments, env, REPOSITORY, [terminal] * 3, on_terminal=True)


@contextlib.contextmanager
def chatty(config: str = "") -> Iterator[Chatty]:
    """A running daemon, with more of its configuration; its folders are open to others, because workers of
    root's daemon run as nobody.
    """
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        shared = base / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        model = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.chatty_model", str(shared)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        daemon = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        try:
            assert model.stdout is not None
            url = model.stdout.readline().decode().strip()
            front = f"---\nmodel: openai/x\nbase_url: {url}\neffects: [observe, reach, change]\n---\nBe.\n"
            for agent in ("test", "other", "third", "fourth"):
                write(base / "etc" / "agent" / agent / "AGENT.md", front)
            write(base / "etc" / "lightagentd.toml", '[worker]\nchange_agents = ["test"]\n' + config)
            daemon.start()
            yield Chatty(daemon=daemon, folder=shared)
        finally:
            daemon.close()
            model.kill()
            model.wait(10)
            if model.stdout is not None:
                model.stdout.close()
