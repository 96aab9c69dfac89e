"""A file of secrets of every kind goes along every path of a real daemon, and nobody finds one again.

Searched are the state and runtime folders (so the history's file, too), the journal, the daemon's log, what
the model was sent, and every byte that came from the control socket and the bus: for each secret, its
Base64 and percent-encoded forms, and its longest part. The one place where a secret may be seen is the
question whether a call may run: whoever decides sees all of it, over a connection of his own here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.blocking import Client
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write
from tests.fake_systemd import private_bus
from tests.raw_dbus import RawBus
from tests.scripted_model import Answer, Fault, ScriptedModel, call, say
from tests.secrets.capture import Journal, Tap
from tests.secrets.samples import Sample, samples

SEED = 4
API_KEY = "tulip-Garden-Fence-77"
CREDENTIAL = "winter Cellar-Window 91"
"""Known by value alone: they look like nothing."""
KNOWN = [
    Sample(name="provider key", kind="credential", text=f"the key {API_KEY}.", secret=API_KEY),
    Sample(name="credential", kind="credential", text=f"it is: {CREDENTIAL};", secret=CREDENTIAL),
]
SAMPLES = [*samples(SEED), *KNOWN]
EVERYTHING = "".join(f"{one.text}\n" for one in SAMPLES)
SHORT = next(one.text for one in SAMPLES if one.name == "github token")
PASSWORD = next(one.text for one in SAMPLES if one.name == "environment password")
CONFIG = """
[worker]
change_agents = ["test"]

[models.providers.local]
base_url = "BASE_URL"
max_retries = 1
api_key_file = "KEY_FILE"
"""


class JournaledProcess(DaemonProcess):
    """The daemon as a process, with a journal of its own."""

    def __init__(self, paths: Paths, journal: Path, env: dict[str, str]) -> None:
        super().__init__(paths, env)
        self._journal = journal

    def spawn(self) -> None:
        folders = [f"--{name}-dir={getattr(self.paths, name)}" for name in ("config", "state", "runtime")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.secrets.daemon", str(self._journal), *folders],
                env={**self.env, "PYTHONPATH": str(Path.cwd())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def pieces(text: str, seed: int) -> list[str]:
    """The text in random pieces, as a model gives it."""
    rng, found = random.Random(seed), []
    while text:
        size = rng.choice([1, 2, 3, 5, 8, 40])
        found.append(text[:size])
        text = text[size:]
    return found


@dataclass
class Script:
    """What the model answers, by the last prompt's first word; what was said before counts its steps."""

    folder: Path
    seen: list[str] = field(default_factory=list)

    def __call__(self, body: dict[str, Any]) -> Answer:
        steps, prompt = 0, ""
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                prompt = message["content"]
                break
            steps += message["role"] == "tool"
        self.seen.append(prompt.split()[0])
        if body.get("tools") is None:  # it is to shorten the conversation
            return say("A summary.")
        return getattr(self, f"on_{prompt.split()[0]}", self.on_any)(steps)

    def on_any(self, _: int) -> Answer:
        return say("Noted.")

    def on_say(self, _: int) -> Answer:
        return say(*pieces(EVERYTHING, SEED))

    def on_read(self, steps: int) -> Answer:
        return say("Read.") if steps else call("file_read", {"path": str(self.folder / "secrets.txt")})

    def on_run(self, steps: int) -> Answer:
        command = (
            f"cat <<'EOT'\n{EVERYTHING}EOT\ncat {self.folder}/secrets.txt; cat {self.folder}/secrets.txt >&2"
        )
        return say("Ran.") if steps else call("bash_exec", {"command": command, "effect": "observe"})

    def on_long(self, steps: int) -> Answer:
        command = f"for i in $(seq 25); do cat {self.folder}/secrets.txt; done"
        return say("Ran.") if steps else call("bash_exec", {"command": command, "effect": "observe"})

    def on_wrong(self, steps: int) -> Answer:
        bad = {"path": EVERYTHING, SHORT: "x", "password": "hunter-99-x"}
        return [call("file_read", bad), call("file_read", {"path": EVERYTHING}), call(SHORT, {}), say("No.")][
            steps
        ]

    def on_fail(self, _: int) -> Answer:
        return Fault(status=400, body=json.dumps({"error": {"message": EVERYTHING[:400]}}).encode())

    def on_garbage(self, _: int) -> Answer:
        return Fault(status=200, content_type="text/plain", body=SHORT.encode())

    def on_remember(self, steps: int) -> Answer:
        return say("No.") if steps else call("memory_remember", {"text": PASSWORD})

    def on_ask(self, steps: int) -> Answer:
        return (
            say("Thanks.") if steps else call("human_ask", {"question": f"Is it right?\n{EVERYTHING[:1500]}"})
        )

    def on_fetch(self, steps: int) -> Answer:
        headers = {"Authorization": "Bearer " + SHORT, "Cookie": f"sid={SHORT}"}
        wanted = {
            "url": f"http://u:{SHORT.split()[-1]}@127.0.0.1:9/x?password=hunter-99-x",
            "headers": headers,
        }
        return say("Fetched.") if steps else call("web_get", wanted)

    def on_watch(self, steps: int) -> Answer:
        if steps:
            return say("Watching.")
        return call("inotify_watch", {"path": str(self.folder / "watched"), "events": ["create"]})

    def on_write(self, steps: int) -> Answer:
        target = str(self.folder / "target.txt")
        if not steps:
            return call("file_write", {"path": target, "content": EVERYTHING})
        return call("file_write", {"path": target, "content": "nothing\n"}) if steps == 1 else say("Written.")


@dataclass
class Setup:
    daemon: JournaledProcess
    model: ScriptedModel
    journal: Journal
    tap: Tap
    bus: Tap
    folder: Path
    said: list[dict[str, Any]] = field(default_factory=list)

    async def call(self, method: str, *, whole: bool = False, **parameters: Any) -> Any:
        """A call through the tap, or past it where all is to be seen; an error is a result, too."""

        def run() -> Any:
            with Client(self.daemon.paths.socket if whole else self.tap.path, timeout_s=120) as client:
                try:
                    return client.call(method, **parameters)
                except LightagentError as err:
                    return err

        return await asyncio.to_thread(run)

    async def prompt(self, text: str, *, whole: bool = False, **parameters: Any) -> list[dict[str, Any]]:
        def run() -> list[dict[str, Any]]:
            with Client(self.daemon.paths.socket if whole else self.tap.path) as client:
                wanted = {"agent": "test", "text": text, **parameters}
                return [reply["event"] for reply in client.stream("Sessions.Prompt", **wanted)]

        return await asyncio.to_thread(run)


@contextlib.contextmanager
def tapped_bus(folder: Path) -> Iterator[tuple[str, Tap]]:
    with private_bus() as address:
        real = Path(address.removeprefix("unix:path=").partition(",")[0])
        with Tap(folder / "bus", real) as tap:
            yield address, tap


@contextlib.asynccontextmanager
async def running(paths: Paths) -> AsyncIterator[Setup]:
    folder = paths.state.parent / "f"
    folder.mkdir(mode=0o755)
    paths.state.parent.chmod(0o755)
    (folder / "watched").mkdir()
    write(folder / "secrets.txt", EVERYTHING)
    key_file = write(folder.parent / "key", API_KEY)
    credentials = folder.parent / "credentials"
    write(credentials / "some-password", f"{CREDENTIAL}\n")
    script = Script(folder)
    async with ScriptedModel(script) as model:
        toml = CONFIG.replace("BASE_URL", model.base_url).replace("KEY_FILE", str(key_file))
        write(paths.config / "lightagentd.toml", toml)
        front = "model: local/x\neffects: [observe, reach, change]"
        write(paths.config / "agent" / "test" / "AGENT.md", f"---\n{front}\n---\nBe brief.\n{EVERYTHING}")
        with tapped_bus(folder.parent) as (address, bus), Journal(folder.parent / "journal") as journal:
            write(paths.config / "lightagentd.toml.d" / "50-bus.toml", f'[daemon]\nbus = "{address}"\n')
            env = {"CREDENTIALS_DIRECTORY": str(credentials)}
            daemon = JournaledProcess(paths, journal.path, env)
            await asyncio.to_thread(daemon.start)
            try:
                with Tap(folder.parent / "tap", paths.socket) as tap:
                    yield Setup(daemon, model, journal, tap, bus, folder)
            finally:
                await asyncio.to_thread(daemon.close)


async def go_along_every_path(at: Setup) -> str:
    """Use the daemon in each way that a secret could go; gives a session."""
    [first, *_] = await at.prompt(f"hello {EVERYTHING}", correlation_id=f"for {SHORT}")
    session = str(first["session"])
    attachment = {"name": f"{SHORT.split()[1]}.txt", "text": EVERYTHING}
    await at.prompt("look at it", session=session, attachments=[attachment])
    for word in ("say", "read", "run", "long", "wrong", "fail", "garbage", "remember", "fetch", "watch"):
        # A session that has read a file has to ask before it goes to a host.
        where: dict[str, Any] = {"new": True} if word in ("fetch", "watch") else {"session": session}
        ended = (await at.prompt(f"{word} now", **where))[-1]["type"]
        assert (ended == "error") == (word in ("fail", "garbage")), word
    (at.folder / "watched" / SHORT.split()[1]).touch()
    await ask_a_person(at, session)
    await change_with_approval(at, session)
    await at.call("Sessions.Rename", session=session, title=f"about {SHORT}")
    await at.call("Sessions.Create", agent="test", title=PASSWORD)
    created = await at.call("Agents.Create", name="other", definition={"prompt": EVERYTHING})
    assert isinstance(created, LightagentError)
    created = await at.call("Agents.Create", name="other", prompt=EVERYTHING)
    assert isinstance(created, LightagentError)
    forked = await at.call("Sessions.Fork", session=session, title=SHORT)
    assert not isinstance(forked, LightagentError), forked
    history = [{"role": "user", "content": EVERYTHING}, {"role": "assistant", "content": EVERYTHING}]
    peer = {"session_id": SHORT, "updated_at": "2026-01-01T00:00:00Z", "history": history}
    imported = f"# {SHORT}\n\n```json\n{json.dumps(peer)}\n```\n"
    assert not isinstance(await at.call("Sessions.Import", agent="test", text=imported), LightagentError)
    for method, more in (
        ("Sessions.List", {}),
        ("Sessions.Messages", {"session": session, "limit": 1000}),
        ("Sessions.Export", {"session": session}),
        ("Sessions.Get", {"session": PASSWORD}),
        ("History.Query", {"limit": 1000}),
        ("Agents.List", {}),
        ("Agents.Get", {"name": "test"}),
        ("Inputs.List", {"every": True}),
        ("Manager.GetStatus", {}),
        ("Tools.Get", {"name": SHORT}),
        ("Memories.List", {}),
        (f"Manager.{SHORT.split()[1]}", {}),
    ):
        at.said.append({method: str(await at.call(method, **more))[:200]})
    write(
        at.daemon.paths.config / "lightagentd.toml.d" / "60-wrong.toml",
        f'[daemon]\n"{SHORT}" = 1\nlog_level = "{PASSWORD}"\n',
    )
    assert isinstance(await at.call("Manager.Reload"), LightagentError)
    os.kill(at.daemon.pid, signal.SIGHUP)
    (at.daemon.paths.config / "lightagentd.toml.d" / "60-wrong.toml").unlink()
    await asyncio.to_thread(over_the_bus, at, session)
    return session


async def ask_a_person(at: Setup, session: str) -> None:
    asking = asyncio.create_task(at.prompt("ask me", session=session))
    while not (waiting := (await at.call("Inputs.List"))["inputs"]):
        assert not asking.done(), asking.result()
    await at.call("Inputs.Answer", input=waiting[0]["id"], text=f"Yes: {EVERYTHING}")
    assert (await asking)[-1]["type"] == "done"


async def change_with_approval(at: Setup, session: str) -> None:
    """Twice: to write the secrets, and to write over them, which keeps them for an undo."""
    changing = asyncio.create_task(at.prompt("write it", whole=True, session=session))
    for number in range(2):
        while not (waiting := (await at.call("Approvals.List", whole=True))["approvals"]):
            assert not changing.done(), changing.result()
        assert any(one.secret in str(waiting) for one in SAMPLES) or number, "who decides sees all of it"
        await at.call("Approvals.Approve", whole=True, approval=waiting[0]["id"], note=f"ok {SHORT}")
    assert (await changing)[-1]["type"] == "done"
    assert (at.folder / "target.txt").read_text() == "nothing\n"


def over_the_bus(at: Setup, session: str) -> None:
    with RawBus(f"unix:path={at.bus.path}") as bus:
        root = "/org/lightagent1"
        bus.ask(root, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")
        for member, signature, args in (
            ("Ask", "ssa{sv}", ["test", f"say {SHORT}", {}]),
            ("Ask", "ssa{sv}", [PASSWORD, "hello", {}]),
        ):
            with contextlib.suppress(Exception):  # an error is an answer, too
                bus.ask(root, "org.lightagent1.Manager", member, signature, args)
        with contextlib.suppress(Exception):
            bus.ask(root, "org.lightagent1.Sessions", "Messages", "sa{sv}", [session, {}])


def found_in(data: bytes, where: str) -> list[str]:
    return [
        f"{one.name} in {where}: {data[max(0, place - 60) : place + 40]!r}"
        for one in SAMPLES
        for trace in {*one.traces(), *(json.dumps(each)[1:-1] for each in one.traces())}
        if (place := data.find(trace.encode())) >= 0
    ]


def search(at: Setup) -> list[str]:
    found: list[str] = []
    for folder in (at.daemon.paths.state, at.daemon.paths.runtime):
        for path in folder.rglob("*"):
            if path.is_file():
                found += found_in(path.read_bytes(), str(path.relative_to(folder.parent)))
            found += found_in(str(path.relative_to(folder)).encode(), "the name of a file")
    found += found_in(b"\n".join(at.journal.entries), "the journal")
    found += found_in(at.daemon.log.read_bytes(), "the log")
    found += found_in(bytes(at.tap.heard), "the control socket")
    found += found_in(bytes(at.bus.heard), "the bus")
    for request in at.model.requests:
        assert request.headers.pop("authorization", f"Bearer {API_KEY}") == f"Bearer {API_KEY}"
        found += found_in(json.dumps(request.body, ensure_ascii=False).encode(), "a request to the model")
        found += found_in(json.dumps(request.headers).encode(), "the headers of a request to the model")
    return found


def marks(heard: bytes) -> set[str]:
    """The kinds of secrets that were removed from it."""
    return {kind.decode() for kind in re.findall(rb"\[removed: ([a-z0-9-]+)[ \]]", heard)}


@pytest.mark.usefixtures("sandboxed")
async def test_no_secret_is_found_again_on_any_path(paths: Paths) -> None:
    assert len({one.name for one in SAMPLES}) >= 25
    async with running(paths) as at:
        session = await go_along_every_path(at)
        copy = paths.state.parent / "copy.mdb"
        shutil.copy(paths.history / "data.mdb", copy)
        at.daemon.kill()
        await asyncio.to_thread(at.daemon.start)
        again = await at.call("Sessions.Messages", session=session, limit=1000)
        assert "[removed: " in str(again)
        await at.prompt("say it again", session=session)
        verified = await at.call("History.Verify")
        assert not isinstance(verified, LightagentError), verified
        await asyncio.to_thread(at.daemon.stop)
        found = [*search(at), *found_in(copy.read_bytes(), "a copy of the history")]
        assert not found, f"{len(found)} traces:\n" + "\n".join(found[:60])
        for heard in (
            at.tap.heard,
            at.bus.heard,
            copy.read_bytes(),
            json.dumps(at.model.requests[-1].body).encode(),
        ):
            assert len(marks(bytes(heard))) >= 10
        assert {one.kind for one in SAMPLES} - marks(bytes(at.tap.heard)) == set()
