"""Names the places of state, sockets, configuration and content folders.

The system daemon uses /etc, /var/lib and /run; an ordinary user's own daemon the XDG directories. The
environment variables `LIGHTAGENT_CONFIG_DIR`, `LIGHTAGENT_STATE_DIR` and `LIGHTAGENT_RUNTIME_DIR` name
other places, for tests and containers; systemd's `STATE_DIRECTORY` and `CONFIGURATION_DIRECTORY` are
honoured as systemd.exec(5) defines them. Nothing here touches the file system but `content_folders`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT_FILE = "environment"
"""Beside the configuration: what the system daemon's unit reads with `EnvironmentFile=`."""
CONTENT_KINDS = ("tools", "skills", "agent")
PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The folders of one daemon."""

    config: Path
    state: Path
    runtime: Path

    @property
    def socket(self) -> Path:
        return self.runtime / "control.sock"

    @property
    def private_socket(self) -> Path:
        """The control socket of root and the daemon's own user, which nobody else can keep busy."""
        return self.runtime / "private.sock"

    @property
    def history(self) -> Path:
        return self.state / "history"

    @property
    def audit(self) -> Path:
        """The folder with the key that signs the history, and its last signature."""
        return self.state / "audit"

    @property
    def workers(self) -> Path:
        """The folder for the sockets of workers that the daemon starts; `worker.units` has the others."""
        return self.runtime / "workers"

    def undo(self, agent: str) -> Path:
        """Where the worker for change keeps what it replaced, when the daemon starts it."""
        return self.state / "undo" / agent

    @property
    def keys(self) -> Path:
        """Where the private keys lie when the daemon starts the worker that holds them."""
        return self.state / "keys"

    @property
    def own_agents(self) -> Path:
        """Agents that were made at run time; the daemon cannot write below /etc."""
        return self.state / "agent"

    @property
    def kits(self) -> Path:
        """Kits that were added at run time; workers read this folder and nothing else of the state."""
        return self.state / "kits"

    @property
    def drafts(self) -> Path:
        """Drafts of tools, which no worker reads."""
        return self.state / "drafts"


def default_paths() -> Paths:
    """The folders for the user that runs this process."""
    env = os.environ
    if os.geteuid() == 0 or env.get("STATE_DIRECTORY"):
        config, state, runtime = (
            Path("/etc/lightagentd"),
            Path("/var/lib/lightagentd"),
            Path("/run/lightagentd"),
        )
    else:
        home = Path(env.get("HOME") or "/")
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "lightagentd"
        state = Path(env.get("XDG_STATE_HOME") or home / ".local/state") / "lightagentd"
        runtime = Path(env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}") / "lightagentd"
    return Paths(
        config=Path(env.get("LIGHTAGENT_CONFIG_DIR") or _first("CONFIGURATION_DIRECTORY") or config),
        state=Path(env.get("LIGHTAGENT_STATE_DIR") or _first("STATE_DIRECTORY") or state),
        runtime=Path(env.get("LIGHTAGENT_RUNTIME_DIR") or runtime),
    )


def _first(variable: str) -> str:
    """The first of the folders that systemd names; it separates several with colons."""
    return os.environ.get(variable, "").partition(":")[0]


def share_folder() -> Path:
    """The folder with the shipped `tools`, `skills` and `agent`: the checkout, else `share/lightagentd`."""
    checkout = PACKAGE_FOLDER.parent
    if all((checkout / kind).is_dir() for kind in CONTENT_KINDS):
        return checkout
    return Path(sys.prefix) / "share" / "lightagentd"


def kit_folders(agent: str, config: Path) -> list[Path]:
    """Where a kit of an agent is, if it is root's: that of a member is in that of its kit."""
    inside = Path("agent", "/agents/".join(agent.split(".")))
    return [config / inside, share_folder() / inside]


def tool_folders(paths: Paths) -> list[Path]:
    """The existing folders of tools: files of Python, and of MCP servers."""
    return [*content_folders("tools", paths), *content_folders("mcp.d", paths)]


def content_folders(kind: str, paths: Paths) -> list[Path]:
    """The existing folders of one kind of content; the first match wins."""
    folders = [paths.config / kind]
    if kind == "agent":
        folders += [paths.own_agents, paths.kits]
    folders.append(share_folder() / kind)
    return [folder for folder in folders if folder.is_dir()]
