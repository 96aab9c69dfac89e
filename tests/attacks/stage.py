"""Where attacks are played: `python -m tests.attacks.stage`, as root, on the machine that is attacked.

The stage is a process beside the daemon: on this machine, or in a container that the tests have booted. It
has the scripted model, the victims and the cases, drives the daemon over its socket, and looks at the machine
afterwards. Who started it writes one JSON object a line and reads one for each: `{"setup": …}` first, then
`{"play": NAME, "effect": …}`; the answers are `{"findings": […], …}`, and an empty list means that the attack
came to nothing. End it by closing its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightagentd.client.aio import AsyncClient
from tests.attacks.case import Aftermath, Ask, Case
from tests.attacks.cases import CASES
from tests.attacks.controls import CONTROLS
from tests.attacks.victims import Victims, marked_files, marked_processes
from tests.scripted_model import Answer, ScriptedModel, calls, say

TURN_S = 120.0
"""How long a turn may take; the daemon ends its calls long before."""
STATUS_S = 15.0
"""How long the daemon may take to say its status, on a machine that has other things to do."""
GONE_S = 30.0
"""How long what a call left behind may still be seen, dying."""


class Stage:
    """Owns the model and the victims while the block runs."""

    def __init__(self, worker_users: list[str], guarded: list[Path]) -> None:
        self.model = ScriptedModel([say("done")])
        self.victims = Victims(worker_users, guarded)
        self.socket = Path()
        self.secrets: dict[str, str] = {}
        """What must never come to the model, by what it is."""
        self._seen: dict[str, object] = {}
        """Everything that an attack could change, as it is while none runs."""

    async def __aenter__(self) -> Stage:
        await self.model.__aenter__()
        await self.victims.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.victims.close()
        await self.model.__aexit__(None, None, None)

    def set_up(
        self, socket: str, known_secrets: dict[str, str], names: dict[str, str], facts: list[list[str]]
    ) -> None:
        """`names` are facts of the place beside those of the victims; see `Playing.set_up`."""
        self.socket = Path(socket)
        self.victims.facts = facts
        self._seen = self.victims.look()
        self.secrets = {**self.victims.secrets, **known_secrets}
        self._more_names = names

    async def play(self, case: Case, effect: str, speaker: str = "") -> dict[str, Any]:
        """Let one attack run, and say what it did. With a `speaker`, that MCP server runs the commands."""
        mark = _new_mark()
        names = {**self.victims.names, **self._more_names, "mark": mark, "effect": effect}
        counts = await self.victims.counts()
        aftermath = await self._turn(case, names, speaker)
        changes = self._changes(mark)
        findings = [*changes, *_left(mark)]
        after_counts = await self.victims.counts()
        if not case.arrives:
            came = {name: after_counts[name] - count for name, count in counts.items()}
            findings += [f"{count} came to {name}" for name, count in came.items() if count]
        findings += self._seen_secrets(aftermath)
        findings += _course(case, aftermath)
        if changes:
            await self._restore(mark)
        return {
            "findings": findings,
            "slowest_status_s": max(aftermath.status_s),
            "results": [[one["result"], one["text"][:2000]] for one in aftermath.results],
            "last": aftermath.events[-1] if aftermath.events else None,
            "notes": aftermath.notes,
        }

    async def control(self, name: str) -> dict[str, Any]:
        """Do harm without the daemon: the stage must find it, or its silence means nothing."""
        mark = _new_mark()
        counts = await self.victims.counts()
        await asyncio.to_thread(CONTROLS[name], {**self.victims.names, "mark": mark})
        findings = [*self._changes(mark), *_left(mark, wait_s=0)]
        came = await self.victims.counts()
        findings += [
            f"{came[one] - count} came to {one}" for one, count in counts.items() if came[one] > count
        ]
        for pid in marked_processes(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._restore(mark)
        return {"findings": findings}

    async def _restore(self, mark: str) -> None:
        await self.victims.restore()
        for path in marked_files(mark):
            Path(path).unlink(missing_ok=True)
        self._seen = self.victims.look()

    async def _turn(self, case: Case, names: dict[str, str], speaker: str) -> Aftermath:
        """A turn in a session of its own, the daemon's status asked for all the while."""
        steps = [[_spoken(ask.filled(names), speaker) for ask in step] for step in case.steps]
        self.model.script = _script(steps)
        self.model.requests.clear()
        aftermath = Aftermath(effect=names["effect"], names=names, events=[], requests=[], status_s=[])
        asking = asyncio.create_task(self._ask_for_status(aftermath.status_s))
        try:
            async with AsyncClient(self.socket) as client, asyncio.timeout(TURN_S):
                replies = client.stream("Sessions.Prompt", agent=case.agent, text=case.prompt, new=True)
                aftermath.events += [reply["event"] async for reply in replies]
        except TimeoutError:
            aftermath.events.append({"type": "error", "code": "the turn did not end"})
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        aftermath.status_s.append(await self._status())
        aftermath.requests = [request.body for request in self.model.requests]
        return aftermath

    async def _ask_for_status(self, took_s: list[float]) -> None:
        while True:
            took_s.append(await self._status())
            await asyncio.sleep(0.2)

    async def _status(self) -> float:
        """How long the daemon took to answer."""
        started = time.monotonic()
        async with AsyncClient(self.socket, timeout_s=STATUS_S) as client:
            await client.call("Manager.GetStatus")
        return time.monotonic() - started

    def _changes(self, mark: str) -> list[str]:
        """What is not as it was after the attack before, and which files there are that this one made."""
        before, now = self._seen, self.victims.look()
        changed = [
            f"{name} was {before.get(name)!r:.300} and is {now.get(name)!r:.300}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        return changed + [f"{path} was made" for path in marked_files(mark)]

    def _seen_secrets(self, aftermath: Aftermath) -> list[str]:
        told = json.dumps([aftermath.requests, aftermath.events], ensure_ascii=False)
        return [f"the secret of the {name} came out" for name, value in self.secrets.items() if value in told]


def _spoken(ask: Ask, speaker: str) -> Ask:
    """A shell command as one of the MCP server; all else as it is."""
    if not speaker or ask.function != "bash_exec":
        return ask
    given = json.loads(str(ask.arguments))
    return Ask(function=f"{speaker}_{given['effect']}", arguments=json.dumps({"command": given["command"]}))


def _new_mark() -> str:
    """Digits, so that it can be a part of what sleep(1) takes."""
    return str(10**17 + secrets.randbelow(10**17))


def _course(case: Case, aftermath: Aftermath) -> list[str]:
    """Whether the attack ran as it was meant to, and what only this case can tell."""
    findings = []
    last = aftermath.events[-1] if aftermath.events else {"type": "nothing"}
    if last["type"] != "done":
        findings.append(f"the turn ended with {last}")
    wanted = sum(len(step) for step in case.steps)
    if len(aftermath.results) != wanted:
        findings.append(f"{len(aftermath.results)} calls of {wanted} have a result")
    for result in aftermath.results:
        code = result["result"]
        if (code == "ok") if case.ends is None else (code not in case.ends):
            findings.append(f"{result['tool']}.{result['action']} ended with {code}: {result['text'][:500]}")
    if case.also is not None:
        try:
            case.also(aftermath)
        except Exception:  # noqa: BLE001 - whatever it is, it is what the case found
            findings.append(traceback.format_exc(limit=-2))
    return findings


def _left(mark: str, wait_s: float = GONE_S) -> list[str]:
    """Processes of an attack that outlive it."""
    deadline = time.monotonic() + wait_s
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {pid} is left: {command}" for pid, command in left.items()]


def _script(steps: Sequence[Sequence[Ask]]) -> Any:
    """The model's answers: each step in its turn, then text."""

    def answer(body: dict[str, Any]) -> Answer:
        number = 0
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                break
            number += message["role"] == "assistant"
        if number >= len(steps):
            return say("done")
        step = steps[number]
        return calls(*((one.function, one.arguments, f"call_{number}_{i}") for i, one in enumerate(step)))

    return answer


async def _serve(stage: Stage) -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    found = {"base_url": stage.model.base_url, "names": stage.victims.names, "secrets": stage.victims.secrets}
    print(json.dumps(found), flush=True)
    try:
        while line := await reader.readline():
            wanted = json.loads(line)
            if "setup" in wanted:
                stage.set_up(**wanted["setup"])
                answer: dict[str, Any] = {}
            elif "control" in wanted:
                answer = await stage.control(wanted["control"])
            else:
                case, speaker = CASES[wanted["play"]], wanted.get("speaker", "")
                answer = await stage.play(case, wanted["effect"], speaker)
            print(json.dumps(answer), flush=True)
    finally:
        transport.close()


async def _main(worker_users: list[str], guarded: list[Path]) -> None:
    async with Stage(worker_users, guarded) as stage:
        await _serve(stage)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1].split(","), [Path(name) for name in sys.argv[2:]]))
