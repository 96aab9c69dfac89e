"""Compares the reader of pages with LMDB's own cursors on 200 damaged stores.

Run it as: python -m tests.events.corruption.compare

Both are given the same stores, made with fixed seeds. A cursor runs in a child process that may die or hang;
what lies behind the place where it ended is tried again in halves, down to single events. The table says for
each kind of damage how many stores each reader found damaged, how many events each gave back, in how many
stores cursors gave less or more, and in how many they ended the process. The reader of pages stays as long as
cursors give less.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lmdb

from lightagentd.events.corruption.examination import examine
from lightagentd.events.corruption.salvage import salvage
from lightagentd.events.model import decode
from lightagentd.events.store.layout import STATES
from tests.events.corruption.damaging import EVENTS, PAGE, make_store, put

STORES = 200
KINDS = ("zeroed", "swapped", "truncated", "flipped", "random")
_SEQ = struct.Struct(">Q")
_CHILD_S = 3
_FIGURES = "stores pages_found cursors_found pages_events cursors_events less more died"


def damaged(data: bytes, seed: int) -> tuple[str, bytes]:
    """The kind of damage, and the file with it."""
    chance, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    found, pages = bytearray(data), len(data) // PAGE
    first, second, *_ = (at * PAGE for at in chance.sample(range(pages), 2))
    match kind:
        case "zeroed":
            for at in (first, second)[: 1 + seed // len(KINDS) % 2]:
                found[at : at + PAGE] = bytes(PAGE)
        case "swapped":
            found[first : first + PAGE] = data[second : second + PAGE]
            found[second : second + PAGE] = data[first : first + PAGE]
        case "truncated":
            del found[chance.randrange(len(data)) :]
        case "flipped":
            for _ in range(50):
                found[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case "random":
            found[first : first + PAGE] = chance.randbytes(PAGE)
    return kind, bytes(found)


def in_child(work: Callable[[int], None]) -> tuple[bytes, bool]:
    """What the work writes in a process of its own, and whether that ended well."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.close(ours)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (_CHILD_S, _CHILD_S))
            work(theirs)
            os._exit(0)
        os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    return said, os.waitpid(child, 0)[1] == 0


def cursor_finds(folder: Path) -> bool:
    """Whether cursors over everything, and a look-up of each key, show damage."""

    def work(_: int) -> None:
        env = lmdb.open(str(folder), max_dbs=32, readonly=True, lock=False)
        with env.begin() as txn:
            names = [key for key, _ in txn.cursor()]
        for name in names:
            with env.begin(db=env.open_db(name, create=False)) as txn:
                for count, (key, value) in enumerate(txn.cursor(), 1):
                    assert txn.get(key) == value
                    assert count <= txn.stat()["entries"]
                    if name == b"events":
                        assert decode(value).seq == _SEQ.unpack(key)[0]
                    elif name.decode() in STATES:
                        assert isinstance(json.loads(value), dict)
                assert sum(1 for _ in txn.cursor()) == txn.stat()["entries"]

    return not in_child(work)[1]


def cursor_reads(folder: Path) -> tuple[dict[int, bytes], int]:
    """Every record that cursors lead to, and how many children died or failed."""
    found: dict[int, bytes] = {}
    deaths = 0

    def work(low: int, high: int, out: int) -> None:
        env = lmdb.open(str(folder), max_dbs=32, readonly=True, lock=False)
        with env.begin(db=env.open_db(b"events", create=False)) as txn:
            cursor = txn.cursor()
            going = cursor.set_range(_SEQ.pack(low))
            while going and len(cursor.key()) == _SEQ.size and _SEQ.unpack(cursor.key())[0] <= high:
                record = cursor.value()
                os.write(out, cursor.key() + _SEQ.pack(len(record)) + record)
                going = cursor.next()

    ranges = [(1, EVENTS)]
    while ranges:
        low, high = ranges.pop()
        said, well = in_child(lambda out, low=low, high=high: work(low, high, out))  # type: ignore[misc]
        last = low - 1
        while len(said) >= 16:
            seq, length = _SEQ.unpack_from(said)[0], _SEQ.unpack_from(said, 8)[0]
            if len(said) >= 16 + length:
                found[seq], last = said[16 : 16 + length], max(last, min(seq, high))
            said = said[16 + length :]
        if well:
            continue
        deaths += 1
        if low < high:
            begin = max(low, last + 1)
            middle = max((begin + high) // 2, begin)
            ranges += [(one, to) for one, to in ((begin, middle), (middle + 1, high)) if one <= to]
    return found, deaths


def main() -> None:
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as made:
        data = asyncio.run(make_store(Path(made) / "sound"))
        for seed in range(STORES):
            kind, changed = damaged(data, seed)
            folder = put(Path(made) / "history", changed)
            target = Path(made) / "out.jsonl"
            target.unlink(missing_ok=True)
            pages_found = bool(examine(folder, seconds=None, known=True).problem)
            done = salvage(folder, target, lambda: False)
            cursors_found = cursor_finds(folder)
            records, deaths = cursor_reads(folder)
            read = 0
            for seq, record in records.items():
                with contextlib.suppress(ValueError):
                    read += decode(record).seq == seq
            counts[kind] += Counter(
                stores=1,
                pages_found=pages_found,
                cursors_found=cursors_found,
                pages_events=done.events,
                cursors_events=read,
                less=read < done.events,
                more=read > done.events,
                died=deaths > 0,
            )
            print(seed, kind, pages_found, cursors_found, done.events, read, deaths, file=sys.stderr)
    for kind, count in (*counts.items(), ("all", sum(counts.values(), Counter()))):
        print(f"{kind:10}", *(f"{name}={count[name]}" for name in _FIGURES.split()))


if __name__ == "__main__":
    main()
