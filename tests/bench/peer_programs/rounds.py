"""What all programs share: rounds that are asked for by a word on stdin, measured, and told on stdout.

A program is started with a JSON object for each word: the base URL of the model, and the functions that the
agent offers it, of which only `file_stat` is called. It imports nothing that the environment of a peer does
not have.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSTRUCTIONS = "Be brief. " * 100
PROMPT = "go"
API_KEY = "not-needed"
MODEL = "scripted"
MOST_STEPS = 1000

Round = Callable[[], Coroutine[Any, Any, int]]
"""One prompt; gives how many characters of text were relayed."""


@dataclass
class Tally:
    """How often the tool was called."""

    calls: int = 0


TALLY = Tally()


def stat(path: str) -> str:
    """The tool: what is known of a file."""
    TALLY.calls += 1
    found = Path(path).stat()
    return json.dumps(
        {"path": path, "size_bytes": found.st_size, "mode": oct(found.st_mode), "uid": found.st_uid}
    )


def never(name: str) -> str:
    """What the other functions do; nobody calls them."""
    raise AssertionError(f"{name} was called")


def serve(name: str, version: str, prompting: Callable[[str, list[dict[str, Any]]], Round]) -> None:
    """Say who it is, then do a round for each line on stdin."""
    told = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints
    rounds = {
        word: prompting(wanted["base_url"], wanted["functions"])
        for word, wanted in json.loads(sys.argv[1]).items()
    }
    print(json.dumps({"name": name, "version": version}), file=told, flush=True)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            one = rounds[line.strip()]
            TALLY.calls = 0
            cpu_s, began_s = time.process_time(), time.perf_counter()
            chars = runner.run(one())
            took = {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s}
            print(json.dumps({**took, "calls": TALLY.calls, "chars": chars}), file=told, flush=True)
