"""`lactl tools draft` and `install`: from a description to a call, and what keeps a draft out of force."""

from __future__ import annotations

import grp
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import DaemonProcess, write
from tests.other_user import OUTSIDERS_GID
from tests.prepared import REPOSITORY
from tests.scripted_model import say
from tests.worker.running import folders

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
CONFIGURATION = """\
[daemon]
socket_group = "{group}"
[worker]
web_allow = ["127.0.0.1:{port}"]
[models]
default = "here/some"
[models.providers.here]
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
context_tokens = 32000
"""
OTHER_UID = 54321
AS_OTHER = """\
import os, sys
from lightagentd.cli.main import run
import lightagentd.cli.turn, lightagentd.host.atomic_file, lightagentd.host.paths
import lightagentd.toolkit.openapi.document
run(["tools", "drafts", "nosuch"])  # imports what the other user may not read
uid, gid, *arguments = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
sys.exit(run([*arguments, "--no-ask-password"]))
"""
SECRET = "pets-credential-5512"


WRITTEN = """\
Here it is.

```python
import subprocess

def show(unit: str) -> str:
    "Say whether a unit is active."
    return subprocess.run(["systemctl", "is-active", unit], capture_output=True, text=True).stdout

show.tool_info = {"effect": "observe"}
```
"""


class Pets(BaseHTTPRequestHandler):
    """Answers with what it was asked, and plays a model."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"".join(say(WRITTEN).pieces)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        found = {"path": self.path, "right_key": self.headers["X-Key"] == SECRET}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


pytestmark = pytest.mark.usefixtures("sandboxed")


@pytest.fixture(scope="module")
def pets() -> Iterator[int]:
    """The port of a server of pets."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Pets) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def daemon(pets: int) -> Iterator[DaemonProcess]:
    """One daemon, whose folder others may walk down, with a credential and a model."""
    with folders() as paths:
        write(
            paths.config / "lightagentd.toml",
            CONFIGURATION.format(port=pets, group=grp.getgrgid(OUTSIDERS_GID).gr_name),
        )
        write(paths.state.parent / "credentials" / "tool.pets.key", f"{SECRET}\n")
        daemon = DaemonProcess(paths)
        daemon.set_variable("CREDENTIALS_DIRECTORY", str(paths.state.parent / "credentials"))
        daemon.set_variable("LIGHTAGENT_CONFIG_DIR", str(paths.config))
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.close()


def test_a_description_becomes_a_tool_that_calls(daemon: DaemonProcess, pets: int, tmp_path: Path) -> None:
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
    assert daemon.lactl("tools", "discard", "pets").returncode == 0
    assert [*daemon.paths.drafts.iterdir()] == []


def test_a_document_that_would_make_too_large_a_tool_is_refused(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(399)}}
    post = {"post": {"requestBody": {"content": {"application/json": {"schema": wide}}}}}
    servers = [{"url": "https://api.example.org"}]
    found = {"openapi": "3.1.0", "servers": servers, "paths": {f"/a{n}": post for n in range(100)}}
    described = write(tmp_path / "wide.json", json.dumps(found))
    done = daemon.lactl("tools", "draft", "--from", str(described), "--agent", "ops")
    assert done.returncode == 65
    assert "wide.json: its 100 operations make a tool of " in done.stderr


def test_a_model_writes_a_draft_which_only_an_administrator_installs(daemon: DaemonProcess) -> None:
    done = daemon.lactl("tools", "draft", "--agent", "ops", "--name", "active", "is a unit active?")
    assert done.returncode == 0, done.stderr
    assert "[observe]  Say whether a unit is active." in done.stdout
    assert "uses\tsubprocess,subprocess.run\n" in done.stdout
    listed = daemon.lactl("tools", "drafts").stdout.rstrip("\n").split("\t")
    assert listed[:3] == ["active", str(os.getuid()), "the model of ops"]
    shown = daemon.lactl("tools", "drafts", "active").stdout
    assert f"lactl tools install active --digest {listed[3]}" in shown
    assert "systemctl" in shown
    assert (
        daemon.lactl("tools", "draft", "--agent", "ops", "--name", "bash", "--from", os.devnull).returncode
        == 65
    )
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    other = partial(
        subprocess.run,
        env=daemon.env,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    lactl = [sys.executable, "-c", AS_OTHER, str(OTHER_UID), str(OUTSIDERS_GID), "tools"]
    assert other([*lactl, "install", "active", "--digest", listed[3]]).returncode == 66, (
        "it is another user's"
    )
    done = other([*lactl, "draft", "--agent", "ops", "--name", "mine", "x", "--json"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    refused = other([*lactl, "install", "mine", "--digest", made["digest"]])
    assert (refused.returncode, "Only an administrator installs a tool" in refused.stderr) == (77, True)
    assert not (daemon.paths.config / "tools" / "mine.py").exists()
    assert "mine" not in daemon.lactl("tools", "list").stdout
