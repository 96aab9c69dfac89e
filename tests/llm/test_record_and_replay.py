"""A daemon that records, and one that plays what that recorded: the same prompt gets the same answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write
from tests.model_server import faults
from tests.model_server.said import call, say
from tests.model_server.server import ModelServer, Script, Scripted

KEY = "sk-proj-aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW"
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
KINDS = {"openai": "chat", "openai-responses": "responses", "anthropic": "messages"}


@contextlib.asynccontextmanager
async def daemon(base: Path, toml: str, *, key: str = "") -> AsyncIterator[DaemonProcess]:
    """A daemon process whose agent `test` asks the provider `p`."""
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    write(paths.config / "agent" / "test" / "AGENT.md", "---\nmodel: p/m\ntools: [file]\n---\nBe brief.\n")
    write(paths.config / "lightagentd.toml", toml)
    paths.state.mkdir(parents=True)
    process = DaemonProcess(paths, {"P_KEY": key} if key else None)
    try:
        await asyncio.to_thread(process.start)
        yield process
    finally:
        await asyncio.to_thread(process.close)


async def recorded(
    base: Path, script: Script, kind: str, *prompts: str
) -> tuple[Path, list[tuple[int, str]]]:
    """Prompt a daemon that records; gives the folder, and lactl's exit status and output of each prompt."""
    folder = base / "records"
    async with ModelServer(script) as server:
        toml = (
            f'[models]\nrecord = "{folder}"\n[models.providers.p]\nkind = "{kind}"\n'
            f'base_url = "{server.base_url}"\napi_key_env = "P_KEY"\nmax_retry_s = 1\n'
        )
        async with daemon(base / "one", toml, key=KEY) as process:
            said = [await prompted(process, text) for text in prompts]
    return folder, said


async def prompted(process: DaemonProcess, text: str) -> tuple[int, str]:
    done = await asyncio.to_thread(process.lactl, "prompt", "--new", "test", text)
    return done.returncode, done.stdout


async def replayed(base: Path, folder: Path, *prompts: str) -> list[tuple[int, str]]:
    toml = f'[models.providers.p]\nkind = "replay"\nrecording = "{folder}"\n'
    async with daemon(base / "two", toml) as process:
        return [await prompted(process, text) for text in prompts]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_prompt_gets_the_same_answer(open_folder: Path, kind: str) -> None:
    script = [
        call("file_stat", {"path": "/etc/hostname"}, text=("Let me see.",)),
        say("It is ", "a file."),
        say("Four.", thinking=("Two and ", "two.")),
    ]
    prompts = ("what is /etc/hostname?", "what is two and two?")
    folder, first = await recorded(open_folder, script, kind, *prompts)
    assert [status for status, _ in first] == [0, 0]
    assert "It is a file." in first[0][1]
    assert await replayed(open_folder, folder, *prompts) == first
    texts = [path.read_text() for path in folder.iterdir()]
    assert len(texts) == 3
    assert not any(KEY in text for text in texts)


async def test_failures_come_again_and_secrets_do_not(open_folder: Path) -> None:
    script: list[Scripted] = [
        faults.status(503, kind="overloaded_error"),
        say("Its token is ghp_", TOKEN.removeprefix("ghp_"), ", and no other."),
        faults.status(401, message=f"the key {KEY} is wrong", kind="authentication_error"),
    ]
    prompts = ("what is its token?", "and now?")
    folder, first = await recorded(open_folder, script, "openai", *prompts)
    assert first[0][0] == 0
    assert first[1][0] != 0
    assert await replayed(open_folder, folder, *prompts) == first
    texts = "".join(path.read_text() for path in folder.iterdir())
    assert TOKEN not in texts
    assert KEY not in texts


async def test_another_prompt_ends_with_what_differs(open_folder: Path) -> None:
    folder, _ = await recorded(open_folder, [say("yes")], "openai", "is it?")
    toml = f'[models.providers.p]\nkind = "replay"\nrecording = "{folder}"\n'
    async with daemon(open_folder / "two", toml) as process:
        done = await asyncio.to_thread(process.lactl, "prompt", "test", "was it?")
    assert done.returncode != 0
    assert "message 1 of 1 (role user) differs" in done.stderr
