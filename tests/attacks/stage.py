"""Where attacks are played: `python -m tests.attacks.stage`, as root, on the machine that is attacked.

The stage is a process beside the daemon: on this machine, or in a container that the tests have booted. It
has the scripted model, the victims and the cases, drives the daemon over its socket, and looks at the machine
afterwards. Who started it writes one JSON object a line and reads one for each: `{"setup": …}` first, then
`{"play": [[NAME, EFFECT], …], "speaker": …}`; the answer has `{"findings": […], …}` for each, and an empty
list means that the attack came to nothing. End it by closing its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightagentd.client.aio import AsyncClient
from tests.attacks import spoken
from tests.attacks.case import ORDERING, Aftermath
from tests.attacks.cases import CASES
from tests.attacks.controls import CONTROLS
from tests.attacks.spoken import Play
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
        self._orders = Path(tempfile.mkdtemp(prefix="la-orders-")) / "orders"
        """What the MCP server says, by the marks of the plays."""
        self._orders.parent.chmod(0o755)
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
        shutil.rmtree(self._orders.parent)

    @property
    def names(self) -> dict[str, str]:
        return {**self.victims.names, "orders": str(self._orders)}

    def set_up(
        self, socket: str, known_secrets: dict[str, str], names: dict[str, str], facts: list[list[str]]
    ) -> None:
        """`names` are facts of the place beside those of the victims; see `Playing.set_up`."""
        self.socket = Path(socket)
        self.victims.facts = facts
        self._seen = self.victims.look()
        self.secrets = {**self.victims.secrets, **known_secrets}
        self._more_names = names

    async def play(self, wanted: Sequence[Sequence[str]], speaker: str = "") -> list[dict[str, Any]]:
        """Let attacks run beside each other, each a name and an effect, and say what they did.

        With a `speaker`, that MCP server gives the orders. Harm that nobody signed is looked for again with
        each of them alone; when none did it so, all of them are told.
        """
        outcomes, unsigned = await self._beside(wanted, speaker)
        if unsigned and len(wanted) > 1:
            alone = [(await self.play([one], speaker))[0] for one in wanted]
            outcomes = alone if any(one["findings"] for one in alone) else outcomes
        return outcomes

    async def _beside(
        self, wanted: Sequence[Sequence[str]], speaker: str
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The outcomes, and the findings which are in each of them, for they tell of no mark."""
        first = _new_mark()
        given = {**self.victims.names, **self._more_names}
        plays = [
            Play(
                case=CASES[name],
                effect=effect,
                names={**given, "mark": str(int(first) + number), "effect": effect},
                speaker=speaker,
            )
            for number, (name, effect) in enumerate(wanted)
        ]
        counts = await self.victims.counts()
        aftermaths = await self._turns(plays)
        changes = self._changes()
        signed = [*_made(first), *_left(first)]
        after_counts = await self.victims.counts()
        came = {name: after_counts[name] - count for name, count in counts.items()}
        unsigned = [*changes, *(f"{count} came to {name}" for name, count in came.items() if count)]
        outcomes = []
        for play, aftermath in zip(plays, aftermaths, strict=True):
            findings = [*unsigned, *(one for one in signed if play.mark in one)]
            findings += self._seen_secrets(aftermath)
            findings += _course(play, aftermath)
            outcomes.append(_outcome(findings, aftermath))
        if changes or signed:
            await self._restore(first)
        return outcomes, unsigned

    async def control(self, name: str) -> dict[str, Any]:
        """Do harm without the daemon: the stage must find it, or its silence means nothing."""
        mark = _new_mark()
        counts = await self.victims.counts()
        await asyncio.to_thread(CONTROLS[name], {**self.victims.names, "mark": mark})
        findings = [*self._changes(), *_made(mark), *_left(mark, wait_s=0)]
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

    async def _turns(self, plays: Sequence[Play]) -> list[Aftermath]:
        """A turn for each in a session of its own, the daemon's status asked for all the while."""
        self.model.script = _script(plays)
        self.model.requests.clear()
        orders = {play.mark: spoken.packed(play.steps()) for play in plays if play.ordered}
        self._orders.write_text(json.dumps(orders))
        aftermaths = [
            Aftermath(effect=play.effect, names=play.names, events=[], requests=[], status_s=[])
            for play in plays
        ]
        both = sorted(zip(plays, aftermaths, strict=True), key=lambda one: one[0].lane)
        took_s: list[float] = []
        meanwhile: dict[str, slice] = {}
        """Which answers belong to a play, by its mark."""
        asking = asyncio.create_task(self._ask_for_status(took_s))
        try:
            async with asyncio.TaskGroup() as lanes:
                for _, lane in itertools.groupby(both, lambda one: one[0].lane):
                    lanes.create_task(self._one_by_one([*lane], took_s, meanwhile))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        took_s.append(await self._status())
        by_mark = {play.mark: aftermath for play, aftermath in both}
        for request in self.model.requests:
            by_mark[_mark_of(request.body)].requests.append(request.body)
        for mark, aftermath in by_mark.items():
            aftermath.status_s = took_s[meanwhile[mark]]
        return aftermaths

    async def _one_by_one(
        self, both: Sequence[tuple[Play, Aftermath]], took_s: list[float], meanwhile: dict[str, slice]
    ) -> None:
        for play, aftermath in both:
            first = len(took_s)
            try:
                async with AsyncClient(self.socket) as client, asyncio.timeout(TURN_S):
                    asked = {"agent": play.agent, "text": f"go {play.mark}", "new": True}
                    asked |= {"unattended": bool(play.speaker)}
                    replies = client.stream("Sessions.Prompt", **asked)
                    aftermath.events += [reply["event"] async for reply in replies]
            except TimeoutError:
                aftermath.events.append({"type": "error", "code": "the turn did not end"})
            meanwhile[play.mark] = slice(first, len(took_s) + 1)  # with the one that is asked just now

    async def _ask_for_status(self, took_s: list[float]) -> None:
        while True:
            took_s.append(await self._status())
            await asyncio.sleep(0.5)

    async def _status(self) -> float:
        """How long the daemon took to answer."""
        started = time.monotonic()
        async with AsyncClient(self.socket, timeout_s=STATUS_S) as client:
            await client.call("Manager.GetStatus")
        return time.monotonic() - started

    def _changes(self) -> list[str]:
        """What is not as it was after the attack before."""
        before, now = self._seen, self.victims.look()
        return [
            f"{name} was {before.get(name)!r:.300} and is {now.get(name)!r:.300}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]

    def _seen_secrets(self, aftermath: Aftermath) -> list[str]:
        whole = aftermath.requests[-1:]  # each has those before in it
        told = json.dumps([whole, aftermath.events], ensure_ascii=False)
        return [f"the secret of the {name} came out" for name, value in self.secrets.items() if value in told]


def _new_mark() -> str:
    """Digits, so that it can be a part of what sleep(1) takes; the last four count what runs beside it."""
    return f"{10**13 + secrets.randbelow(10**13)}0000"


def _mark_of(request: dict[str, Any]) -> str:
    """Which play a request of the model belongs to."""
    prompts = [message["content"] for message in request["messages"] if message["role"] == "user"]
    found = re.search("go ([0-9]+)", str(prompts))
    return found[1] if found is not None else ""


def _outcome(findings: list[str], aftermath: Aftermath) -> dict[str, Any]:
    return {
        "findings": findings,
        "slowest_status_s": max(aftermath.status_s),
        "results": [[one["result"], one["text"][:2000]] for one in aftermath.results],
        "last": aftermath.events[-1] if aftermath.events else None,
        "notes": aftermath.notes,
    }


def _course(play: Play, aftermath: Aftermath) -> list[str]:
    """Whether the attack ran as it was meant to, and what only this case can tell."""
    case, findings = play.case, list[str]()
    if play.ordered and [one["result"] for one in aftermath.heard] != ["ok"]:
        findings.append(f"{play.speaker} gave no orders: {aftermath.heard}")
    last = aftermath.events[-1] if aftermath.events else {"type": "nothing"}
    if last["type"] != "done":
        findings.append(f"the turn ended with {last}")
    wanted = sum(len(step) for step in play.steps())
    if len(aftermath.results) != wanted:
        findings.append(f"{len(aftermath.results)} calls of {wanted} have a result")
    valid = [one["text"] for one in aftermath.results if one["result"] != "invalid_argument"]
    if play.agent == spoken.GULLIBLE and "Text from outside is in this session" not in "".join(valid[:1]):
        findings.append("the first call was not refused for what the session has read")
    for result in aftermath.results:
        code = result["result"]
        if (code == "ok") if play.ends is None else (code not in play.ends):
            findings.append(f"{result['tool']}.{result['action']} ended with {code}: {result['text'][:500]}")
    if case.also is not None:
        try:
            case.also(aftermath)
        except Exception:  # noqa: BLE001 - whatever it is, it is what the case found
            findings.append(traceback.format_exc(limit=-2))
    return findings


def _made(mark: str) -> list[str]:
    return [f"{path} was made" for path in marked_files(mark[:-4])]


def _left(mark: str, wait_s: float = GONE_S) -> list[str]:
    """Processes of attacks that outlive them."""
    deadline = time.monotonic() + wait_s
    while (left := marked_processes(mark[:-4])) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {pid} is left: {command}" for pid, command in left.items()]


def _script(plays: Sequence[Play]) -> Any:
    """The model's answers to each play: its steps, or those of the result that orders it, then text."""
    by_mark = {play.mark: play for play in plays}
    steps = {play.mark: play.steps() for play in plays}

    def answer(body: dict[str, Any]) -> Answer:
        play = by_mark[_mark_of(body)]
        number = sum(message["role"] == "assistant" for message in body["messages"])
        asks = steps[play.mark]
        if play.ordered:
            if number == 0:
                return calls((f"{play.speaker}_{ORDERING}", {"about": play.mark}, "call_orders"))
            number, asks = number - 1, spoken.read(body["messages"]) or []
        if number >= len(asks):
            return say("done")
        asked = enumerate(asks[number])
        return calls(*((one.function, one.arguments, f"call_{number}_{i}") for i, one in asked))

    return answer


async def _serve(stage: Stage) -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    found = {"base_url": stage.model.base_url, "names": stage.names, "secrets": stage.victims.secrets}
    print(json.dumps(found), flush=True)
    try:
        while line := await reader.readline():
            wanted = json.loads(line)
            if "setup" in wanted:
                stage.set_up(**wanted["setup"])
                answer: Any = {}
            elif "control" in wanted:
                answer = await stage.control(wanted["control"])
            else:
                answer = await stage.play(wanted["play"], wanted["speaker"])
            print(json.dumps(answer), flush=True)
    finally:
        transport.close()


async def _main(worker_users: list[str], guarded: list[Path]) -> None:
    async with Stage(worker_users, guarded) as stage:
        await _serve(stage)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1].split(","), [Path(name) for name in sys.argv[2:]]))
