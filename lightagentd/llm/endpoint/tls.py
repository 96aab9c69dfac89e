"""Shares TLS contexts between agents: loading the certificates of the system costs time and a megabyte."""

from __future__ import annotations

import functools
import ssl
import threading
from pathlib import Path

from lightagentd.errors import ConfigError
from lightagentd.text.reason import reason

_loading = threading.Lock()
"""Agents that begin at the same time wait for one context, and do not each make their own."""


def tls_context(
    ca_file: Path | None = None, client_cert: Path | None = None, client_key: Path | None = None
) -> ssl.SSLContext:
    """The context for these files, shared in the process until one of them changes. Raises ConfigError."""
    try:
        stamps = tuple(path.stat().st_mtime_ns for path in (ca_file, client_cert, client_key) if path)
        with _loading:
            return _made(ca_file, client_cert, client_key, stamps)
    except (OSError, ssl.SSLError) as err:
        raise ConfigError(
            f"The certificates for a model's endpoint cannot be used: {reason(err, at=True)}.",
            suggestion="Check ca_file, client_cert and client_key: PEM files that the daemon can read.",
        ) from err


@functools.lru_cache(maxsize=16)
def _made(
    ca_file: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    stamps: tuple[int, ...],  # noqa: ARG001 - a part of the key
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    if client_cert is not None:
        context.load_cert_chain(client_cert, client_key)
    return context
