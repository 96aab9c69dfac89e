"""A user's own daemon with nothing but variables or a `.env`: it answers through the model named there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.host.paths import Paths
from lightagentd.llm.environment import VARIABLES
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.scripted_model import ScriptedModel, say

UID = 12345
KEY = "sk-very-secret-key-0123456789"


class UsersDaemon(DaemonProcess):
    """One that runs in a folder of its user, who is not root."""

    def __init__(self, folder: Path) -> None:
        become = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--")
        paths = Paths(config=folder / "etc", state=folder / "state", runtime=folder / "run")
        variables = {"HOME": str(folder), "PYTHONPATH": str(REPOSITORY)}
        super().__init__(paths, variables, become if os.geteuid() == 0 else ())
        self.folder = folder
        self.cwd = folder

    def give(self, **variables: str) -> None:
        self._env |= variables

    def dot_env(self, text: str) -> None:
        path = write(self.folder / ".env", text)
        path.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(path, UID, UID)


@pytest.fixture
def users_daemon(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsersDaemon]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if os.geteuid() == 0:
        os.chown(open_folder, UID, UID)
    daemon = UsersDaemon(open_folder)
    yield daemon
    daemon.close()


async def answered(daemon: UsersDaemon, model: ScriptedModel) -> str:
    """What the shipped agent says; the model is served by this loop, so the command runs beside it."""
    await asyncio.to_thread(daemon.start)
    done = await asyncio.to_thread(daemon.lactl, "prompt", "ops", "please tell me a joke about penguins")
    assert done.returncode == 0, done.stderr + daemon.log.read_text()
    assert len(model.requests) == 1
    return done.stdout


async def test_three_variables_are_enough(users_daemon: UsersDaemon) -> None:
    async with ScriptedModel([say("A penguin walks in.")]) as model:
        users_daemon.give(API_KEY=KEY, BASE_URL=f"{model.base_url}/chat/completions", MODEL="some/model")
        assert "A penguin walks in." in await answered(users_daemon, model)
        assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert model.requests[0].body["model"] == "some/model"


async def test_a_file_in_the_working_folder_is_enough(users_daemon: UsersDaemon) -> None:
    async with ScriptedModel([say("A penguin walks in.")]) as model:
        users_daemon.dot_env(
            f"# mine\nexport API_KEY='{KEY}'\nBASE_URL={model.base_url}\nMODEL=m\nPATH=/evil\n"
        )
        assert "A penguin walks in." in await answered(users_daemon, model)
        assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
    environ = Path(f"/proc/{users_daemon.pid}/environ").read_text()
    assert KEY not in environ
    assert "/evil" not in environ


async def test_a_file_cannot_have_the_users_key_sent_elsewhere(users_daemon: UsersDaemon) -> None:
    async with ScriptedModel([say("x")]) as model:
        users_daemon.give(OPENAI_API_KEY=KEY)
        users_daemon.dot_env(f"OPENAI_BASE_URL={model.base_url}\n")
        await asyncio.to_thread(users_daemon.start)
        status = await asyncio.to_thread(users_daemon.lactl, "status")
        assert "OPENAI_BASE_URL in" in status.stdout
        assert "a key goes only to an address from the same place" in status.stdout
        assert KEY not in status.stdout + users_daemon.log.read_text()
        assert model.requests == []


async def test_a_file_that_others_can_write_is_a_problem_and_no_more(users_daemon: UsersDaemon) -> None:
    users_daemon.dot_env(f"API_KEY={KEY}\nBASE_URL=http://127.0.0.1:9/v1\nMODEL=m\n")
    (users_daemon.folder / ".env").chmod(0o666)
    await asyncio.to_thread(users_daemon.start)
    status = await asyncio.to_thread(users_daemon.lactl, "status")
    assert "others can write it" in status.stdout
