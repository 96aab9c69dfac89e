"""`lactl tools draft` and `install`: from a description to a call, and what keeps a draft out of force."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import finish
from tests.conftest import DaemonProcess, write

PETS = """\
openapi: 3.0.3
info: {{title: Pets, version: "1"}}
servers: [{{url: "http://127.0.0.1:{port}/v1"}}]
security: [{{key: []}}]
paths:
  /pets/{{id}}:
    get:
      operationId: getPet
      summary: Show a pet.
      parameters:
        - {{name: id, in: path, required: true, schema: {{type: integer}}}}
        - {{name: with, in: query, schema: {{type: array, items: {{type: string}}}}}}
  /pets:
    post:
      operationId: addPet
      requestBody:
        content: {{application/json: {{schema: {{$ref: "#/components/schemas/Pet"}}}}}}
components:
  schemas:
    Pet:
      type: object
      required: [name]
      properties: {{name: {{type: string}}, parent: {{$ref: "#/components/schemas/Pet"}}}}
  securitySchemes:
    key: {{type: apiKey, in: header, name: X-Key}}
"""
SECRET = "pets-credential-5512"


class Pets(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self) -> None:
        found = {"path": self.path, "right_key": self.headers["X-Key"] == SECRET}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def pets() -> Iterator[int]:
    """The port of a server of pets."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Pets) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_description_becomes_a_tool_that_calls(
    daemon_process: DaemonProcess, pets: int, tmp_path: Path
) -> None:
    daemon = daemon_process
    write(daemon.paths.config / "lightagentd.toml", f'[worker]\nweb_allow = ["127.0.0.1:{pets}"]\n')
    write(tmp_path / "credentials" / "tool.pets.key", f"{SECRET}\n")
    daemon.set_variable("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    daemon.set_variable("LIGHTAGENT_CONFIG_DIR", str(daemon.paths.config))
    daemon.start()
    described = write(tmp_path / "pets.yaml", PETS.format(port=pets))
    done = daemon.lactl("tools", "draft", "--from", str(described), "--agent", "ops", "--json")
    assert done.returncode == 0, done.stderr
    draft = json.loads(done.stdout)
    effects = {one["name"]: one["effect"] for one in draft["actions"]}
    assert (draft["problem"], effects) == ("", {"get_pet": "reach", "add_pet": "change"})
    assert draft["hosts"] == [f"127.0.0.1:{pets}"]
    assert SECRET not in done.stdout
    assert [one.name for one in daemon.paths.drafts.iterdir()] == ["pets.json"]
    assert daemon.lactl("reload").returncode == 0
    assert "pets" not in daemon.lactl("tools", "list").stdout, "nothing of the drafts is loaded"
    assert daemon.lactl("tools", "call", "ops", "pets.get_pet", "id=7").returncode == 66

    wrong = daemon.lactl("tools", "install", "pets", "--digest", "0" * 64)
    assert (wrong.returncode, "is not what was shown" in wrong.stderr) == (73, True)
    done = daemon.lactl("tools", "install", "pets", "--digest", draft["digest"])
    target = daemon.paths.config / "tools" / "pets.py"
    assert (done.returncode, done.stdout) == (0, f"pets\t{target}\n"), done.stderr
    assert target.read_text() == draft["source"]
    done = daemon.lactl("tools", "call", "ops", "pets.get_pet", "id=7", 'with=["a b", "c&d"]')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("\n\n")[2]) == {
        "path": "/v1/pets/7?with=a+b&with=c%26d",
        "right_key": True,
    }
    again = daemon.lactl("tools", "install", "pets", "--digest", draft["digest"])
    assert (again.returncode, "already" in again.stderr) == (73, True)
    assert finish(["tools", "discard", "pets"], env=daemon.env).status == 0
    assert [*daemon.paths.drafts.iterdir()] == []
