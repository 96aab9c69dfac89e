"""`--hosts`: asks the daemons of several machines at once; one table, and each answer under its host.

At most `AT_ONCE` hosts are asked at a time, and each has its own limit of time, so that a dead one holds
nobody up. ssh never asks for a password here. A turn that waits for a person counts as not done: it goes on
there once somebody has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightagentd import errors
from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.help import HOSTS_FAILED
from lightagentd.cli.options import NOT_UNDERSTOOD, Settings, not_understood
from lightagentd.cli.output import as_json, cell, say, say_markdown, table
from lightagentd.cli.question import REQUESTS, how_to_answer, question_id
from lightagentd.cli.terminal import BOLD, clean, style
from lightagentd.client.aio import AsyncClient
from lightagentd.client.remote import Remote
from lightagentd.errors import LightagentError, TimedOut

AT_ONCE = 16
PROMPT_S, STATUS_S = 300.0, 30.0
"""How long one host may take, with connecting."""
_CANCEL_S = 5.0
_SENTENCE_CHARS = 200


@dataclass(kw_only=True)
class Outcome:
    """What came of one host. `ended` is `done`, `waits`, or the code of an error; `found` is for --json."""

    host: str
    ended: str = "done"
    seconds: float = 0.0
    answer: str = ""
    """What the agent said."""
    text: str = ""
    """What a person is shown."""
    sentence: str = ""
    found: dict[str, Any] = field(default_factory=dict)

    def saw(self, event: dict[str, Any]) -> None:
        for name in ("session", "trace_id"):
            self.found[name] = str(event.get(name) or self.found.get(name, ""))

    def fail(self, err: LightagentError) -> None:
        self.ended, self.sentence = err.code, err.message
        self.text = f"{err.message}\n\n{err.suggestion}".strip()
        self.found["error"] = err.to_dict()


Question = Callable[[AsyncClient, Outcome], Awaitable[None]]


def prompt(settings: Settings, parameters: dict[str, Any], timeout_s: float | None) -> int:
    """Prompt an agent on each host. Returns the exit status."""

    async def ask(client: AsyncClient, outcome: Outcome) -> None:
        async for reply in _whole_beginning(client.stream("Sessions.Prompt", **parameters), outcome):
            event = reply["event"]
            outcome.saw(event)
            if event["type"] == "done":
                outcome.answer = outcome.text = str(event.get("text") or "")
            elif event["type"] == "error":
                raise errors.from_dict(event)
            elif event["type"] in REQUESTS:
                name, how = str(question_id(event)), how_to_answer(event, f"lactl --host {outcome.host} ")
                outcome.ended, outcome.text = "waits", how
                outcome.sentence = f"{name}: {how}"
                outcome.found["waits_for"] = {"id": name, "how": how}
                return

    return _print(settings, _all(settings, ask, timeout_s or PROMPT_S))


async def _whole_beginning(
    replies: AsyncGenerator[dict[str, Any], None], outcome: Outcome
) -> AsyncGenerator[dict[str, Any], None]:
    """The replies of a stream. Ctrl-C waits for the first one: it names the session, whose turn is to end."""
    reading = asyncio.ensure_future(anext(replies))
    try:
        yield await asyncio.shield(reading)
    except asyncio.CancelledError:
        with contextlib.suppress(LightagentError, TimeoutError):
            outcome.saw((await asyncio.wait_for(reading, _CANCEL_S))["event"])
        raise
    async for reply in replies:
        yield reply


def status(settings: Settings) -> int:
    """Show the status of the daemon on each host. Returns the exit status."""

    async def ask(client: AsyncClient, outcome: Outcome) -> None:
        found = (await client.call("Manager.GetStatus"))["status"]
        outcome.found["status"] = found
        outcome.sentence = (
            f"{found['version']}, {found['state']}, model {found['model']}, turns: {found['turns_running']}, "
            f"waiting: {found['turns_waiting']}"
        )
        outcome.text = "\n\n".join(map(str, found["problems"]))
        if found["panic"] is not None:
            outcome.ended = "panicked"

    return _print(settings, _all(settings, ask, STATUS_S))


def _all(settings: Settings, ask: Question, limit_s: float) -> list[Outcome]:
    """Ask every host; in the order in which they were named."""

    async def run() -> list[Outcome]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(host: str) -> Outcome:
            async with room:
                remote = Remote(host=host, socket=settings.socket, may_ask=False)
                outcome = await _ask(remote, ask, limit_s)
                if sys.stderr.isatty() and not settings.json:
                    sys.stderr.write(f"{host}: {clean(outcome.ended)}, {outcome.seconds:.1f} s\n")
                return outcome

        # Ctrl-C ends a gather with the first task that ends; a group waits for those that still cancel turns.
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(host)) for host in settings.hosts]
        return [task.result() for task in tasks]

    return run_async(run())


async def _ask(remote: Remote, ask: Question, limit_s: float) -> Outcome:
    outcome, begun = Outcome(host=remote.host), time.monotonic()
    try:
        async with asyncio.timeout(limit_s), AsyncClient(remote, timeout_s=limit_s) as client:
            await ask(client, outcome)
    except TimeoutError:
        outcome.fail(_late(outcome, limit_s))
    except LightagentError as err:
        outcome.fail(err)
    except NOT_UNDERSTOOD as err:
        outcome.fail(not_understood(remote.host, err))
    except asyncio.CancelledError:
        await _cancel(remote, outcome)
        raise
    outcome.seconds = round(time.monotonic() - begun, 1)
    outcome.sentence = outcome.sentence or _first_sentence(outcome.text)
    return outcome


def _late(outcome: Outcome, limit_s: float) -> TimedOut:
    session = outcome.found.get("session")
    if not session:
        return TimedOut(f"{outcome.host} did not answer within {limit_s:g} seconds.")
    return TimedOut(
        f"The turn did not end within {limit_s:g} seconds; it goes on in {session}.",
        suggestion=f"Wait for it: lactl --host {outcome.host} wait {shlex.quote(session)}",
    )


async def _cancel(remote: Remote, outcome: Outcome) -> None:
    """After Ctrl-C: end a turn that runs there."""
    if session := outcome.found.get("session"):
        with contextlib.suppress(LightagentError):
            async with AsyncClient(remote, timeout_s=_CANCEL_S) as client:
                await client.call("Sessions.Cancel", session=session)


def _first_sentence(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip(" #*`-|")), "").strip(" #*`")
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0][:_SENTENCE_CHARS]


def _print(settings: Settings, outcomes: Sequence[Outcome]) -> int:
    failed = HOSTS_FAILED if any(one.ended != "done" for one in outcomes) else 0
    found = [
        {"host": one.host, "ended": one.ended, "seconds": one.seconds, "answer": one.answer, **one.found}
        for one in outcomes
    ]
    if as_json(settings, found):
        return failed
    rows = [(one.host, one.ended, f"{one.seconds:.1f}", one.sentence) for one in outcomes]
    table(("HOST", "ENDED", "SECONDS", "ANSWER"), rows)
    for one in outcomes:
        if one.text.strip():
            say(style(f"\n{cell(one.host)}:", BOLD))
            say_markdown(one.text)
    return failed
