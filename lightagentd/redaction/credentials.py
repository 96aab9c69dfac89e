"""Makes the daemon's redactor, with the credentials that the daemon was given and its own key.

The key of the digests lies in the state folder, `redaction.key`, 32 bytes, mode 0600. It is made at the first
start. If it is replaced, the digests of equal secrets differ before and after; nothing else is lost. Keys of
models become known when their clients are made (`llm.factory`), and when the configuration is read.
"""

from __future__ import annotations

import base64
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lightagentd.config.configuration import Config, api_key
from lightagentd.errors import ConfigError, StorageError
from lightagentd.host.kept_key import kept_key
from lightagentd.redaction.redactor import Redactor

KEY_FILE = "redaction.key"
_MOST_BYTES = 64 << 10
"""A credential that is larger holds more than a secret, such as a whole key store."""


def daemon_redactor(state: Path, config: Config) -> Redactor:
    """The redactor of a daemon with this state folder. Raises StorageError when its key cannot be kept."""
    redactor = Redactor(_given(), key=read_key(state / KEY_FILE))
    for provider in config.models.providers.values():
        with contextlib.suppress(ConfigError):  # whoever uses the provider says so
            redactor.add(api_key(provider))
    return redactor


def read_key(path: Path) -> bytes:
    """The key of the digests; made where there is none, or no whole one. Raises StorageError."""
    try:
        return kept_key(path)
    except OSError as err:
        raise StorageError(
            f"The key {path}, with which removed secrets are marked, cannot be kept: {err.strerror}.",
            suggestion="Look at the disk and at the folder's owner and mode.",
        ) from err


def _given() -> Iterator[str]:
    """The credentials that systemd handed over (systemd.exec(5), CREDENTIALS_DIRECTORY), and keys in the
    environment.
    """
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if folder:
        with contextlib.suppress(OSError):
            for path in sorted(Path(folder).iterdir()):
                yield from _content(path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        yield os.environ.get(name, "")


def _content(path: Path) -> Iterator[str]:
    """A credential as a text; of one in bytes, such as a raw key, its forms in hex and Base64."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MOST_BYTES:
            return
        raw = path.read_bytes()
    except OSError:
        return
    try:
        yield raw.decode()
    except UnicodeDecodeError:
        yield raw.hex()
        yield base64.b64encode(raw).decode().rstrip("=")
        yield base64.urlsafe_b64encode(raw).decode().rstrip("=")
