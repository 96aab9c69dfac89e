"""A scripted daemon whose agent may change things, with a tool that shows what ran, and how often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lightagentd.agents.sessions.session import Session
from lightagentd.agents.turn import Turn
from lightagentd.api import TurnEvent
from lightagentd.host.paths import Paths
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.question import State
from tests.agents.scripted import Scripted, scripted, until, watch
from tests.conftest import write
from tests.scripted_model import Script

FRONT = "effects: [observe, reach, change]"
TOML = '[worker]\nchange_agents = ["test"]\n'

PROBE = """
from pathlib import Path

from pydantic import Field, SecretStr

from lightagentd.tool import Args, Context, Effect, Preview, Result, Tool, ToolError, action


class AddArgs(Args):
    path: str
    line: str = "ran"
    cwd: str = "/"
    key: SecretStr | None = None
    code: str | None = Field(default=None, json_schema_extra={"writeOnly": True})


class UrlArgs(Args):
    url: str
    fail: bool = False


class Probe(Tool):
    "Adds lines to files, for tests."

    name = "probe"

    async def preview(self, ctx: Context, action: str, args: AddArgs) -> Preview | None:
        if action != "add":
            return None
        if args.line == "no preview":
            raise ToolError("the file cannot be read")
        return Preview(text=f"+{args.line}", expected={"line": args.line})

    @action(effect=Effect.CHANGE)
    async def add(self, ctx: Context, args: AddArgs) -> Result:
        "Add a line to a file."
        if ctx.expected and ctx.expected != {"line": args.line}:
            raise ToolError(f"it is not as the preview had it: {ctx.expected}")
        code = f" {args.code}" if args.code else ""
        with Path(args.path).open("a") as file:
            file.write(f"{args.line}{code}\\n")
        return Result(output=f"added as uid {ctx.owner}, expecting {ctx.expected}")

    @action(effect=Effect.OBSERVE, taints=True)
    async def read(self, ctx: Context, args: UrlArgs) -> Result:
        "Give text from outside, or fail with it."
        if args.fail:
            raise ToolError(f"cannot read {args.url}")
        return Result(output=args.url)

    @action(effect=Effect.REACH, host="url")
    async def reach(self, ctx: Context, args: UrlArgs) -> Result:
        "Go to a host."
        if args.fail:
            raise ToolError("it does not answer")
        return Result(output="reached")
"""


def prepare(paths: Paths) -> Path:
    """Install the tool; gives the file that it adds lines to."""
    write(paths.config / "tools" / "probe.py", PROBE)
    folder = paths.state.parent / "out"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "lines"


def lines(path: Path) -> list[str]:
    """What the tool has added."""
    return path.read_text().splitlines() if path.exists() else []


@contextlib.asynccontextmanager
async def asking(paths: Paths, script: Script, *, toml: str = "", front: str = "") -> AsyncIterator[Scripted]:
    """As `scripted`, with the tool, the effect change and a worker for it."""
    prepare(paths)
    async with scripted(paths, script, front=f"{FRONT}\n{front}", toml=TOML + toml) as test:
        yield test


def approvals(test: Scripted) -> list[Approval]:
    return test.daemon.registry.shared.asked.approvals.questions.all()


def waiting(test: Scripted) -> list[Approval]:
    return [one for one in approvals(test) if one.state is State.WAITING]


async def asked(test: Scripted, count: int = 1) -> Approval:
    """Wait until so many questions are stored, and the turns that asked them wait; gives the newest."""
    await until(lambda: test.daemon.registry.shared.asked.approvals.questions.waiting == count)
    await until(lambda: not test.daemon.registry.shared.asked.approvals.questions._storing)
    questions = waiting(test)
    await until(lambda: all(turn.is_waiting for turn in _asking(test, {one.id for one in questions})))
    return questions[-1]


def _asking(test: Scripted, questions: set[str]) -> list[Turn]:
    """The running turns that asked these questions. A turn goes on a moment after its question is stored."""
    running = [session.running for session in test.agent.sessions.values()]
    return [turn for turn in running if turn is not None and turn.waits_for in questions]


class Watched:
    """A turn whose events are collected while the test does other things."""

    def __init__(self, test: Scripted, session: Session) -> None:
        self._test = test
        self._session = session
        self.events: list[TurnEvent] = []

    async def __aenter__(self) -> Watched:
        turn = await self._test.agent.prompt(self._session, "go")
        self.turn = turn
        self._task = asyncio.create_task(watch(turn))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> list[TurnEvent]:
        """All events, up to the last one."""
        return await self._task


def result(events: list[TurnEvent]) -> TurnEvent:
    """The result of the turn's last call."""
    return [event for event in events if event["type"] == "tool_result"][-1]


def kinds(test: Scripted, approval_id: str = "") -> list[str]:
    """The types of the stored events of approvals, in their order."""
    found = test.stored(topic="approval")
    return [
        event.type for event in found if not approval_id or (event.data or {}).get("approval") == approval_id
    ]


def add(path: Path, **more: Any) -> dict[str, Any]:
    """The arguments of a call that adds a line."""
    return {"path": str(path), **more}
