"""A worker for change that verifies its calls, its approver's key, its rules, and its journal.

The worker is a process of its own; the test is the daemon, and may say what it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.events.journal import signed_record
from lightagentd.host.paths import share_folder
from lightagentd.signed.grant import FRESH_S, Grant
from lightagentd.signed.statement import Statement
from lightagentd.tool import Effect
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker.call import Call
from lightagentd.worker.loader import ToolFiles
from tests.worker.running import PATIENCE_S

NO_TERMS: dict[str, Any] = {"confirm_within_s": 0, "check": "", "inverse": ""}
ASKER = """
from lightagentd.tool import Args, Context, Effect, NeedsInput, Result, Tool, action

class NameArgs(Args):
    name: str

class Asker(Tool):
    "Asks a person in the middle of a change."
    name = "asker"

    @action(effect=Effect.CHANGE, resume="go_on")
    async def make(self, ctx: Context, args: NameArgs) -> Result:
        "Ask."
        raise NeedsInput("Really?", state={"name": args.name})

    async def go_on(self, ctx: Context, state: object, answer: str) -> Result:
        return Result(output=f"{state['name']}: {answer}")
"""


class Verified:
    """The folders, keys and sockets of one worker; `process` is the running one."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("etc/tools", "etc/skills", "etc/policy.d", "state", "approver", "scratch", "files"):
            (base / name).mkdir(parents=True)
        (base / "etc/tools/asker.py").write_text(ASKER)
        (base / "etc/tools/loose.py").write_text("raise SystemExit\n")
        (base / "etc/tools/loose.py").chmod(0o666)
        self.key = Ed25519PrivateKey.generate()
        self.publish()
        self.journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.journal.setblocking(False)
        self.journal.bind(str(base / "journal"))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(base / "socket"))
        self.listener.listen()
        self.tools = ToolFiles([base / "etc/tools", share_folder() / "tools"])
        self.told: list[dict[str, Any]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._numbers = iter(range(1, 10_000))
        self._calls = iter(range(1, 10_000))

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.worker.verifying_worker",
                str(self.base),
                str(self.listener.fileno()),
            ],
            cwd=Path(__file__).resolve().parents[2],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            pass_fds=[self.listener.fileno()],
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """As after a crash."""
        self.stop()
        self.start()

    def publish(self, key: Ed25519PrivateKey | None = None) -> None:
        public = (key or self.key).public_key().public_bytes_raw()
        (self.base / "approver/public").write_bytes(public)

    def rules(self, *texts: str) -> None:
        """Put these rules in the place of all others."""
        rules = "".join(f'[[rule]]\nname = "rule-{at}"\n{text}\n' for at, text in enumerate(texts))
        (self.base / "etc/policy.d/test.toml").write_text(rules)

    def call(self, name: str, /, **args: Any) -> Call:
        """A call of an action, with its arguments as the tool checks them."""
        tool, _, action = name.partition(".")
        checked = self.tools[tool].actions[action].args_model(**args)
        return Call(
            call_id=f"call_{next(self._calls):016x}",
            tool=tool,
            action=action,
            args=checked.model_dump(mode="json"),
            agent="ops",
            session="ses_0123456789abcdef",
            effect=Effect.CHANGE,
            timeout_s=30.0,
            owner=0,
            trigger="person",
            terms=NO_TERMS,
        )

    def write(self, name: str, content: str = "new\n") -> Call:
        return self.call("file.write", path=str(self.base / "files" / name), content=content)

    def statement(self, call: Call) -> Statement:
        return Statement(
            agent=call.agent,
            tool=call.tool,
            action=call.action,
            effect=call.effect.value,
            args=call.args,
            tool_sha256=self.tools[call.tool].sha256,
            call_id=call.call_id,
            session=call.session,
            owner=call.owner,
            trigger=call.trigger,
            kit=call.kit,
            above=call.above,
            expected=call.expected,
            **call.terms,
        )

    def signed(self, call: Call, *, key: Ed25519PrivateKey | None = None, **changed: Any) -> dict[str, str]:
        """The approver's signature under a call; `changed` are fields of the grant that are otherwise."""
        grant = {
            "digest": self.statement(call).digest,
            "agent": "ops",
            "effect": "change",
            "owner": call.owner,
            "by": 1000,
            "series": "a",
            "number": next(self._numbers),
            "expires_us": time.time_ns() // 1000 + int(FRESH_S * 1e6),
        }
        return Grant(**{**grant, **changed}).signed(key or self.key)

    async def run(self, call: Call, **wire: Any) -> list[dict[str, Any]]:
        """All that the worker says of a call; `wire` are fields of the message that are otherwise. Raises
        the call's errors.
        """
        async with asyncio.timeout(PATIENCE_S):
            async with self.connected() as connection:
                message = {**call.to_wire(call.kit), **wire}
                stream = connection.stream("org.lightagent1.Worker.Call", call=message, context={})
                return [reply["event"] async for reply in stream]

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[VarlinkConnection]:
        connection = await VarlinkConnection.connect(self.base / "socket")
        try:
            yield connection
        finally:
            connection.close()

    def records(self) -> list[dict[str, Any]]:
        """The records that came since the last time, each signed by the worker."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self.journal.recv(1 << 20).decode().splitlines()
                entry = dict(line.split("=", 1) for line in lines)
                record = signed_record.verified(entry, (self.base / "state/public").read_bytes())
                assert record is not None, json.dumps(entry)
                found.append(record)
        return found

    def close(self) -> None:
        self.stop()
        self.journal.close()
        self.listener.close()


@contextlib.contextmanager
def verified(*, started: bool = True) -> Iterator[Verified]:
    """One that ends with the block; not `started` there is no process."""
    base = Path(tempfile.mkdtemp(prefix="la-verified-"))
    made = Verified(base)
    if started:
        made.start()
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(base)
