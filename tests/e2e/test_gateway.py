"""The gateway as its unit: who counts on its socket and with a token, and what it may do itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

UNIT, SOCKET = "lightagent-gateway.service", "/run/lightagent-gateway/http.sock"
ASK = """
import http.client, json, socket, sys
where, token, path, body = json.load(sys.stdin)
client = http.client.HTTPConnection("localhost", 8330, timeout=60)
if where == "unix":
    client.sock = socket.socket(socket.AF_UNIX)
    client.sock.connect("/run/lightagent-gateway/http.sock")
headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
client.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
answer = client.getresponse()
print(json.dumps([answer.status, json.loads(answer.read())]))
"""
OWN = """
import json
from lightagentd.client import Client
from lightagentd.errors import LightagentError
for method, parameters in (
    ("Manager.GetStatus", {}), ("Sessions.Create", {"agent": "ops"}), ("Tokens.List", {})
):
    try:
        with Client() as client:
            client.call(method, **parameters)
    except LightagentError as err:
        print(err.code)
"""


@pytest.fixture(scope="module")
def gateway(service: Machine) -> Iterator[Machine]:
    """The gateway on its socket and on loopback; dora may connect, and has a token."""
    service.run(["useradd", new_uid(), "--groups=lightagent", "dora"])
    service.write(
        "/etc/lightagentd/lightagentd.toml.d/gateway.toml", '[gateway]\nlisten = ["127.0.0.1:8330"]\n'
    )
    service.run(["systemctl", "enable", "--now", UNIT])
    yield service
    service.run(["systemctl", "disable", "--now", UNIT, "lightagent-gateway.socket"])
    service.run(["rm", "/etc/lightagentd/lightagentd.toml.d/gateway.toml"])


def ask(machine: Machine, path: str, body: Any = None, *, user: str | None = None, token: str = "") -> Any:
    """The status and the JSON of an answer, on the socket or, with a token, on loopback."""
    given = json.dumps(["tcp" if token else "unix", token, path, body])
    done = machine.run(["python3", "-I", "-c", ASK], user=user, input=given, timeout_s=90)
    return json.loads(done.stdout)


def test_a_user_and_a_token_count(gateway: Machine) -> None:
    prompt = {"model": "ops", "messages": [{"role": "user", "content": "check disk"}]}
    status, answer = ask(gateway, "/v1/chat/completions", prompt, user="dora")
    assert status == 200, answer
    assert "/" in answer["choices"][0]["message"]["content"]
    token = lactl(gateway, "tokens", "create", "web", "--scope=inspect", user="dora").stdout.strip()
    status, answer = ask(gateway, "/v1/models", token=token)
    assert (status, answer["data"][0]["id"]) == (200, "ops")
    status, answer = ask(gateway, "/v1/chat/completions", prompt, token=token)
    assert (status, answer["error"]["code"]) == (403, "permission_denied")
    owners = {one["owner"] for one in lactl_json(gateway, "sessions", "list")}
    assert int(gateway.run(["id", "-u", "dora"]).stdout) in owners


def test_it_has_no_rights_and_writes_nowhere(gateway: Machine) -> None:
    said = gateway.run(["python3", "-I", "-c", OWN], user="lightagent-gateway").stdout.split()
    assert said == ["permission_denied"] * 3
    pid = gateway.run(["systemctl", "show", "--value", "--property=MainPID", UNIT]).stdout.strip()
    status = gateway.run(["cat", f"/proc/{pid}/status"]).stdout
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
