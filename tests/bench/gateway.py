"""The gateway: how much later the first byte of an answer comes through it, how many chunks it relays to
`STREAMS` clients at once, and how large it is while nobody asks.

The model server, the daemon, the gateway and its clients are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from lightagentd.client.blocking import Client
from tests.bench.model_server import CHUNK, model_server
from tests.bench.processes import cpu_s
from tests.bench.rig import daemon_with, show
from tests.conftest import REPOSITORY, DaemonProcess, write

STREAMS, CHUNKS = 200, 1000
TARGET_MS, TARGET_CHUNKS, TARGET_MIB = 5.0, 10_000, 60
_ROUNDS = 5
_SECTION = """
[daemon]
gateway_socket = "{unix}"
[limits.owner]
connections = 1000
changes_per_minute = 100000
[gateway]
streams = 1000
max_streams = 1000
requests_per_minute = 100000
bytes_per_minute = 10000000000
"""


def run(rounds: int) -> None:
    added: list[float] = []
    with model_server() as server:
        urls = {"one": server.chunks(1), "many": server.chunks(CHUNKS)}
        with (
            daemon_with(urls) as daemon,
            gateway(daemon) as (unix, process),
            Client(daemon.paths.socket) as client,
        ):
            show(f"gateway, idle (target: at most {TARGET_MIB})", [_rss_mib(process.pid)], "MiB")
            transport = httpx.HTTPTransport(uds=str(unix))
            with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as http:
                for _ in range(rounds * _ROUNDS):
                    direct = _direct_ms(client)
                    added.append(_through_ms(http) - direct)
            show(f"first byte's added latency (target: at most {TARGET_MS:g})", added, "ms")
            used = cpu_s(process.pid), cpu_s(daemon.pid)
            rates = [_relayed(unix) for _ in range(max(2, rounds // 2))]
            show(f"chunks relayed to {STREAMS} clients (target: {TARGET_CHUNKS:,})", rates, "/s")
            took = cpu_s(process.pid) - used[0], cpu_s(daemon.pid) - used[1]
            ours, theirs = (each / len(rates) for each in took)
            print(f"each time took {ours:.2g} s of the gateway's CPU and {theirs:.2g} s of the daemon's")
            show("gateway, after that", [_rss_mib(process.pid)], "MiB")


@contextlib.contextmanager
def gateway(daemon: DaemonProcess) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A gateway before a daemon, which is started again to know of it."""
    with tempfile.TemporaryDirectory(prefix="la-gw-") as folder:
        unix = Path(folder) / "http.sock"
        write(daemon.paths.config / "lightagentd.toml.d/30-gateway.toml", _SECTION.format(unix=unix))
        daemon.stop()
        daemon.start()
        argv = [f"--folder={daemon.paths.config}", f"--socket={daemon.paths.socket}", f"--http={unix}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "lightagentd.gateway.service", *argv], cwd=REPOSITORY
        )
        try:
            while not unix.exists():
                time.sleep(0.02)
            time.sleep(0.5)
            yield unix, process
        finally:
            process.terminate()
            process.wait(20)


def _rss_mib(pid: int) -> float:
    return next(
        int(line.split()[1]) / 1024
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )


def _body(agent: str) -> bytes:
    return json.dumps(
        {"model": agent, "stream": True, "messages": [{"role": "user", "content": "go"}]}
    ).encode()


def _direct_ms(client: Client) -> float:
    began, first = time.perf_counter(), 0.0
    for reply in client.stream("Sessions.Prompt", agent="one", text="go", new=True):
        if reply["event"]["type"] == "text_delta" and not first:
            first = time.perf_counter()
    return (first - began) * 1000


def _through_ms(http: httpx.Client) -> float:
    began, first = time.perf_counter(), 0.0
    headers = {"content-type": "application/json"}
    with http.stream("POST", "/v1/chat/completions", content=_body("one"), headers=headers) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_raw():
            if CHUNK[:10].encode() in piece and not first:
                first = time.perf_counter()
    assert first, "no text came"
    return (first - began) * 1000


def _relayed(unix: Path) -> float:
    """Chunks a second, of clients in a process of their own."""
    argv = [sys.executable, "-m", "tests.bench.gateway", str(unix)]
    said = subprocess.run(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, text=True).stdout
    return float(said)


async def _read_all(unix: str) -> None:
    began = time.perf_counter()
    counts = await asyncio.gather(*(_read(unix) for _ in range(STREAMS)))
    took_s = time.perf_counter() - began
    assert counts == [CHUNKS] * STREAMS, sorted(counts)[:5]
    print(sum(counts) / took_s)


async def _read(unix: str) -> int:
    """How many of the model's chunks one client gets."""
    reader, writer = await asyncio.open_unix_connection(unix, limit=1 << 20)
    body = _body("many")
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    assert b"[DONE]" in answer, answer[-500:]
    assert b'"error"' not in answer, answer[-500:]
    said = [line[6:] for line in answer.decode().splitlines() if line.startswith('data: {"id"')]
    text = "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in said)
    return text.count(CHUNK)


if __name__ == "__main__":
    asyncio.run(_read_all(sys.argv[1]))
