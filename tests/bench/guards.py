"""How much streamed text a second goes through the shipped guards on its way to a watcher.

The text is the README, log lines, and some of what the guards take out; it comes in deltas of 20 characters.
"""

from __future__ import annotations

import asyncio
import time

from lightagentd.agents.guard_stages import AnswerGuard
from lightagentd.agents.stream import SessionStream, TurnStream
from lightagentd.policy.rulefiles import load_texts, template_names
from lightagentd.redaction import Redactor
from tests.bench.rig import show
from tests.conftest import REPOSITORY

TARGET_MB_S = 5
_SIZE = 2_000_000
_DELTA = 20
_LOG = "2026-11-28T04:45:41.123456 web-{0} nginx[4711]: 10.0.0.{0} GET /img/{0}.png 200 18{0}3 {0}ms\n"
_FOUND = "Ask jane.doe{0}@example.org, or call +49 30 1234{0}; paid by 4111 1111 1111 1111.\n"


def text() -> str:
    """The text that is streamed."""
    prose = (REPOSITORY / "README.md").read_text().splitlines(keepends=True)
    lines = [f"{line}{_LOG.format(n % 250)}" for n, line in enumerate(prose)]
    lines[::20] = [_FOUND.format(n) for n in range(len(lines[::20]))]
    whole = "".join(lines)
    return (whole * (_SIZE // len(whole) + 1))[:_SIZE]


async def _streamed(said: str, guard: AnswerGuard | None) -> float:
    """How many MB/s of characters reach a watcher."""
    stream = TurnStream("trace_bench", SessionStream("ses_bench", Redactor()))
    watcher, stream.guard = stream.watch(), guard
    deltas = [said[place : place + _DELTA] for place in range(0, len(said), _DELTA)]
    began = time.perf_counter()
    for number, delta in enumerate(deltas):
        stream.text(delta)
        if number % 500 == 0:
            await asyncio.sleep(0)
    stream.end_text()
    stream.flush()
    took_s = time.perf_counter() - began
    watcher.end()
    return len(said) / took_s / 1e6


def run(rounds: int) -> None:
    guards = load_texts({"all.toml": f"use = {template_names()}"}).guards
    said = text()
    without, through = [], []
    for _ in range(rounds):
        without.append(asyncio.run(_streamed(said, None)))
        through.append(asyncio.run(_streamed(said, AnswerGuard(guards, Redactor()))))
    show("guards, streamed text without any", without, "MB/s")
    show(f"guards, streamed text through the shipped ones (target: at least {TARGET_MB_S})", through, "MB/s")
