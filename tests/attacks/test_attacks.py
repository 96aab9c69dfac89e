"""A scripted model attacks a real daemon, whose workers are held by what this machine has: bwrap.

The cases are in the modules beside this one, `cases` has them all. `tests/e2e/test_attacks.py` plays each of
them with each effect against the worker units of a booted system; those that end at the sandbox are here, and
all of them with a hostile MCP server that orders them or does them by itself (`spoken`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.host.paths import Paths
from tests.attacks import speaker
from tests.attacks.controls import CONTROLS
from tests.attacks.counted import BY_MODEL, BY_SERVER
from tests.attacks.playing import (
    AGENTS,
    ALL,
    RULE,
    Came,
    Playing,
    agent_file,
    explain,
    one_effect_each,
    played,
    plays,
    settings,
)
from tests.attacks.spoken import SERVER
from tests.conftest import DaemonProcess, write

pytestmark = [
    pytest.mark.usefixtures("sandboxed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can have processes of other users attacked"),
]


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """The folder of the daemon's folders, with a path that the worker's user may walk down."""
    folder = Path(tempfile.mkdtemp(prefix="la-attacked-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def playing(base: Path, sandboxed: None) -> Iterator[Playing]:
    """A stage with a daemon whose agents have the stage's model."""
    del sandboxed
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    for folder in (paths.config, paths.state):
        folder.mkdir()
    hidden = {name: f"s3cr3t-{name}-{secrets.token_hex(8)}" for name in ("key", "state", "environment")}
    write(paths.config / "key", hidden["key"]).chmod(0o600)
    write(paths.state / "secret", hidden["state"])
    daemon = DaemonProcess(paths, env={"LA_SECRET": hidden["environment"]})
    with Playing(["nobody"], [str(paths.config)]) as stage:
        for name, effects in AGENTS.items():
            text = agent_file(stage.base_url, effects, str(paths.config / "key"))
            write(paths.config / "agent" / name / "AGENT.md", text)
        write(paths.config / "lightagentd.toml", settings(stage.names))
        write(paths.config / "policy.d" / "attackers.toml", RULE)
        server = paths.config / "mcp.d" / f"{SERVER}.py"
        write(server, Path(speaker.__file__).read_text())
        file = speaker.FILE.format(python=sys.executable, path=server, orders=stage.names["orders"])
        write(server.with_suffix(".toml"), file)
        write(server.with_suffix(".approved"), json.dumps({"tools": speaker.TOOLS}))
        try:
            daemon.start()
            names = {"config": str(paths.config), "state": str(paths.state), "runtime": str(paths.runtime)}
            names |= {"socket": str(paths.socket), "daemon_pid": str(daemon.pid), "unit": "dbus.service"}
            stage.set_up(socket=str(paths.socket), secrets=hidden, names=names)
            yield stage
        finally:
            daemon.close()
    stored = b"".join(path.read_bytes() for path in paths.history.rglob("*") if path.is_file())
    told = daemon.log.read_bytes()
    for name, value in {**hidden, **stage.secrets}.items():
        assert value.encode() not in stored, f"the secret of the {name} is in the history"
        assert value.encode() not in told, f"the secret of the {name} is in the log"
    assert b"Traceback" not in told, told.decode()[-4000:]


@pytest.mark.parametrize("name", CONTROLS)
def test_the_stage_sees_harm_that_is_done(playing: Playing, name: str) -> None:
    assert playing.control(name)["findings"]


@pytest.fixture(scope="module")
def came(playing: Playing, request: pytest.FixtureRequest) -> Came:
    return played(playing, request)


@pytest.mark.parametrize(
    ("name", "effect", "speaker"), [*plays(one_effect_each(), BY_MODEL, ""), *plays(ALL, BY_SERVER, SERVER)]
)
def test_an_attack_comes_to_nothing(came: Came, name: str, effect: str, speaker: str) -> None:
    outcome = came(name, effect, speaker)
    assert outcome["findings"] == [], explain(outcome)
