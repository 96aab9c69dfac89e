"""The file in which a service beside the daemon says what keeps it from its work, for `lactl status`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROBLEM = "problem"
"""The file in the runtime folder of the service."""
_PROBLEM_CHARS = 500
SERVICES: Mapping[str, str] = {"lightagent-telemetry": "Telemetry", "lightagent-away": "Notifications"}
"""The services that have one, and what the problems of each are about."""


def problem_file(runtime: Path, service: str) -> Path:
    """Where a service of the daemon with this runtime folder says it: beside that folder, which is not the
    service's to write.
    """
    return runtime.with_name(service) / PROBLEM


def problems(runtime: Path) -> list[str]:
    """What the services say there, as sentences; nothing where they do not run."""
    found = []
    for service, about in SERVICES.items():
        try:
            with problem_file(runtime, service).open(encoding="utf-8", errors="replace") as file:
                said = " ".join(file.read(_PROBLEM_CHARS).split())
        except OSError:
            continue
        found += [f"{about}: {said}"] if said else []
    return found
