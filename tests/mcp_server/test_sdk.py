"""`lactl mcp` and the official Python SDK understand each other, in both of its protocols."""

from __future__ import annotations

import json
import subprocess
import sys

from lightagentd.text.mcp import LEGACY, MODERN
from tests.conftest import DaemonProcess
from tests.prepared import REPOSITORY


def test_the_python_sdk_uses_all_of_it(daemon: DaemonProcess) -> None:
    file = daemon.paths.state.parent / "by-the-sdk.txt"
    program = [sys.executable, "-m", "tests.mcp_server.sdk_client", str(daemon.paths.socket), str(file)]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    modern, legacy = (json.loads(line) for line in done.stdout.splitlines())
    assert [modern["version"], legacy["version"]] == [MODERN, LEGACY[0]]
    assert modern["answer"]["answer"]
    assert "skill.run begins." in modern["progress"]
    assert modern["listened"] == ["lightagent://events"]
    for found in (modern, legacy):
        assert found["updated"] == ["lightagent://events"]
        assert {"ask_agent", "file_write", "proc_info"} <= {*found["tools"]}
        (asked,) = found["asked"]
        assert f"path: {file}" in asked
        assert found["written"]
        assert (found["wrong"][0], "pid" in found["wrong"][1]) == (True, True)
        assert "disk-check" in found["prompts"]
        assert (found["prompt"], found["templates"]) == ("user", 3)
        assert found["answer"]["session"] in found["resource"]
    assert file.read_text() == "legacy"
