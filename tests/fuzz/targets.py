"""What is fuzzed in this process: importers, decoders, verification. Each target takes one broken input at
a time; it fails by raising what its readers do not expect.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import lmdb

from lightagentd.agents.sessions import imports
from lightagentd.errors import ImportInvalid, LightagentError
from lightagentd.events.audit.verification import verify
from lightagentd.events.backup import importing, portable
from lightagentd.events.model import decode
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.store.layout import seq_key
from lightagentd.varlink.wire import decode_message
from tests.fuzz import samples
from tests.fuzz.mutation import mutated_bytes, mutated_value


def told(err: LightagentError) -> None:
    """An error must say what is wrong, and may not be one that nobody thought of."""
    if not err.message or err.code == "internal":
        raise AssertionError(f"{err.code}: {err.message!r}") from err


class Target(Protocol):
    """`once` feeds one input that comes from the generator alone; `close` lets go of everything."""

    def once(self, rng: random.Random) -> None: ...

    def close(self) -> None: ...


class _Plain:
    def close(self) -> None:
        """Nothing is held."""


class SessionImport(_Plain):
    """`lactl sessions import`."""

    def once(self, rng: random.Random) -> None:
        source = rng.choice((samples.SESSION_LINES, samples.SESSION_MARKDOWN))
        if rng.random() < 0.5:
            text = mutated_bytes(source, rng).decode("utf-8", rng.choice(("replace", "surrogateescape")))
        else:
            whole = {"session_id": "a", "history": mutated_value(samples.MESSAGES, rng)}
            text = f"```json\n{json.dumps(mutated_value(whole, rng))}\n```\n"
        try:
            found = imports.read(text, max_bytes=1 << 20)
        except ImportInvalid as err:
            told(err)
            return
        for one in found.said:
            one.message.content.encode()  # what is taken can be stored


class Decoding(_Plain):
    """The bytes of a stored event."""

    def once(self, rng: random.Random) -> None:
        header = {"seq": 1, "time": 5, "topic": "agent.message", "type": "message", "source": "agent"}
        header |= {
            "agent": "ops",
            "session": "",
            "owner": 0,
            "caller": None,
            "request_id": "",
            "trace_id": "",
        }
        header |= {"correlation_id": "", "data_sha256": "0" * 64, "prev": "0" * 64}
        line = json.dumps(mutated_value(header, rng)).encode()
        data = b'{"role":"user","content":"x"}'
        if rng.random() < 0.1:
            depth = rng.choice((1, 900, 20_000))
            data = b"[" * depth + b"]" * depth
        record = line + b"\n" + data
        if rng.random() < 0.6:
            record = mutated_bytes(record, rng)
        try:
            event = decode(record)
        except ValueError:
            return
        event.to_dict()


class Wire(_Plain):
    """One message of the control socket, before anything else is done with it."""

    def once(self, rng: random.Random) -> None:
        call = rng.choice(samples.CALLS)
        message = json.dumps(call).encode()
        try:
            decode_message(mutated_bytes(message, rng))
        except (LightagentError, ValueError):
            return


class _OverStore:
    """A target that starts from the sample store each time."""

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="la-fuzz-", dir=_quick_folder()))
        self._sample = self._base / "sample"
        samples.fill(self._sample)

    def close(self) -> None:
        shutil.rmtree(self._base)

    def _copy(self, what: str) -> Path:
        folder = self._base / what
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        shutil.copyfile(self._sample / "data.mdb", folder / "data.mdb")
        return folder


def _quick_folder() -> str | None:
    """Memory, where there is some: it is the reading that is tried, not the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Reading(_OverStore):
    """Queries, export and verification of a store with broken records, some with hashes that fit."""

    def once(self, rng: random.Random) -> None:
        folder = self._copy("read")
        self._break(folder, rng)
        history: StoredHistory | None = None
        try:
            history = StoredHistory(folder)
            for read in self._reads(history):
                try:
                    read()
                except LightagentError as err:
                    told(err)
        except LightagentError as err:
            told(err)
        finally:
            if history is not None:
                history.close()

    def _reads(self, history: StoredHistory) -> list[Callable[[], Any]]:
        session = Filter(session=samples.SESSION)
        return [
            lambda: verify(history.environment),
            lambda: history.queries.range(1, 100),
            lambda: history.queries.newest(session, 10),
            lambda: history.queries.newest(Filter(tool="file", since_us=1), 10),
            lambda: history.queries.newest(Filter(text="disk", type="message"), 10),
            lambda: history.queries.messages(samples.SESSION),
            lambda: history.queries.newest_messages(samples.SESSION, 10),
            lambda: history.queries.state("sessions"),
            history.queries.last,
            lambda: _exported(history),
        ]

    def _break(self, folder: Path, rng: random.Random) -> None:
        env = lmdb.open(str(folder), max_dbs=32, map_size=1 << 26, sync=False, metasync=False)
        try:
            name = rng.choice((b"events",) * 6 + (b"meta", b"by_session", b"by_time", b"by_field"))
            database = env.open_db(name)
            with env.begin(write=True, db=database) as txn:
                rows = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
                if name == b"events" and rng.random() < 0.5:
                    for at, record in enumerate(self._rewritten(rows, rng), 1):
                        txn.put(seq_key(at), record)
                    return
                key, value = rng.choice(rows)
                what = rng.randrange(4)
                if what == 0:
                    txn.delete(key)
                elif what == 1:
                    txn.put(mutated_bytes(key, rng, most=1)[:500] or b"\0", value)
                else:
                    txn.put(key, mutated_bytes(value, rng))
        finally:
            env.close()

    def _rewritten(self, rows: list[tuple[bytes, bytes]], rng: random.Random) -> list[bytes]:
        """All records, with one change in the data of one event or in its header, chained anew."""
        stored = [
            (json.loads(line), data) for line, _, data in (record.partition(b"\n") for _, record in rows)
        ]
        at = rng.randrange(len(stored))
        header, data = stored[at]
        if rng.random() < 0.7:
            stored[at] = (header, json.dumps(mutated_value(json.loads(data or b"{}"), rng)).encode())
        else:
            changed = mutated_value(header, rng)
            stored[at] = ({**(changed if isinstance(changed, dict) else {}), "seq": header["seq"]}, data)
        return samples.rechained(stored)


class HistoryImport(_OverStore):
    """`lactl history import`: what is taken verifies."""

    def __init__(self) -> None:
        super().__init__()
        history = StoredHistory(self._sample)
        self._export = _exported(history)
        history.close()

    def once(self, rng: random.Random) -> None:
        lines = self._export.splitlines(keepends=True)
        if rng.random() < 0.5:
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(mutated_value(json.loads(lines[at]), rng)).encode() + b"\n"
            content = b"".join(lines)
        else:
            content = mutated_bytes(self._export, rng)
        folder = self._base / "new"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        (self._base / "file").write_bytes(content)
        try:
            with (self._base / "file").open("rb") as file:
                importing._Import(file, "file", cut_allowed=False).store_in(folder)
        except LightagentError as err:
            told(err)
            return
        history = StoredHistory(folder)
        try:
            verify(history.environment)
            history.queries.range(1, 100)
        finally:
            history.close()


def _exported(history: StoredHistory) -> bytes:
    """A whole export. Raises LightagentError."""
    return b"".join(portable._all(history, {}, True))


TARGETS: dict[str, Callable[[], Target]] = {
    "session-import": SessionImport,
    "decoding": Decoding,
    "wire": Wire,
    "reading": Reading,
    "history-import": HistoryImport,
}
