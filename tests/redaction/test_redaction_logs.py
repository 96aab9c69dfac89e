"""No secret in a log line: not in the message, its arguments, a traceback or a stack."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import pytest

from lightagentd.config.configuration import Config
from lightagentd.errors import StorageError
from lightagentd.events.journal.log import handler
from lightagentd.redaction import MARKER, Redactor
from lightagentd.redaction.credentials import KEY_FILE, daemon_redactor
from lightagentd.redaction.logs import RedactingFilter

SECRET = "gh" + "p_" + "a1B2" * 9
KNOWN = "correct-horse-battery"


def logged(write: str) -> str:
    """What one call of a logger, as Python, says on a handler with the filter."""
    said = io.StringIO()
    one = logging.StreamHandler(said)
    one.addFilter(RedactingFilter(Redactor([KNOWN])))
    logger = logging.Logger("x")
    logger.addHandler(one)
    exec(write, {"log": logger, "secret": SECRET, "known": KNOWN})
    return said.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        "log.error(f'it is {secret} and {known}')",
        "log.error('it is %s and %s', secret, [known])",
        "log.error('it is %(a)s', {'a': secret + ' ' + known})",
        "try: raise ValueError(secret + ' ' + known)\nexcept ValueError: log.exception('failed')",
        "log.error('%d', secret + known)",
        "log.error({'password': known, 'x': secret})",
        "log.error('here', stack_info=True, extra={}) or log.error(known + ' ' + secret)",
    ],
)
def test_a_log_line_has_no_secret(write: str) -> None:
    said = logged(write)
    assert SECRET not in said
    assert KNOWN not in said
    assert MARKER.search(said) or "do not fit" in said


def test_the_daemons_handler_has_the_filter() -> None:
    one = handler()
    assert any(isinstance(each, RedactingFilter) for each in one.filters)
    one.close()


def test_a_daemon_knows_its_credentials_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "db").write_text(f"{KNOWN}\n")
    (credentials / "long").write_text("user = admin\nshared = plain-garden-fence\n")
    (credentials / "raw").write_bytes(bytes(range(200, 232)))
    (credentials / "folder").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    monkeypatch.setenv("OPENAI_API_KEY", "window-Cellar-77")
    redactor = daemon_redactor(tmp_path, Config())
    for value in (KNOWN, "plain-garden-fence", "window-Cellar-77", bytes(range(200, 232)).hex()):
        assert MARKER.fullmatch(redactor.text(value)), value
    key = tmp_path / KEY_FILE
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)
    assert daemon_redactor(tmp_path, Config()).text(KNOWN) == redactor.text(KNOWN)
    key.write_bytes(os.urandom(5))  # a half-written one is made anew
    assert daemon_redactor(tmp_path, Config()).text(KNOWN) != redactor.text(KNOWN)


def test_a_daemon_without_room_for_its_key_does_not_start(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).mkdir()
    with pytest.raises(StorageError, match=KEY_FILE):
        daemon_redactor(tmp_path, Config())
