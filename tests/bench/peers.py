"""The same work by lightagentd, by other agent libraries and by a bare httpx loop, in turns.

Three kinds of work: a prompt of 20 steps, each a streamed model call and one small tool, by an agent that
offers all functions that are shipped; the same by one that offers only that tool; and one answer of many
chunks of text, relayed to whoever reads. The libraries run in their own process and environment, in the
streaming use that their documentation shows, without traces and warm; their tool is a function in that
process. Ours has a socket between, and policy, a worker's process for the tool, and each event stored and
synced. All offer the same functions, and the bare loop sends the very requests that ours sent.

The environments are made at the first use, in .cache/bench; where that is not possible, such as without a
package index, the others are measured all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from lightagentd.client.blocking import Client
from tests.bench.model_server import CHUNK, ModelServer, model_server
from tests.bench.peer_programs.rounds import INSTRUCTIONS, PROMPT
from tests.bench.processes import cpu_s
from tests.bench.rig import daemon_with
from tests.conftest import REPOSITORY, DaemonProcess

STEPS, CHUNKS = 20, 5000
CHUNKS_TO_PEER = 10.0
STEP_TO_PEER = {"steps": 0.22, "one-tool": 0.35}
STEP_TO_BARE = {"steps": 1.5, "one-tool": 2.2}
ENVIRONMENTS = REPOSITORY / ".cache/bench"
PEERS = {
    "openai_agents": "openai-agents==0.24.0",
    "pydantic_ai_slim": "pydantic-ai-slim[openai]==2.68.0",
    "lightagent": "lightagent==0.11.0",
}
"""The program of each peer, and what its environment has."""
WORK = {
    "steps": "all functions",
    "one-tool": "one function",
    "chunks": "",
}
"""Each kind of work, which is also our agent that does it, and what that offers."""


@dataclass(frozen=True, kw_only=True)
class Took:
    """One round."""

    wall_s: float
    cpu_s: float


@dataclass(kw_only=True)
class Contender:
    """One who does the work, and what it took."""

    name: str
    rounds: dict[str, list[Took]] = field(default_factory=lambda: {word: [] for word in WORK})

    def work(self, word: str) -> Took:
        raise NotImplementedError

    def step_ms(self, word: str) -> list[float]:
        return [took.wall_s / (STEPS + 1) * 1000 for took in self.rounds[word]]

    def chunks_s(self) -> list[float]:
        return [CHUNKS / took.wall_s for took in self.rounds["chunks"]]


@dataclass(kw_only=True)
class Ours(Contender):
    """The daemon, over its socket, with an agent for each kind of work."""

    daemon: DaemonProcess
    client: Client

    def work(self, word: str) -> Took:
        used, began = cpu_s(self.daemon.pid), time.perf_counter()
        last: dict[str, Any] = {}
        chars = 0
        for reply in self.client.stream("Sessions.Prompt", agent=word, text=PROMPT, new=True):
            last = reply["event"]
            if last["type"] == "text_delta":
                chars += len(last["text"])
        wall_s = time.perf_counter() - began
        assert last["type"] == "done", last
        assert last["steps"] == (1 if word == "chunks" else STEPS + 1), last
        _check_chars(word, chars)
        return Took(wall_s=wall_s, cpu_s=cpu_s(self.daemon.pid) - used)


@dataclass(kw_only=True)
class Peer(Contender):
    """A library in a process of its own."""

    process: subprocess.Popen[str]

    def work(self, word: str) -> Took:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        took = json.loads(self.process.stdout.readline())
        assert took["calls"] == (0 if word == "chunks" else STEPS), took
        _check_chars(word, took["chars"])
        return Took(wall_s=took["wall_s"], cpu_s=took["cpu_s"])


@dataclass(kw_only=True)
class Bare(Contender):
    """The same HTTP calls as ours, with the same bodies, and nothing else."""

    bodies: Mapping[str, list[dict[str, Any]]]
    urls: Mapping[str, str]
    runner: asyncio.Runner
    http: httpx.AsyncClient

    def work(self, word: str) -> Took:
        used, began = time.process_time(), time.perf_counter()
        chars = self.runner.run(self._calls(word))
        took = Took(wall_s=time.perf_counter() - began, cpu_s=time.process_time() - used)
        _check_chars(word, chars)
        return took

    async def _calls(self, word: str) -> int:
        chars = 0
        url = f"{self.urls[word]}/chat/completions"
        for body in self.bodies[word]:
            async with self.http.stream("POST", url, json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        for choice in json.loads(line[6:])["choices"]:
                            chars += len(choice["delta"].get("content") or "")
        return chars


def run(rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(model_server())
        urls = urls_of(server)
        offers_all = daemon_with(urls, INSTRUCTIONS, all_tools=("steps",))
        daemon = stack.enter_context(offers_all)
        ours = Ours(name="lightagentd", daemon=daemon, client=stack.enter_context(daemon.client()))
        bodies = {word: bodies_of(ours, server, word) for word in WORK}
        bare = stack.enter_context(bare_loop(bodies, urls))
        peers = [
            stack.enter_context(started)
            for program, wanted in PEERS.items()
            if (started := _peer(program, wanted, urls, bodies)) is not None
        ]
        contenders = [ours, *peers, bare]
        for number in range(rounds + 2):
            for one in contenders:
                for word in WORK:
                    took = one.work(word)
                    if number >= 2:  # two rounds warm everybody up
                        one.rounds[word].append(took)
        for word in ("steps", "one-tool"):
            _report_steps(word, len(bodies[word][0]["tools"]), ours, peers, bare)
        _report_chunks(ours, peers, bare)


def urls_of(server: ModelServer) -> dict[str, str]:
    """The base URL of each kind of work."""
    return {"steps": server.steps(STEPS), "one-tool": server.steps(STEPS), "chunks": server.chunks(CHUNKS)}


def _report_steps(word: str, functions: int, ours: Ours, peers: list[Peer], bare: Bare) -> None:
    about = f"peers, step, {functions} function{'s' if functions > 1 else ''} offered"
    for one in (ours, *peers, bare):
        found = one.step_ms(word)
        cpu_ms = statistics.median(took.cpu_s for took in one.rounds[word]) / (STEPS + 1) * 1000
        print(
            f"{about}, {one.name}: {statistics.median(found):.2f} ms (median of {len(found)};"
            f" {min(found):.2f} to {max(found):.2f}; CPU {cpu_ms:.2f} ms)"
        )
    if peers:
        fastest = min(peers, key=lambda peer: statistics.median(peer.step_ms(word)))
        print(
            f"{about}, to {fastest.name}'s: {_ratio(ours.step_ms(word), fastest.step_ms(word)):.2f}"
            f" (target: at most {STEP_TO_PEER[word]})"
        )
    print(
        f"{about}, to that of the bare loop: {_ratio(ours.step_ms(word), bare.step_ms(word)):.2f}"
        f" (target: at most {STEP_TO_BARE[word]})"
    )


def _report_chunks(ours: Ours, peers: list[Peer], bare: Bare) -> None:
    for one in (ours, *peers, bare):
        found = one.chunks_s()
        cpu_us = statistics.median(took.cpu_s for took in one.rounds["chunks"]) / CHUNKS * 1e6
        print(
            f"peers, relayed, {one.name}: {statistics.median(found):,.0f} chunks/s (median of {len(found)};"
            f" {min(found):,.0f} to {max(found):,.0f}; CPU {cpu_us:.0f} us each)"
        )
    if peers:
        fastest = max(peers, key=lambda peer: statistics.median(peer.chunks_s()))
        ratio = _ratio(ours.chunks_s(), fastest.chunks_s())
        print(f"peers, relayed, to {fastest.name}'s: {ratio:.1f} (target: at least {CHUNKS_TO_PEER})")


def _ratio(ours: list[float], others: list[float]) -> float:
    """The median over the rounds, each of which met the machine in about the same state."""
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))


def _check_chars(word: str, chars: int) -> None:
    assert chars == len(CHUNK) * (CHUNKS if word == "chunks" else 1), chars


def bodies_of(ours: Ours, server: ModelServer, word: str) -> list[dict[str, Any]]:
    """The requests that a turn makes."""
    ours.work(word)
    bodies = server.bodies()
    assert len(bodies) == (1 if word == "chunks" else STEPS + 1)
    return bodies


@contextlib.contextmanager
def bare_loop(bodies: Mapping[str, list[dict[str, Any]]], urls: Mapping[str, str]) -> Iterator[Bare]:
    with asyncio.Runner() as runner:
        http = httpx.AsyncClient()
        yield Bare(name="bare httpx loop", bodies=bodies, urls=urls, runner=runner, http=http)
        runner.run(http.aclose())


def _peer(
    program: str, wanted: str, urls: Mapping[str, str], bodies: Mapping[str, list[dict[str, Any]]]
) -> contextlib.AbstractContextManager[Peer] | None:
    """The program in its environment, which is made if need be; None, and a line, when it cannot be."""
    home = ENVIRONMENTS / program
    try:
        _make_environment(home, wanted)
    except (OSError, subprocess.SubprocessError) as err:
        print(f"peers, {wanted}: left out, since its environment cannot be made: {_last_line(err)}")
        return None
    work = {
        word: {"base_url": url, "functions": [tool["function"] for tool in bodies[word][0]["tools"]]}
        for word, url in urls.items()
    }
    return _running(home / "bin/python", program, json.dumps(work))


def _make_environment(home: Path, wanted: str) -> None:
    """Make the environment, unless it is there and has what is wanted. Raises OSError, SubprocessError."""
    done = home / "made-for"
    if done.exists() and done.read_text() == wanted:
        return
    print(f"peers: making the environment of {wanted}", flush=True)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted],
    ):
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    done.write_text(wanted)


def _last_line(err: Exception) -> str:
    said = str(getattr(err, "stderr", None) or err).strip()
    return said.splitlines()[-1] if said else type(err).__name__


@contextlib.contextmanager
def _running(python: Path, program: str, work: str) -> Iterator[Peer]:
    """In an empty folder, since some look for files there."""
    with (
        tempfile.TemporaryDirectory(prefix="la-bench-") as folder,
        (Path(folder) / "errors").open("w+") as log,
    ):
        process = subprocess.Popen(
            [str(python), "-m", f"tests.bench.peer_programs.{program}", work],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": folder, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            log.seek(0)
            assert said, f"{program} did not start:\n{log.read()[-2000:]}"
            known = json.loads(said)
            yield Peer(name=f"{known['name']} {known['version']}", process=process)
        finally:
            process.kill()
            process.communicate(timeout=10)
