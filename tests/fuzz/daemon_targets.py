"""What is fuzzed through a whole daemon: its control socket, and the files and states that it starts from."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from lightagentd.agents.content import Content
from lightagentd.client.blocking import Client
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write
from tests.fuzz import samples
from tests.fuzz.mutation import mutated_bytes, mutated_value
from tests.fuzz.targets import Target, told

_TOML = '[worker]\nsandbox = "none"\n'
_FILES = {
    "panic": b'{"since_us": 1795000000000000, "by": 0, "reason": "x"}',
    "journal-gap.json": b'{"first_seq": 3, "last_seq": 9, "count": 7}',
    "last-run.json": b'{"stopped": false, "short": 1, "seq": 3, "hash": "00"}',
    "approvals.key": bytes(range(32)),
    "redaction.key": bytes(range(32)),
    "audit/audit-key": bytes(range(32)),
}
"""Files of the state folder beside the history, as the daemon writes them."""
MAX_GROWTH_MIB = 64.0


def _folders() -> Paths:
    base = Path(tempfile.mkdtemp(prefix="la-fuzz-"))
    base.chmod(0o755)
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    write(paths.config / "lightagentd.toml", _TOML)
    return paths


class Start:
    """The daemon's start with a broken state or file: it serves, or refuses with an error that says why."""

    def __init__(self) -> None:
        self._paths = _folders()
        self._sample = self._paths.state.parent / "sample"
        samples.fill(self._sample)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(Content, "read_tools", _no_tools)
        logging.disable(logging.CRITICAL)

    def close(self) -> None:
        self._patch.undo()
        logging.disable(logging.NOTSET)
        shutil.rmtree(self._paths.state.parent)

    def once(self, rng: random.Random) -> None:
        state = self._paths.state
        shutil.rmtree(state, ignore_errors=True)
        (state / "history").mkdir(mode=0o700, parents=True)
        shutil.copyfile(self._sample / "data.mdb", state / "history" / "data.mdb")
        if rng.random() < 0.3:
            name = rng.choice(sorted(_FILES))
            file = state / name
            file.parent.mkdir(exist_ok=True, mode=0o700)
            file.write_bytes(mutated_bytes(_FILES[name], rng))
            file.chmod(0o600)
        else:
            self._break_state(state / "history", rng)
        asyncio.run(self._start())

    async def _start(self) -> None:
        daemon = Daemon(self._paths)
        try:
            async with asyncio.timeout(50), daemon:
                async with asyncio.timeout(30):
                    await asyncio.to_thread(self._use)
        except LightagentError as err:
            told(err)

    def _use(self) -> None:
        with Client(self._paths.socket, timeout_s=30) as client:
            for method, parameters in (
                ("Manager.GetStatus", {}),
                ("Sessions.List", {}),
                ("Sessions.Get", {"session": samples.SESSION}),
                ("Sessions.Messages", {"session": samples.SESSION}),
                ("Approvals.List", {"all": True}),
                ("Inputs.List", {"all": True}),
                ("Plans.Get", {"session": samples.SESSION}),
                ("Memory.List", {"state": "all"}),
                ("Memory.GetProfile", {}),
                ("History.Query", {"limit": 50}),
            ):
                try:
                    client.call(method, **parameters)
                except LightagentError as err:
                    told(err)

    def _break_state(self, folder: Path, rng: random.Random) -> None:
        env = lmdb.open(str(folder), max_dbs=32, map_size=1 << 26, sync=False, metasync=False)
        try:
            name = rng.choice([name for name, entries in samples.states().items() if entries])
            database = env.open_db(name.encode())
            with env.begin(write=True, db=database) as txn:
                key, value = rng.choice([(bytes(key), bytes(value)) for key, value in txn.cursor()])
                if rng.random() < 0.75:
                    changed = json.dumps(mutated_value(json.loads(value), rng)).encode()
                else:
                    changed = mutated_bytes(value, rng, most=2)
                txn.put(key, changed)
        finally:
            env.close()
        for name in ("data.mdb", "lock.mdb"):
            (folder / name).chmod(0o600)


async def _no_tools(*_: object, **__: object) -> None:
    """Tools are described by a worker, which takes longer than all the rest of a start."""


class Socket:
    """The control socket of a daemon process: it answers or hangs up, serves others, and stays small."""

    def __init__(self) -> None:
        self._paths = _folders()
        self._daemon = DaemonProcess(self._paths)
        self._daemon.start()
        self._inputs = 0
        self._small_mib = 0.0

    def close(self) -> None:
        try:
            self._daemon.close()
            assert "Traceback" not in self._daemon.log.read_text(), self._daemon.log.read_text()[-4000:]
        finally:
            shutil.rmtree(self._paths.state.parent)

    def once(self, rng: random.Random) -> None:
        self._inputs += 1
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(5)
            sock.connect(str(self._paths.socket))
            try:
                sock.sendall(self._message(rng))
                if rng.random() < 0.5:
                    sock.shutdown(socket.SHUT_WR)
                if rng.random() < 0.8:
                    sock.settimeout(0.05)
                    sock.recv(1 << 16)
            except OSError:
                pass  # it may hang up at once, and it may wait for the rest
        with self._daemon.client() as client:
            client.call("Manager.GetStatus")
            if self._inputs % 100 == 0:
                client.call("History.Query", limit=5)
                self._check_size()

    def _message(self, rng: random.Random) -> bytes:
        calls = [self._call(rng) for _ in range(rng.choice((1, 1, 1, 2, 20)))]
        data = b"".join(call + b"\0" for call in calls)
        return mutated_bytes(data, rng) if rng.random() < 0.5 else data

    def _call(self, rng: random.Random) -> bytes:
        call = rng.choice(samples.CALLS)
        if rng.random() < 0.7:
            call = mutated_value(call, rng)
        return json.dumps(call).encode()

    def _check_size(self) -> None:
        """After a while it must not grow any more."""
        status = Path(f"/proc/{self._daemon.pid}/status").read_text()
        size_mib = next(int(line.split()[1]) / 1024 for line in status.splitlines() if "RssAnon" in line)
        self._small_mib = self._small_mib or size_mib
        assert size_mib < self._small_mib + MAX_GROWTH_MIB, f"{self._small_mib} MiB became {size_mib}"


DAEMON_TARGETS: dict[str, Callable[[], Target]] = {"start": Start, "socket": Socket}
