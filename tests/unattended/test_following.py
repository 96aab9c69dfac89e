"""Services that follow the history, as programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightagentd.errors import StorageError
from tests.conftest import write
from tests.prepared import run

CONFIG = """\
[telemetry]
endpoint = "http://127.0.0.1:9"
[notify.to.phone]
kind = "ntfy"
url = "http://127.0.0.1:9/topic"
"""


@pytest.mark.parametrize("program", ["lightagentd.telemetry.service", "lightagentd.notify.service"])
def test_a_damaged_state_is_a_sentence_and_a_failure(tmp_path: Path, program: str) -> None:
    write(tmp_path / "lightagentd.toml", CONFIG)
    state = write(tmp_path / "state.json", '{"traces": ')
    argv = [f"--folder={tmp_path}", f"--socket={tmp_path}/none", f"--state={state}"]
    done = run(program, argv, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/"})
    assert done.returncode == StorageError.exit_status
    assert done.stderr.decode().startswith(f"<3>{state} is damaged. Remove it")
