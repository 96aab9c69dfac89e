"""The model of the kill loop: a server process that does what the newest prompt says, `p17 VERB`.

A program for tests/prepared.py with the argument FOLDER: it serves and prints its address. Calls that change
something leave a line in a file of FOLDER that has the prompt's name, so that a call that ran twice shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from tests.scripted_model import Answer, ScriptedModel, call, calls, say

VERBS = ("say", "look", "both", "slow", "append", "write", "ask", "remember", "plan")
"""What a prompt can ask for."""


def answer_in(folder: Path) -> Any:
    """The script of a `ScriptedModel`."""

    def answer(body: dict[str, Any]) -> Answer:
        results = 0
        name, verb = "p0", "say"
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                name, _, verb = str(message["content"]).partition(" ")
                break
            results += message["role"] == "tool"
        wanted = _calls(folder, name, verb)
        if results < len(wanted):
            function, arguments = wanted[results]
            return call(function, arguments, call_id=f"call_{name}_{results}")
        if verb == "both" and not results:
            look = {"path": "/etc/hostname"}
            return calls(*(("file_stat", look, f"call_{name}_{number}") for number in range(3)))
        return say("done ", "with ", name, pause_s=0.03 if verb == "slow" else 0.0)

    return answer


def _calls(folder: Path, name: str, verb: str) -> list[tuple[str, dict[str, Any]]]:
    stat = ("file_stat", {"path": "/etc/hostname"})
    if verb == "look":
        return [stat, stat]
    if verb == "append":
        command = f"echo ran >> {folder / name}"
        return [("bash_exec", {"command": command, "effect": "change"})]
    if verb == "write":
        return [stat, ("file_write", {"path": str(folder / f"written-{name}"), "content": name})]
    if verb == "ask":
        return [("human_ask", {"question": f"What about {name}?"})]
    if verb == "remember":
        return [("memory_remember", {"text": f"The thing {name} is to be remembered."})]
    if verb == "plan":
        tasks = [{"text": f"task-{name}-{number} look"} for number in range(2)]
        return [("plan_propose", {"title": name, "tasks": tasks})]
    return []


async def _main(folder: Path) -> None:
    async with ScriptedModel(answer_in(folder)) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(Path(sys.argv[1])))
