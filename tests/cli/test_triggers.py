"""`lactl triggers check`, which needs no daemon."""

from __future__ import annotations

import getpass
from pathlib import Path

from tests.cli.conftest import Lactl
from tests.conftest import write

FILE = """
on = "webhook"
signed = "token"
secret_file = "SECRET"
agent = "ops"
owner = "OWNER"
prompt = "what is wrong"
"""


def test_the_secret_of_a_webhook_must_be_there(tmp_path: Path, lactl: Lactl) -> None:
    secret = tmp_path / "secret"
    file = write(tmp_path / "a.toml", FILE.replace("SECRET", str(secret)).replace("OWNER", getpass.getuser()))
    done = lactl("triggers", "check", str(file))
    assert (done.status, f"{secret} cannot be read: No such file" in done.err) == (78, True)
    secret.write_text("short")
    assert "Make one: openssl rand -hex 32" in lactl("triggers", "check", str(file)).err
    secret.write_text("0123456789abcdef\n")
    assert lactl("triggers", "check", str(file)).status == 0
    write(file, file.read_text().replace(str(secret), "credential"))  # the daemon's, which lactl cannot read
    assert lactl("triggers", "check", str(file)).status == 0
