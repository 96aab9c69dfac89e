"""Workers that the daemon starts itself, where systemd does not: one process each, on a socket of its own.

Whoever calls `start_local` owns the child that it gives and the path of its socket.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from lightagentd.config import configuration
from lightagentd.errors import WorkerUnavailable
from lightagentd.host.paths import Paths, content_folders
from lightagentd.tool import Effect, Place
from lightagentd.worker import places, sandbox

_numbers = itertools.count(1)


async def start_local(
    agent: str,
    where: Effect | Place,
    backend: sandbox.Backend,
    settings: configuration.Worker,
    paths: Paths,
    bus: Path | None,
) -> tuple[sandbox.Child, Path]:
    """Start a worker; it listens at the path, but may not answer yet. Raises WorkerUnavailable."""
    path = paths.workers / f"{next(_numbers)}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    skills = content_folders("skills", paths)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(8)
        child = await places.spawn(
            where,
            backend,
            paths,
            listen_fd=listener.fileno(),
            tools=content_folders("tools", paths),
            extra=skills,
            bus=bus,
            env=_environment(agent, where, settings, paths, skills),
        )
    except OSError as err:
        path.unlink(missing_ok=True)
        raise WorkerUnavailable(
            f"A worker for {where} cannot be started: {err}.", suggestion="lactl status says more."
        ) from err
    finally:
        listener.close()
    return child, path


def _environment(
    agent: str, where: Effect | Place, settings: configuration.Worker, paths: Paths, skills: Sequence[Path]
) -> dict[str, str]:
    """What tools are told beside `clean_environment`."""
    undo = {"LIGHTAGENT_UNDO": str(paths.undo(agent))} if where is Effect.CHANGE else {}
    env = undo | {
        "LIGHTAGENT_SKILLS": ":".join(str(folder) for folder in skills),
        "LIGHTAGENT_WEB_ALLOW": ",".join(settings.web_allow),
        "LIGHTAGENT_OWN_FOLDERS": f"{paths.state}:{paths.runtime}",
    }
    # Where the administrator keeps certificates of his own (ssl(3ssl)).
    return env | {name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ}
