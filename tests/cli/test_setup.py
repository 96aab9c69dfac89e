"""`lactl setup` with a real daemon, and a model server that answers as Ollama does."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths
from tests import scripted_model
from tests.conftest import DaemonProcess, write
from tests.prepared import LACTL, prepared, run
from tests.scripted_model import Answer, Fault, ScriptedModel, call, say

KEY = "sk-Zx81kQm2Pp0vNn47RtUuWq39LlBbCc55"
SHAPE = {
    "/api/version": {"version": "0.12.1"},
    "/api/tags": {"models": [{"name": "nomic-embed-text"}, {"name": "llama3.2:3b"}]},
}


def _answer(body: dict[str, Any]) -> Answer:
    if body["model"] == "broken":
        return Fault(status=401, body=b'{"error": {"message": "no such key"}}')
    if "report_word" in json.dumps(body.get("tools", [])):
        return call("report_word", {"word": "lantern", "number": 7}, text="Light is fast.")
    return say("a model answers")


class Ollama(ScriptedModel):
    """A model server that lists its models as Ollama does."""

    async def _answer_one(self, path: str, *rest: Any) -> bool:
        if path.endswith("/chat/completions"):
            return await super()._answer_one(path, *rest)
        found = SHAPE.get(path)
        fault = Fault(status=404 if found is None else 200, body=json.dumps(found or {}).encode())
        return await scripted_model._answer(rest[2], rest[3], fault)


@dataclass(frozen=True)
class Machine:
    """A daemon, and the home of whoever sets it up."""

    paths: Paths
    daemon: DaemonProcess
    model: Ollama
    home: Path

    @property
    def env(self) -> dict[str, str]:
        config = str(self.paths.config)
        return {
            **self.daemon.env,
            "HOME": str(self.home),
            "SHELL": "/bin/bash",
            "LIGHTAGENT_CONFIG_DIR": config,
        }

    async def setup(
        self, *options: str, status: int = 0, stdin: bytes = b"", **env: str
    ) -> dict[str, dict[str, Any]]:
        """What came of each step; nothing of it holds the key."""
        argv = ["setup", "--json", *options]
        done = await asyncio.to_thread(run, LACTL, argv, env={**self.env, **env}, stdin=stdin)
        assert done.returncode == status, done.stdout + done.stderr
        assert KEY.encode() not in done.stdout + done.stderr
        told = json.loads(done.stdout)
        assert told["ok"] is (status == 0)
        return {step["step"]: step for step in told["steps"]}

    async def lactl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self.daemon.lactl, *arguments)

    @property
    def own(self) -> Path:
        return self.paths.config / "lightagentd.toml.d/50-setup.toml"

    def files(self) -> dict[str, str]:
        """All that the configuration holds."""
        found = (path for path in self.paths.config.rglob("*") if path.is_file())
        return {str(path.relative_to(self.paths.config)): path.read_text() for path in found}


@pytest.fixture
async def machine(paths: Paths, tmp_path: Path) -> AsyncIterator[Machine]:
    async with Ollama(_answer) as model:
        root = model.base_url.removesuffix("/v1")
        write(paths.config / "lightagentd.toml", f'# mine\n[models]\nlook_at = ["{root}"]\n')
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            yield Machine(paths, daemon, model, tmp_path)
        finally:
            await asyncio.to_thread(daemon.close)


async def test_model_that_is_found_is_tried_written_and_answers(machine: Machine) -> None:
    before = machine.files()
    told = await machine.setup()
    assert (told["model"]["state"], told["shell"]["state"]) == ("offered", "offered")
    assert "lactl setup --model 127-0-0-1/llama3.2:3b --base-url" in told["model"]["suggestion"]
    assert (machine.files(), list(machine.home.iterdir())) == (before, [])  # nothing unasked
    told = await machine.setup("--yes")
    assert (told["model"]["state"], told["shell"]["state"]) == ("done", "done")
    assert {name: text for name, text in machine.files().items() if name in before} == before
    models = tomllib.loads(machine.own.read_text())["models"]
    assert models["default"] == "127-0-0-1/llama3.2:3b"  # the one for embedding is not the first
    done = await machine.lactl("prompt", "ops", "xyzzy plugh")
    assert done.stdout == "a model answers\n"
    written, asked = machine.files(), len(machine.model.requests)
    told = await machine.setup("--yes")
    assert {step["state"] for step in told.values()} == {"unchanged"}
    assert (machine.files(), len(machine.model.requests)) == (written, asked)
    line = 'command -v lactl >/dev/null && eval "$(lactl shell init bash)"\n'
    assert (machine.home / ".bashrc").read_text() == line
    with machine.own.open("a") as file:
        file.write("# by hand\n")
    told = await machine.setup("--model", "runbook", status=73)
    assert "changed by hand" in told["model"]["detail"]
    assert machine.own.read_text().endswith("# by hand\n")


async def test_key_lies_in_a_file_of_its_own(machine: Machine) -> None:
    url = machine.model.base_url
    await machine.setup("--model", "work/x", "--base-url", url, "--key-file", "-", stdin=KEY.encode() + b"\n")
    path = machine.paths.config / "keys/work"
    info, folder = path.stat(), path.parent.stat()
    assert path.read_text().strip() == KEY
    assert (stat.S_IMODE(info.st_mode), info.st_uid) == (0o600, folder.st_uid)
    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert KEY not in machine.own.read_text()
    assert stat.S_IMODE(machine.own.stat().st_mode) == 0o644
    assert machine.model.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    await machine.setup("--model", "runbook")
    assert (await machine.lactl("prompt", "ops", "xyzzy plugh")).returncode == 81
    # One that lies there already, and one of the environment, which is stored.
    (path.parent / "other").write_text(KEY)
    await machine.setup("--model", "other/x", "--base-url", url, "--key-file", str(path.parent / "other"))
    told = await machine.setup("--model", "openai/x", "--base-url", url, OPENAI_API_KEY=KEY)
    assert told["model"]["state"] == "done"
    assert (path.parent / "openai").read_text().strip() == KEY
    # A key of somebody else's stays, and a link to one is not followed.
    (path.parent / "groq").write_text("gsk-mine")
    told = await machine.setup("--model", "groq/x", "--key-file", "-", stdin=KEY.encode(), status=73)
    assert "holds another key" in told["model"]["detail"]
    (path.parent / "groq").unlink()
    (path.parent / "groq").symlink_to("/etc/hostname")
    await machine.setup("--model", "groq/x", "--key-file", "-", stdin=KEY.encode(), status=74)


async def test_what_fails_changes_nothing(machine: Machine) -> None:
    url = machine.model.base_url
    before = machine.files()
    where = ("--base-url", url)
    cases: list[tuple[tuple[str, ...], bytes, int, str]] = [
        (("--model", "work/broken", *where, "--key-file", "-"), KEY.encode(), 70, "nothing is changed"),
        (("--model", "none/x"), b"", 78, "not configured"),
        (("--model", "groq/x"), b"", 65, "no key"),
        (("--model", "x"), b"", 65, "not a model"),
        (("--model", "../x", *where), b"", 65, "no name"),
        (("--model", "a/b\n[x]", *where), b"", 65, "no name"),
        (("--model", "a/b", "--base-url", f"http://u:{KEY}@h/v1"), b"", 65, "password"),
        (("--model", "a/b", *where, "--key-file", "-"), b"two words", 65, "not a key"),
        (("--model", "a/b", *where, "--key-file", "-"), b"", 65, "not a key"),
        (("--model", "a/b", *where, "--key-file", "/dev/null/none"), b"", 66, "no file"),
    ]
    for options, stdin, status, why in cases:
        told = await machine.setup(*options, stdin=stdin, status=status)
        assert why in told["model"]["detail"], options
        assert machine.files() == before, options
    done = await machine.lactl("prompt", "ops", "xyzzy plugh")
    assert (done.returncode, done.stderr.rstrip().endswith("answer: lactl setup")) == (81, True)
    # What another file says is neither repeated nor overruled.
    late = machine.paths.config / "lightagentd.toml.d/99-late.toml"
    late.write_text(
        '[models]\ndefault = "runbook"\n[models.providers.mine]\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    for options in (("--model", "work/x", *where), ("--model", "mine/x", *where)):
        told = await machine.setup(*options, status=73)
        assert str(late) in told["model"]["detail"]
        assert not machine.own.exists()
    # The other steps go on, and say what they need.
    told = await machine.setup("--model", "x", "--group", "root", "--shell", "fish", status=65)
    assert [told[name]["state"] for name in ("model", "group", "shell")] == ["failed", "failed", "done"]
    assert "lactl shell init fish | source" in (machine.home / ".config/fish/config.fish").read_text()


def test_without_a_daemon_it_says_what_to_do(paths: Paths, tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path),
        "SHELL": "/bin/sh",
        "LIGHTAGENT_SOCKET": str(paths.socket),
        "LIGHTAGENT_CONFIG_DIR": str(paths.config),
    }
    before = sorted(paths.config.rglob("*"))
    options = ["setup", "--model", "work/x", "--base-url", "http://127.0.0.1:9/v1"]
    done = run(LACTL, options, env=env)
    assert done.returncode == 69
    assert done.stdout.startswith(b"model\tfailed\tNothing answers on ")
    assert sorted(paths.config.rglob("*")) == before
    assert run(LACTL, [*options, "--no-test"], env=env).returncode == 0
    assert (paths.config / "lightagentd.toml.d/50-setup.toml").exists()
    assert run(LACTL, ["setup", "--base-url", "http://127.0.0.1:9/v1"], env=env).returncode == 2
    desktop = run(LACTL, ["setup", "--desktop"], env=env)
    assert (desktop.returncode, b"systemctl --user enable --now lightagent-notify" in desktop.stdout) == (
        69,
        True,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_is_not_root_gets_the_command_for_root(open_folder: Path) -> None:
    """Also one who begins as root for another does not write into their files."""
    (open_folder / "etc").mkdir(mode=0o755)
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(open_folder),
        "SHELL": "/bin/zsh",
        "LIGHTAGENT_SOCKET": str(open_folder / "none"),
        "LIGHTAGENT_CONFIG_DIR": str(open_folder / "etc"),
        "OPENAI_API_KEY": KEY,
    }
    options = ["setup", "--model", "openai/gpt-5"]
    done = prepared().run(LACTL, options, env=env, user="nobody")
    assert done.returncode == 77
    told = done.stdout.decode().rstrip("\n").split("\t")
    assert told[-1] == "Run: sudo --preserve-env=OPENAI_API_KEY lactl setup --model openai/gpt-5"
    done = run(LACTL, ["setup", "--shell", "zsh", "--desktop"], env={**env, "SUDO_USER": "nobody"})
    assert done.stdout.decode().splitlines() == [
        "desktop\toffered\tfor nobody to do\tlactl setup --desktop",
        "shell\toffered\tfor nobody to do\tlactl setup --shell zsh",
    ]
    assert [path.name for path in open_folder.iterdir()] == ["etc"]
