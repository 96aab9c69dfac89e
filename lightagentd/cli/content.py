"""Puts content where a daemon reads it, with the rights of the user who runs lactl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightagentd.cli.options import Settings
from lightagentd.cli.output import warn
from lightagentd.errors import DaemonUnreachable, LightagentError, PermissionDenied


def own_folder(kind: str) -> Path:
    """Where the content of an administrator is, or that of a user's own daemon. Raises PermissionDenied."""
    from lightagentd.host.paths import default_paths

    config = default_paths().config
    if os.geteuid() != 0 and not config.is_dir():
        raise PermissionDenied(
            f"You have no daemon of your own: there is no folder {config}.",
            suggestion=f"For the {kind} of the system's daemon use sudo.",
        )
    return config / kind


def reload_daemon(settings: Settings, kind: str) -> bool:
    """Have a daemon that runs read its content again; gives whether it did."""
    try:
        found: dict[str, Any] = settings.call("Manager.Reload", timeout_s=None)
    except DaemonUnreachable:
        return False
    except LightagentError as err:
        warn(f"The daemon has not read it: {err.message}", "Run: lactl reload")
        return False
    if found["refused"]:
        warn(f"The daemon read its {kind}, and not its configuration.", "See: lactl reload")
    return True
