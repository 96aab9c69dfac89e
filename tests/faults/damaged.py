"""Damages stores and has the parts that open, serve and salvage a history live with them.

Run it as: python -m tests.faults.damaged --stores 300 --seed 1

Each store is a copy of a large one that was closed in order; pages of it are zeroed, swapped, cut off, or
have bits flipped, as its seed says. A child process opens it as the daemon does (`Recovery`, `History`),
reads all of it, stores events, salvages and stops. It is started again until it stops in order. Checked is:

- it dies at most once, and fails to start at most once beside that;
- afterwards every event is there, or the damage has a name: the store was set aside;
- the salvage has each event that the damaged file still holds, with its data, and numbers the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lightagentd.config.configuration import Config
from lightagentd.daemon.recovery import Recovery
from lightagentd.daemon.runtime import Now
from lightagentd.errors import LightagentError
from lightagentd.events.audit.verification import verify
from lightagentd.events.corruption import examination as damage
from lightagentd.events.corruption.examination import DATA
from lightagentd.events.corruption.pages import PageFile, Torn, Walk
from lightagentd.events.filter import Filter
from lightagentd.events.history import Change, History
from lightagentd.events.model import decode, within
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store import retention
from lightagentd.events.store.layout import EVENTS, STATES, ascending
from lightagentd.events.types.daemon import DaemonStopped
from lightagentd.events.types.session import SessionDeleted
from lightagentd.host.paths import Paths
from tests.events.corruption.damaging import PAGE, pages_of
from tests.events.stored import note, opened

LARGE = 20_000
KINDS = ("zeroed", "zeroed branches", "swapped", "flipped", "truncated", "mixed")
RUNS = 5
RUN_S = 300
_BATCH = 250


def paths_in(base: Path) -> Paths:
    return Paths(config=base / "etc", state=base / "state", runtime=base / "run")


async def make(base: Path, events: int) -> None:
    """A store of a stopped daemon: sessions, long and short events, a deleted session, a pruned part."""
    paths = paths_in(base)
    paths.audit.mkdir(parents=True)
    async with opened(paths.history) as history:
        for number in range(events // _BATCH):
            session = f"ses_{number % 40:016x}"
            with within(agent="ops", session=session, owner=1000, trace_id=f"trace_{number:016x}"):
                texts = ("x" * (10, 200, 900, 3000, 9000)[(number + each) % 5] for each in range(_BATCH))
                new = [note(number * _BATCH + each, text=text) for each, text in enumerate(texts)]
            record = {
                "id": session,
                "agent": "ops",
                "owner": 1000,
                "title": "",
                "created_us": 1,
                "updated_us": 2,
            }
            await history.append(*new, changes=[Change(state="sessions", key=session, value=record)])
        with within(session="ses_" + "0" * 16, owner=1000):
            gone = Change(state="sessions", key="ses_" + "0" * 16, value=None)
            await history.erase("ses_" + "0" * 16, SessionDeleted(by=1).event(), changes=[gone])
        bounds = retention.Bounds(reason="size", to_seq=events // 40)
        await history.appending(partial(retention.prune, history.environment, bounds))
        await history.append(DaemonStopped().event())
        mark = {"stopped": True, "seq": history.head_seq, "hash": history.head[1]}
        (paths.state / "last-run.json").write_text(json.dumps(mark))
    with pages_of(paths.history) as file:
        used_bytes = (file.meta().last_page + 1) * PAGE
    os.truncate(paths.history / DATA, used_bytes)


def records_of(base: Path) -> dict[int, bytes]:
    """Every record of the sound store."""
    stored = StoredHistory(paths_in(base).history)
    try:
        with stored.environment.reading() as txn, txn.cursor(stored.environment.db[EVENTS]) as cursor:
            return {int.from_bytes(key, "big"): value for key, value in cursor}
    finally:
        stored.close()


def spoil(data: bytes, kind: str, chance: random.Random) -> bytes:
    """The file with damage of a kind."""
    found, pages = bytearray(data), len(data) // PAGE
    if kind == "mixed":
        for each in chance.sample(KINDS[:-1], 3):
            found = bytearray(spoil(bytes(found), each, chance))
        return bytes(found)
    some = chance.sample(range(2, pages), chance.choice((1, 2, 5, 20)))
    if kind == "zeroed branches":
        branches = _branches(data)
        some = chance.sample(branches, min(len(branches), chance.choice((1, 2, 4))))
    if kind.startswith("zeroed"):
        for page in some:
            found[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    elif kind == "swapped":
        for page in some:
            other = chance.randrange(2, pages)
            one, two = (bytes(found[at * PAGE : (at + 1) * PAGE]) for at in (page, other))
            found[page * PAGE : (page + 1) * PAGE], found[other * PAGE : (other + 1) * PAGE] = two, one
    elif kind == "flipped":
        for page in some:
            for _ in range(chance.choice((1, 10))):
                at = page * PAGE + chance.choice((chance.randrange(32), chance.randrange(PAGE)))
                found[at] ^= 1 << chance.randrange(8)
    else:
        del found[chance.randrange(2 * PAGE, len(data)) :]
    return bytes(found)


def _branches(data: bytes) -> list[int]:
    """The pages above others in the trees that are in force."""
    fd = os.memfd_create("data")
    try:
        os.write(fd, data)
        file = PageFile(fd)
        meta, found = file.any_meta()[0], list[int]()
        for tree in Walk(file, meta, tolerant=True).trees().values():
            level = [tree.root] if tree.root is not None else []
            for _ in range(tree.depth - 1):
                found += level
                below = []
                for page in level:
                    with contextlib.suppress(Torn):
                        below += [child for child, _ in file.children(page, file.page(page), meta.last_page)]
                level = below
        return found or [meta.main.root or 2]
    finally:
        os.close(fd)


# The child


async def _serve(paths: Paths) -> dict[str, Any]:
    """Live with the store for a while, and stop in order; gives what was said."""
    history = History(paths.history)
    recovery = Recovery(paths, history, Now(config=Config(), started_us=time.time_ns() // 1000))
    await recovery.open()
    await recovery.settle()
    said = recovery.problems() + await asyncio.to_thread(_read, history)
    recovery.serve()
    for number in range(20):
        change = Change(state="current", key=f"ops/{number}", value={"session": "ses_x"})
        await history.append(*(note(each, text="y" * 3000) for each in range(10)), changes=[change])
    while any(not damage.export_of(path).exists() for path in damage.left_aside(paths.history)):
        await asyncio.sleep(0.05)
    await history.append(DaemonStopped().event())
    await recovery.close()
    await history.close()
    return {"said": said}


def _read(history: History) -> list[str]:
    """Read as clients do, everything by every way; gives the errors."""
    said = []

    def attempt(work: Any) -> Any:
        try:
            return work()
        except LightagentError as err:
            said.append(err.message)
            return None

    position = 1
    while position <= history.head_seq:
        events = attempt(partial(history.queries.range, position))
        position = events[-1].seq + 1 if events else position + 256
    attempt(partial(history.queries.select, Filter(type="message"), limit=1 << 20))
    for name in history.environment.db:
        attempt(partial(_walk, history, name))
    for number in range(40):
        attempt(partial(history.queries.messages, f"ses_{number:016x}"))
    for state in STATES:
        attempt(partial(history.queries.state, state))
    verified = attempt(partial(verify, history.environment))
    if verified is not None and not verified.ok:
        said.append(f"event {verified.first_bad_seq}: {verified.reason}")
    return said


def _walk(history: History, name: str) -> int:
    """Every entry of a database, as an index is walked; gives their number."""
    with history.environment.reading() as txn:
        return sum(1 for _ in ascending(txn, history.environment.db[name], b""))


def _run(paths: Paths, result: Path) -> int:
    """Run the child; gives its status as waitpid(2) has it."""
    child = os.fork()
    if not child:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(RUN_S)
            with (result.with_suffix(".log")).open("a") as log:
                os.dup2(log.fileno(), 2)
            result.write_text(json.dumps(asyncio.run(_serve(paths))))
            status = 0
        except BaseException as err:  # noqa: BLE001 - the parent reads it
            os.write(2, f"{type(err).__name__}: {err}\n".encode())
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


# What is checked


@dataclass
class Outcome:
    """What became of one store."""

    kind: str
    deaths: list[str] = field(default_factory=list)
    failures: int = 0
    set_aside: bool = False
    readable: int = 0
    exported: int = 0
    missing: int = 0
    wrong: list[str] = field(default_factory=list)


def try_store(sound: Path, records: dict[int, bytes], kind: str, seed: int, base: Path) -> Outcome:
    """Damage a copy of a store in an empty folder, and live with it."""
    outcome = Outcome(kind)
    shutil.copytree(paths_in(sound).state, paths_in(base).state)
    paths = paths_in(base)
    spoiled = spoil((paths.history / DATA).read_bytes(), kind, random.Random(seed))
    (paths.history / DATA).write_bytes(spoiled)
    result, restarted = base / "result.json", False
    for _ in range(RUNS):
        status = _run(paths, result)
        if os.WIFSIGNALED(status):
            outcome.deaths.append(signal.Signals(os.WTERMSIG(status)).name)
        elif os.WEXITSTATUS(status):
            outcome.failures += 1
        elif restarted or damage.left_aside(paths.history) or not json.loads(result.read_text())["said"]:
            break
        else:
            restarted = True  # what was found while it ran is what the next start looks for
    else:
        outcome.wrong.append(f"it does not come to rest: {result.with_suffix('.log').read_text()[-500:]}")
        return outcome
    if len(outcome.deaths) > 1 or outcome.failures > 1:
        outcome.wrong.append(f"it ended {outcome.deaths} and failed {outcome.failures} times")
    said = json.loads(result.read_text())["said"]
    aside = damage.left_aside(paths.history)
    outcome.set_aside = bool(aside)
    for path in aside:
        _check_export(path, records, spoiled, outcome)
        if not any(str(path) in sentence for sentence in said):
            outcome.wrong.append("the status does not name the damaged store")
    if not aside:
        _check_left(paths, records, said, outcome)
    return outcome


def _check_export(aside: Path, records: dict[int, bytes], spoiled: bytes, outcome: Outcome) -> None:
    """Whether the export has what the damaged file still holds, and counts the rest."""
    lines = [json.loads(line) for line in damage.export_of(aside).read_bytes().splitlines()]
    exported = {line["seq"]: line for line in lines if "seq" in line}
    held = _held(records, spoiled)
    outcome.readable, outcome.exported = len(held), len(exported)
    lost = [seq for seq in held if seq not in exported]
    bare = [seq for seq in held if seq in exported and exported[seq]["data"] is None and held[seq]]
    if lost or bare:
        outcome.wrong.append(
            f"not exported: {lost[:9]} ({len(lost)}); without data: {bare[:9]} ({len(bare)})"
        )
    outcome.missing = int(lines[-1].get("lightagentd_export_missing", 0))
    gone = len(records.keys() - exported.keys())
    behind = sum(seq > max(exported, default=0) for seq in records)
    removed = max(records) - len(records)  # by retention: they count where its note is gone, too
    if not gone - behind <= outcome.missing <= gone + removed:
        outcome.wrong.append(
            f"{gone} are missing, {behind} of them behind the last, said are {outcome.missing}"
        )


def _held(records: dict[int, bytes], data: bytes) -> dict[int, bool]:
    """The events that the file holds whole in one piece, and whether they have data."""
    found = {}
    at = data.find(b'{"seq":')
    while at >= 0:
        digits = data[at + 7 : at + 18].partition(b",")[0]
        record = records.get(int(digits)) if digits.isdigit() else None
        if record is not None and data.startswith(record, at):
            found[int(digits)] = bool(record.partition(b"\n")[2])
        at = data.find(b'{"seq":', at + 1)
    return found


def _check_left(paths: Paths, records: dict[int, bytes], said: list[str], outcome: Outcome) -> None:
    """Whether a store that stays in use has all events, or says which is wrong."""
    try:
        found = records_of(paths.state.parent)
    except LightagentError as err:
        outcome.wrong.append(f"it is used on: {err.message}")
        return
    changed = [seq for seq, record in records.items() if found.get(seq) != record]
    if changed and not said:
        outcome.wrong.append(f"changed without a word: {changed[:9]}")
    for seq in changed:
        with contextlib.suppress(ValueError):
            decode(found.get(seq, b""))
            outcome.missing += 1


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--stores", type=int, default=30)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--events", type=int, default=LARGE)
    chosen = options.parse_args()
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    wrong = 0
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(make(Path(made) / "sound", chosen.events))
        records = records_of(Path(made) / "sound")
        for number in range(chosen.stores):
            seed, kind = chosen.seed + number, KINDS[number % len(KINDS)]
            base = Path(made) / "base"
            done = try_store(Path(made) / "sound", records, kind, seed, base)
            shutil.rmtree(base)
            wrong += bool(done.wrong)
            totals[kind] += Counter(
                stores=1,
                died=len(done.deaths),
                failed=done.failures,
                set_aside=done.set_aside,
                readable=done.readable,
                exported=done.exported,
                missing=done.missing,
                wrong=bool(done.wrong),
            )
            print(seed, kind, done.deaths, done.failures, done.set_aside, done.wrong, flush=True)
    for kind, total in (*totals.items(), ("all", sum(totals.values(), Counter()))):
        print(f"{kind:16}", *(f"{name}={count}" for name, count in total.items()))
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
