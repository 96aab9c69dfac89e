"""The models of the soak, in a process of their own: `python -m tests.soak.answers SEED RATE`.

A prompt says what is wanted, `turn-17 look`; the daemon may ask in any dialect. A part of the calls, RATE,
gets a fault instead; which ones and which faults comes from the seed, the turn, the step and the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tests.model_server import faults
from tests.model_server.said import Called, Said, call, say
from tests.model_server.server import Asked, ModelServer
from tests.model_server.wire import Answer

VERBS = {
    "say": 40,
    "write": 10,
    "think": 5,
    "look": 20,
    "both": 10,
    "odd": 4,
    "unknown": 3,
    "loop": 2,
    "slow": 6,
}
"""What a prompt can ask for, and how often it does."""
STEPS = 2
"""Calls of a turn that looks at something."""
SILENCE_S = 0.5
"""The daemon's providers wait no longer for a byte."""
_PROMPT = re.compile(r"turn-([0-9]+) ([a-z]+)")
_BYTES_PER_TOKEN = 4
_FAULTS: dict[str, Callable[[], Answer]] = {
    **faults.FAULTS,
    "silence": faults.silence,
    "silence_behind_text": lambda: faults.silence(after=400),
    "slow_first_byte": lambda: faults.slow_first_byte(wait_s=0.1),
    "endless": lambda: faults.endless(pause_s=0.05),
    "big_event": lambda: faults.big_chunk(1 << 20),
    "big_chunk": lambda: faults.big_chunk(1 << 20, events=2000),
    "packed_and_cut": lambda: faults.cut(faults.gzip(say("x" * 1000)), after=30, ending="reset"),
    "slow_and_reset": lambda: faults.cut(after=300, ending="reset").over(pause_s=0.02),
    "error_behind_a_call": lambda: faults.error_in_stream(call("file_stat", {"path": "/"}), kind="api_error"),
}
_STAT = {"path": "/etc/hostname"}
Heard = tuple[Literal["user", "tool"], str]


def script(seed: str, rate: float) -> Callable[[Asked], Answer | Said]:
    """The script of a `ModelServer`."""
    attempts: Counter[tuple[str, int]] = Counter()

    def answer(asked: Asked) -> Answer | Said:
        turn, verb, done = newest_prompt(asked)
        attempts[turn, done] += 1
        rng = random.Random(f"{seed}/{turn}/{done}/{attempts[turn, done]}")
        if rng.random() < rate:
            return _FAULTS[rng.choice(list(_FAULTS))]()
        return _said(asked, turn, verb, done)

    return answer


def newest_prompt(asked: Asked) -> tuple[str, str, int]:
    """The number of the turn, what it wants, and how many results there are of its calls."""
    done = 0
    for kind, text in _backwards(asked):
        if kind == "tool":
            done += 1
        elif found := _PROMPT.findall(text):
            return (*found[-1], done)
        else:
            break
    return "0", "say", done


def _backwards(asked: Asked) -> Iterator[Heard]:
    """The prompts and results of a conversation in any dialect, the newest first."""
    for item in reversed(asked.body.get("messages") or asked.body.get("input") or ()):
        if item.get("role") == "tool" or item.get("type") == "function_call_output":
            yield "tool", ""
        elif item.get("role") == "user":
            yield from _blocks(item["content"])


def _blocks(content: str | list[dict[str, Any]]) -> Iterator[Heard]:
    if isinstance(content, str):
        yield "user", content
        return
    for block in reversed(content):
        if block["type"] == "tool_result":
            yield "tool", ""
        else:
            yield "user", str(block.get("text", ""))


def _said(asked: Asked, turn: str, verb: str, done: int) -> Answer | Said:
    used: dict[str, Any] = {
        "prompt_tokens": int(asked.headers["content-length"]) // _BYTES_PER_TOKEN,
        "completion_tokens": 20,
    }
    call_id = f"call_{turn}_{done}"
    if not asked.body.get("tools"):
        return say("They looked at files.", **used)  # the conversation is to be shortened
    match verb:
        case "write":
            return say(*[f"word {number} " for number in range(60)], **used)
        case "think":
            return say("Four.", thinking=("Two and ", "two."), **used)
        case "look" if done < STEPS:
            return call("file_stat", _STAT, call_id=call_id, text=("Let me see.",), **used)
        case "both" if not done:
            each = [
                Called(name="file_stat", arguments='{"path": "/"}', id=f"{call_id}_{n}") for n in range(3)
            ]
            return Said(calls=each, **used)
        case "odd" if not done:
            return call("file_stat", '{"path": ', call_id=call_id, **used)
        case "unknown" if not done:
            return call("file_stats", _STAT, call_id=call_id, **used)
        case "loop":
            return call("file_read", {"path": "/no/such/file"}, call_id=call_id, **used)
        case "slow":
            return Answer(said=say(*["word "] * 20, **used)).over(pause_s=0.005)
    return say("done ", "with ", f"turn-{turn}.", **used)


async def _main(seed: str, rate: float) -> None:
    async with ModelServer(script(seed, rate), keep_asked=False) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(sys.argv[1], float(sys.argv[2])))
