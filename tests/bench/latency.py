"""How much later the first token of an answer comes through the daemon, while 128 agents are answered.

Each busy agent relays an answer of which a chunk comes each `PACE_S`, as from a model that writes so many
tokens a second. Beside it, in turns, a bare httpx client asks the same server for the same first token.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from lightagentd.client.blocking import Client
from tests.bench.model_server import PACE_S, model_server
from tests.bench.processes import cpu_s
from tests.bench.rig import daemon_with, show
from tests.conftest import REPOSITORY, DaemonProcess

BUSY, ANSWERS_A_ROUND = 128, 5
CHUNKS = 200
TARGET_MS = 20.0
NAMES = [f"busy-{number}" for number in range(BUSY)]


def run(rounds: int) -> None:
    added: list[float] = []
    with model_server() as server:
        urls = {**{name: server.paced(CHUNKS) for name in NAMES}, "asked": server.chunks(1)}
        with (
            daemon_with(urls) as daemon,
            daemon.client() as client,
            httpx.Client() as http,
            _busy(daemon),
        ):
            used, began = cpu_s(daemon.pid), time.perf_counter()
            for _ in range(rounds * ANSWERS_A_ROUND):
                ours = _first_ms(client)
                added.append(ours - _bare_ms(http, urls["asked"]))
                time.sleep(PACE_S)
            busy = (cpu_s(daemon.pid) - used) / (time.perf_counter() - began)
    show(f"first token's added latency, {BUSY} busy agents (target: at most {TARGET_MS:g})", added, "ms")
    print(f"of one core the daemon took {busy:.0%} meanwhile; 9 in 10 were below {_ninth(added):.3g} ms")


def _ninth(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]


def _first_ms(client: Client) -> float:
    began, first = time.perf_counter(), 0.0
    for reply in client.stream("Sessions.Prompt", agent="asked", text="go", new=True):
        if reply["event"]["type"] == "text_delta" and not first:
            first = time.perf_counter()
    assert first, "no text came"
    return (first - began) * 1000


def _bare_ms(http: httpx.Client, url: str) -> float:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "go"}], "stream": True}
    began, first = time.perf_counter(), 0.0
    with http.stream("POST", f"{url}/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if '"content":"a' in line and not first:
                first = time.perf_counter()
    return (first - began) * 1000


@contextlib.contextmanager
def _busy(daemon: DaemonProcess) -> Iterator[None]:
    """All busy agents are answered, to clients in a process of their own."""
    argv = [sys.executable, "-m", "tests.bench.latency", str(daemon.paths.socket)]
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "all are answered\n"
        yield
        assert process.poll() is None, "no agent was busy any more"
    finally:
        process.kill()
        process.communicate(timeout=10)


def _prompt_all(socket: Path) -> None:
    """Each agent is prompted again and again."""
    begun: set[str] = set()

    def work(name: str) -> None:
        with Client(socket) as client:
            while True:
                for reply in client.stream("Sessions.Prompt", agent=name, text="go", new=True):
                    if reply["event"]["type"] == "text_delta":
                        begun.add(name)

    for name in NAMES:
        threading.Thread(target=work, args=(name,)).start()
    while len(begun) < len(NAMES):
        time.sleep(PACE_S)
    print("all are answered", flush=True)


if __name__ == "__main__":
    _prompt_all(Path(sys.argv[1]))
