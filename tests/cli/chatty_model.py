"""A model for the tests of chats, as a process of its own: what it says depends on the newest prompt.

`python -m tests.cli.chatty_model FOLDER` prints its base URL. The command that it runs ends when the test has
made the file FOLDER/open.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from tests.scripted_model import DONE, Answer, ScriptedModel, Stream, call, chunk, say

EVIL = (
    "evil \x1b]0;title\x07\x1b[2J\x1b[1;1H text \x1b]8;;http://evil.example\x07click\x1b]8;;\x07 "
    "[link](http://x.example/%1b]0;t) <http://y.example/%1b%5b2J> &#x202e;drow &#27;[2J `\x9b2J`\n"
)
MARKDOWN = (
    "# Report\n\nAll is **well**.\n\n",
    "| disk | used |\n|---|---|\n| sda1 | 93% |\n| sdb1 | 7% |\n\n",
    "- one\n- two\n\nThe end.",
)
WAITING = "for i in 1 2 3; do echo line $i; done; until test -e {folder}/open; do sleep 0.05; done"


def script(folder: Path) -> Any:
    """What it says, as a script of `ScriptedModel`."""

    def answer(body: dict[str, Any]) -> Answer:
        prompt = next(message for message in reversed(body["messages"]) if message["role"] == "user")[
            "content"
        ]
        last = body["messages"][-1]
        if last["role"] == "tool" and "hang" not in prompt:
            return say(f"The tool said: {last['content'].strip()[-200:]}")
        if "run" in prompt and last["role"] != "tool":
            return call("bash_exec", {"command": WAITING.format(folder=folder), "effect": "observe"})
        if "print evil" in prompt:
            return call(
                "bash_exec", {"command": r"printf 'out\033]0;x\007\033[2Jput\n'", "effect": "observe"}
            )
        if "write" in prompt:
            return call("file_write", {"path": f"{folder}/motd", "content": "welcome\n"})
        if "colour" in prompt:
            return call("human_ask", {"question": "Which colour?", "choices": ["red", "green"]})
        if "hang" in prompt:
            return Stream(pieces=[chunk({"content": "A whole block.\n\nHalf a "})], hang=True)
        if "evil" in prompt:
            return say(EVIL)
        if "code" in prompt:
            return say("Run \x1b]0;t\x07this:\n\n```sh\nls -l\x1b[201~\n```\n\nor\n\n```sh\ndf\n```\n")
        if "cut at" in prompt:
            return Stream(pieces=[chunk({"content": "So far"}), chunk({}, prompt.split()[2]), DONE])
        if "think" in prompt:
            thoughts = [chunk({"reasoning_content": f"Thought {number}\x1b[2J.\n"}) for number in range(9)]
            return Stream(pieces=[*thoughts, chunk({"content": "So it is."}, "stop"), DONE], pause_s=0.1)
        if "report" in prompt:
            return say(*MARKDOWN)
        return say(f"You said: {prompt}")

    return answer


async def _main(folder: Path) -> None:
    async with ScriptedModel(script(folder)) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(Path(sys.argv[1])))
