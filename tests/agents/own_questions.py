"""An own tool that asks people, for tests; it writes what it did into a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML
from tests.agents.questions import question
from tests.agents.scripted import Scripted, scripted
from tests.conftest import write
from tests.scripted_model import Script

ASKER = """
import asyncio
from pathlib import Path
from typing import Any, NoReturn

from lightagentd.tool import Args, Context, Effect, NeedsInput, Preview, Result, Tool, action

ODD: dict[str, tuple[Any, Any, Any]] = {
    "large state": ("Go on?", (), "x" * (10 << 20)),
    "NaN": ("Go on?", (), float("nan")),
    "bytes": ("Go on?", (), b"x"),
    "half a pair": ("Go on?", (), {"name": chr(0xD800)}),
    "deep": ("Go on?", (), [[]]),
    "circle": ("Go on?", (), []),
    "no text": (7, (), None),
    "empty": (" ", (), None),
    "many choices": ("Go on?", [str(number) for number in range(10_000)], None),
    "one choice": ("Go on?", ["yes"], None),
    "a choice that is none": ("Go on?", [{"a": 1}, "b"], None),
}
for _ in range(60):
    ODD["deep"][2][:] = [[*ODD["deep"][2]]]
ODD["circle"][2].append(ODD["circle"][2])


class OutArgs(Args):
    out: str
    line: str = "ran"
    questions: int = 1
    note: str = ""


class OddArgs(Args):
    kind: str


class Asker(Tool):
    "Asks people."

    name = "asker"

    async def preview(self, ctx: Context, action: str, args: OutArgs) -> Preview | None:
        return Preview(text=f"+{args.line}", expected={"line": args.line}) if action == "change" else None

    def ask(self, args: OutArgs) -> NoReturn:
        with Path(args.out).open("a") as file:
            file.write(f"{args.line} begins\\n")
        state = {"left": args.questions - 1, "out": args.out, "line": args.line, "note": args.note}
        raise NeedsInput("Which disk?", ["sda", "sdb"], state)

    @action(effect=Effect.CHANGE, resume="went_on")
    async def change(self, ctx: Context, args: OutArgs) -> Result:
        "Add lines to a file, for a person."
        self.ask(args)

    @action(effect=Effect.OBSERVE, resume="looked_on")
    async def look(self, ctx: Context, args: OutArgs) -> Result:
        "Ask, and say what was answered."
        raise NeedsInput("Which disk?", ["sda", "sdb"], {"left": args.questions - 1, "note": args.note})

    async def went_on(self, ctx: Context, state: Any, answer: str) -> Result:
        with Path(state["out"]).open("a") as file:
            file.write(f"{state['line']} {answer} {ctx.effect} {ctx.expected}\\n")
        if answer == "sdb":
            await asyncio.sleep(600)
        if state["left"]:
            raise NeedsInput("And then?", (), {**state, "left": state["left"] - 1})
        return Result(output=f"went on with {answer}", metadata={"call": ctx.call_id})

    async def looked_on(self, ctx: Context, state: Any, answer: str) -> Result:
        if state["left"]:
            raise NeedsInput("And then?", (), {**state, "left": state["left"] - 1, "before": answer})
        before, secret = state.get("before", ""), "sk-" in state["note"]
        return Result(output=f"{ctx.effect} {before} {answer}, a secret: {secret}")

    @action(resume="looked_on")
    async def odd(self, ctx: Context, args: OddArgs) -> Result:
        "Ask what cannot be asked."
        raise NeedsInput(*ODD[args.kind])

    @action()
    async def deaf(self, ctx: Context, args: Args) -> Result:
        "Ask, and declare nothing that goes on."
        raise NeedsInput("Go on?")
"""


def install(paths: Paths) -> Path:
    """Install the tool; gives the file that it adds lines to."""
    write(paths.config / "tools" / "asker.py", ASKER)
    folder = paths.state.parent / "out"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "lines"


def lines(out: Path) -> list[str]:
    """What the tool did."""
    return out.read_text().splitlines() if out.exists() else []


@contextlib.asynccontextmanager
async def asker(
    paths: Paths, script: Script, *, front: str = FRONT, toml: str = ""
) -> AsyncIterator[Scripted]:
    """As `scripted`, with the tool, the effect change and a worker for it."""
    install(paths)
    async with scripted(paths, script, front=front, toml=TOML + toml) as test:
        yield test


async def answer(test: Scripted, text: str, *, after: str = "") -> str:
    """Wait for the question that comes after another one, and answer it; gives its id."""
    asked = await question(test, after=after)
    await test.daemon.registry.shared.asked.inputs.answer(asked.id, text, uid=os.getuid())
    return asked.id


def saved(test: Scripted) -> list[dict[str, Any]]:
    """What is stored beside the questions for the actions that go on, the oldest first."""
    stored = test.daemon.history.queries.state("inputs").values()
    return [one["saved"] for one in sorted(stored, key=lambda one: one["created_us"])]


def ends(test: Scripted) -> list[str]:
    """How the calls of the tool ended, as it is stored."""
    return [str((event.data or {})["result"]) for event in test.stored(topic="tool.asker")]
