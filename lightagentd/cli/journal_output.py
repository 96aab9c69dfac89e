"""Runs journalctl(1), whose output is compared with the history."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from lightagentd.cli.named_file import check_readable
from lightagentd.cli.output import warn
from lightagentd.cli.when import Start

_SYNC_S = 10.0
_PATH = "/usr/bin:/bin"


class JournalOutput:
    """The journal's entries to be read; as a context manager, a running journalctl. `fd` is its output."""

    def __init__(self, wanted: bool, files: tuple[Path, ...], since: Start) -> None:
        self.program = shutil.which("journalctl", path=_PATH) if wanted else None
        self.missing = wanted and self.program is None
        self._files = files
        self.has_files = bool(files)
        """Whether it is another journal than this machine's own."""
        self._since = since
        self._process: subprocess.Popen[bytes] | None = None
        self.fd: int | None = None

    def __enter__(self) -> JournalOutput:
        if self.program is None:
            return self
        from lightagentd.events.audit.journal_audit import FIELDS, TRUSTED_FIELDS

        for path in self._files:
            check_readable(path)
        environment = {"PATH": _PATH, "LC_ALL": "C.UTF-8"}
        if os.geteuid() == 0 and not self._files:
            # Entries that journald has not written yet. Waiting for a stuck journald is useless.
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [self.program, "--sync"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    env=environment,
                    timeout=_SYNC_S,
                    check=False,
                )
        names = [f"LIGHTAGENT_{name}" for name in FIELDS]
        argv = [self.program, "--quiet", "--no-pager", "--output=json"]
        argv += [f"--output-fields={','.join([*names, *TRUSTED_FIELDS])}"]
        argv += [f"--file={path}" for path in self._files]
        if self._since.time_us:
            argv.append(f"--since=@{self._since.time_us // 1_000_000}")
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/" if not self._files else None,
        )
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        return self

    def warn(self) -> None:
        """Warn if a part of the journal was missing in the comparison. Call it after reading to the end."""
        if self.missing:
            warn("There is no journalctl here, so the journal was not compared.")
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            if status := self._process.wait(_SYNC_S):
                warn(
                    f"journalctl failed with status {status}: not all of the journal may have been compared.",
                    "See what it says: journalctl -u lightagentd",
                )

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process.kill()
            self._process.wait()
