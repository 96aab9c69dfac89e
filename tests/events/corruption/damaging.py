"""Stores to damage, and what damages them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lightagentd.events.corruption.examination import DATA
from lightagentd.events.corruption.pages import PageFile
from lightagentd.events.history import Change
from tests.conftest import REPOSITORY
from tests.events.stored import note, opened

PAGE = 4096
EVENTS, SESSIONS = 300, 30


async def make_store(folder: Path) -> bytes:
    """A store of EVENTS events, some long, with free pages; gives the used part of its file."""
    async with opened(folder) as history:
        for number in range(EVENTS // 10):
            length = (10, 200, 6000)[number % 3]
            events = [note(number * 10 + each, text="x" * length) for each in range(10)]
            change = Change(state="sessions", key=f"ses_{number}", value={"n": number})
            await history.append(*events, changes=[change])
    with pages_of(folder) as file:
        used_bytes = (file.meta().last_page + 1) * PAGE
    return (folder / DATA).read_bytes()[:used_bytes]


@contextlib.contextmanager
def pages_of(folder: Path) -> Iterator[PageFile]:
    fd = os.open(folder / DATA, os.O_RDONLY)
    try:
        yield PageFile(fd)
    finally:
        os.close(fd)


def put(folder: Path, data: bytes) -> Path:
    """Have a store's folder with nothing but these bytes as its file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / DATA).write_bytes(data)
    return folder


def damaged(data: bytes, seed: int) -> bytes:
    """The file with something overwritten that the seed chooses."""
    chance = random.Random(seed)
    found = bytearray(data)
    pages = len(data) // PAGE
    at, other = chance.randrange(pages) * PAGE, chance.randrange(pages) * PAGE
    match seed % 6:
        case 0:
            found[at : at + PAGE] = chance.randbytes(PAGE)
        case 1:
            found[at : at + PAGE] = bytes(PAGE)
        case 2:
            found[at : at + PAGE] = data[other : other + PAGE]
        case 3:
            found[at : at + PAGE], found[other : other + PAGE] = (
                data[other : other + PAGE],
                data[at : at + PAGE],
            )
        case 4:
            found[at + chance.randrange(64)] = chance.randrange(256)
        case 5:
            for _ in range(50):
                found[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(found)


_USE = """
import os, sys, lmdb
environment = lmdb.open(sys.argv[1], max_dbs=32, map_size=64 << 20)
with environment.begin() as txn:
    names = [key for key, _ in txn.cursor()]
for name in names:
    database = environment.open_db(name, create=False)
    with environment.begin(db=database) as txn:
        for key, value in txn.cursor():
            assert txn.get(key) == value
database = environment.open_db(b"events")
for number in range(20):
    with environment.begin(write=True, db=database) as txn:
        for each in range(10):
            txn.put((1000 + number * 10 + each).to_bytes(8, "big"), os.urandom(6000 if each % 3 else 20))
with environment.begin(db=database) as txn:
    assert sum(1 for _ in txn.cursor()) == int(sys.argv[2]) + 200
"""


def use_with_lmdb(folder: Path, events: int) -> str:
    """Have LMDB itself read all of a store and write to it, in another process; gives what went wrong."""
    done = subprocess.run(
        [sys.executable, "-c", _USE, str(folder), str(events)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return done.stderr
