"""The gateway as a process, before a daemon with the agent `test` and its scripted model."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from lightagentd.client.aio import AsyncClient
from lightagentd.host.paths import Paths
from tests.agents.scripted import Scripted, scripted, until
from tests.conftest import REPOSITORY, write
from tests.ports import free_port
from tests.prepared import Forked, prepared
from tests.scripted_model import Script

GATEWAY = "lightagentd.gateway.service"


@dataclass(kw_only=True)
class Gateway:
    """A running gateway. `unix` and `port` are where it listens."""

    daemon: Scripted
    unix: Path
    port: int
    process: Forked
    log: Path
    http: httpx.AsyncClient
    """Without a token, on the Unix socket."""
    _clients: list[Any] = field(default_factory=list)

    async def token(self, *scopes: str, agents: tuple[str, ...] = (), user: str = "", **limits: int) -> str:
        """A new token, of this user or another one."""
        made = await self.call(
            "Tokens.Create",
            name=f"t{os.urandom(4).hex()}",
            scopes=list(scopes or ("inspect", "prompt")),
            agents=list(agents),
            user=user,
            limits={
                "requests_per_minute": 0,
                "streams": 0,
                "request_bytes": 0,
                "tokens_per_day": 0,
                **limits,
            },
        )
        return str(made["created"]["secret"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A call on the daemon's own socket."""
        async with AsyncClient(self.daemon.daemon.paths.socket) as client:
            return await client.call(method, **parameters)

    def over_tcp(self, token: str = "") -> httpx.AsyncClient:
        """A client on the TCP port."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60)
        self._clients.append(client)
        return client

    def openai(self, token: str = "local") -> AsyncOpenAI:
        """The SDK, on the Unix socket."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.unix))
        client = AsyncOpenAI(
            api_key=token,
            base_url="http://localhost/v1",
            max_retries=0,
            http_client=httpx.AsyncClient(transport=transport),  # type: ignore[arg-type]  # its own copy of httpx
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await (client.close() if isinstance(client, AsyncOpenAI) else client.aclose())
        await self.http.aclose()


@contextlib.asynccontextmanager
async def gateway(paths: Paths, script: Script, *, toml: str = "", front: str = "") -> AsyncIterator[Gateway]:
    """`toml` are more lines of the section [gateway], `front` of the agent's front matter."""
    folder = paths.runtime.with_name("gateway")
    folder.mkdir(parents=True)
    unix, port = folder / "http.sock", free_port()
    write(
        paths.config / "lightagentd.toml.d" / "20-gateway.toml",
        f'[daemon]\ngateway_socket = "{unix}"\n[gateway]\nlisten = ["127.0.0.1:{port}"]\n{toml}\n',
    )
    async with scripted(paths, script, front=front) as daemon:
        log = folder / "log"
        process = _started(paths, unix, log)
        http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(unix)), base_url="http://localhost", timeout=60
        )
        found = Gateway(daemon=daemon, unix=unix, port=port, process=process, log=log, http=http)
        try:
            await until(lambda: _listens(port) or process.poll() is not None)  # on the last of its sockets
            yield found
        finally:
            await found.close()
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
        assert "Traceback" not in log.read_text(), log.read_text()


def _started(paths: Paths, unix: Path, log: Path) -> Forked:
    argv = [f"--folder={paths.config}", f"--socket={paths.socket}", f"--http={unix}"]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/"}
    with log.open("ab") as file, Path(os.devnull).open() as nothing:
        streams = (nothing.fileno(), file.fileno(), file.fileno())
        return prepared().fork(GATEWAY, argv, env, REPOSITORY, streams)


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
