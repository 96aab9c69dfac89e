"""`--stored`: a command reads the store itself instead of asking the daemon, which need not run.

Only the owner of the store and root can read it, and they see all of it. No command falls back to this by
itself: a daemon that does not answer is an error, which names the option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import click

from lightagentd.cli.options import Settings, files, setting
from lightagentd.client.blocking import Client
from lightagentd.host.paths import default_paths

SYSTEM_STATE = Path("/var/lib/lightagentd")


class StoredClient(Client):
    """Answers calls from the store as the daemon would; `control.operations.stored` lists the calls."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self._state = state

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """There is no connection."""

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        return next(self.stream(method, **parameters), {})

    def stream(self, method: str, /, **parameters: Any) -> Iterator[dict[str, Any]]:
        from lightagentd.control.operations.stored import answer  # only here: this imports most of the daemon
        from lightagentd.events.backup.stored import run_as_owner

        said = {name: value for name, value in parameters.items() if value is not None}
        return run_as_owner(self._state, answer, str(self._state), method, said)


def stored_client(settings: Settings) -> StoredClient:
    """A client of the selected store."""
    return StoredClient(state_folder(settings))


def state_folder(settings: Settings) -> Path:
    """The selected state folder: from --state-dir or the environment, else the user's own daemon's if it
    exists, else the system's.
    """
    if settings.state_dir:
        return Path(settings.state_dir).absolute()
    own = default_paths().state
    named = os.environ.get("LIGHTAGENT_STATE_DIR") or os.environ.get("STATE_DIRECTORY")
    return own.absolute() if named or os.access(own, os.F_OK) else SYSTEM_STATE


def _set_stored(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    settings = context.ensure_object(Settings)
    settings.may_be_stored = True
    if value:
        settings.store = stored_client


def state_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --state-dir, for commands that work on the store's files."""
    return click.option(
        "--state-dir",
        metavar="DIR",
        shell_complete=files,
        **setting("state_dir"),
        help="The daemon's state folder, instead of $LIGHTAGENT_STATE_DIR or the usual place.",
    )(function)


def stored_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options --stored and --state-dir, for commands that only ask what is stored."""
    return click.option(
        "--stored",
        is_flag=True,
        expose_value=False,
        callback=_set_stored,
        help="Read the store itself; the daemon need not run. Needs the rights of its owner, or root's.",
    )(state_dir_option(function))
