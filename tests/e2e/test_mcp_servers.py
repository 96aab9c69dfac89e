"""An MCP server in the worker units: it outlives its call, and is held as a command is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .calls import call, shell
from .machine import Machine
from .product import lactl_json

pytestmark = pytest.mark.e2e

SERVER = Path(__file__).parents[1] / "toolkit/mcp/small_server.py"


def test_a_server_is_kept_in_its_unit_and_held_as_a_command_is(service: Machine) -> None:
    service.write("/usr/local/lib/small_server.py", SERVER.read_text())
    service.run(["mkdir", "-m", "0777", "/tmp/e2e-mcp"])
    try:
        effects = [f"--effect={name}=observe" for name in ("count", "where", "outside")]
        command = ["--", "/usr/bin/python3", "-I", "/usr/local/lib/small_server.py", "modern"]
        refused = service.run(["lactl", "mcp", "add", "small", *effects, *command], check=False)
        digest = refused.stderr.rpartition(" ")[2].strip()
        service.run(["lactl", "mcp", "add", "small", *effects, "--digest", digest, *command])
        (listed,) = lactl_json(service, "mcp", "list")
        assert (listed["name"], listed["problem"]) == ("small", "")
        assert call(service, "small.count")["text"] == "1"
        assert "held" in shell(service, "kill -9 -1; echo held", "observe")
        where = json.loads(call(service, "small.where")["text"])
        assert call(service, "small.count")["text"] == "3", "one process all the time"
        assert where["uid"] != 0
        assert where["home"].startswith("/run/lightagent-scratch/")
        tried = call(service, "small.outside", path="/tmp/e2e-mcp/x", port="22")["text"].splitlines()
        assert [one.endswith(": done") for one in tried] == [False, True, False, True, False], tried
        assert service.run(["ls", "/tmp/e2e-mcp"]).stdout == ""
    finally:
        service.run(["lactl", "mcp", "remove", "small"], check=False)
        service.run(["rm", "-r", "/tmp/e2e-mcp", "/usr/local/lib/small_server.py"])
