"""How much streamed text a second goes through the shipped guards on its way to a watcher.

The text is the README, log lines, and some of what the guards take out. It comes as a turn's stream gives it:
the deltas of 20 ms at once. The redactor, which looks at all text with or without guards, is not measured.
"""

from __future__ import annotations

import time

from lightagentd.agents.guard_stages import AnswerGuard
from lightagentd.policy.rulefiles import load_texts, template_names
from lightagentd.redaction import Redactor
from tests.bench.rig import show
from tests.conftest import REPOSITORY

TARGET_MB_S = 5
_SIZE = 2_000_000
_PIECE = 100_000
"""What 20 ms bring at the target."""
_LOG = "2026-11-28T04:45:41.123456 web-{0} nginx[4711]: 10.0.0.{0} GET /img/{0}.png 200 18{0}3 {0}ms\n"
_FOUND = "Ask jane.doe{0}@example.org, or call +49 30 1234{0}; paid by 4111 1111 1111 1111.\n"


def text() -> str:
    """The text that is streamed."""
    prose = (REPOSITORY / "README.md").read_text().splitlines(keepends=True)
    lines = [f"{line}{_LOG.format(n % 250)}" for n, line in enumerate(prose)]
    lines[::20] = [_FOUND.format(n) for n in range(len(lines[::20]))]
    whole = "".join(lines)
    return (whole * (_SIZE // len(whole) + 1))[:_SIZE]


def _streamed(said: str) -> float:
    """How many MB of characters a second of processor time go through the guards."""
    guard = AnswerGuard(load_texts({"all.toml": f"use = {template_names()}"}).guards, Redactor())
    began_s = time.process_time()
    for place in range(0, len(said), _PIECE):
        guard.feed(said[place : place + _PIECE], thought=False)
    guard.finish(thought=False)
    return len(said) / (time.process_time() - began_s) / 1e6


def run(rounds: int) -> None:
    said = text()
    values = [_streamed(said) for _ in range(rounds)]
    show(f"guards, streamed text through the shipped ones (target: at least {TARGET_MB_S})", values, "MB/s")
