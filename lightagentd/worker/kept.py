"""Keeps outputs that were too long for their result, so that they can be read again by handle.

A worker cannot keep an output: an agent has several workers, they come and go, and the sandboxes of effects
do not see each other. So the worker sends it in pieces before the result. The daemon writes the pieces to
files below its runtime folder and answers `bash.read_output` from them. An output belongs to the agent, the
session and the owner of its call; nobody else learns whether it exists. Both ends bound its size, since a
worker is not trusted. An agent's oldest outputs are removed when it has too many, and all of them when the
daemon starts. Secrets are removed before a piece is written: a read from an offset could return half of a
secret, which no pattern finds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import contextlib
import logging
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.errors import NotFound, StorageError
from lightagentd.redaction import Redactor, Stream
from lightagentd.worker.call import Call
from lightagentd.worker.outputs import CALL_LIMIT_BYTES, STREAMS, handle_of

_log = logging.getLogger(__name__)

READ = ("bash", "read_output")
"""The tool and the action that read what is kept."""
AGENT_LIMIT_BYTES = 64 << 20
TOTAL_LIMIT_BYTES = 256 << 20


class Pieces:
    """Removes secrets from bytes that arrive in pieces; bytes that are not UTF-8 stay unchanged."""

    def __init__(self, redactor: Redactor) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._stream = Stream(redactor)
        self.added_bytes = 0
        """By how much what came out is longer than what went in."""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        text = self._stream.feed(self._decoder.decode(data, last))
        cleaned = (text + (self._stream.finish() if last else "")).encode("utf-8", "surrogateescape")
        self.added_bytes += len(cleaned) - len(data)
        return cleaned


@dataclass(kw_only=True)
class _Output:
    """The kept output of one call."""

    owned_by: tuple[str, str, int]
    """Agent, session and owner."""
    kept_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    total_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    """How long the streams were, as the worker says, without what was taken out."""
    pieces: dict[str, Pieces] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(self.kept_bytes.values())


class KeptOutputs:
    """The outputs of all agents. The pool owns it."""

    def __init__(
        self,
        folder: Path,
        *,
        redactor: Redactor | None = None,
        agent_limit_bytes: int = AGENT_LIMIT_BYTES,
        total_limit_bytes: int = TOTAL_LIMIT_BYTES,
    ) -> None:
        self.redactor = redactor or Redactor()
        """The daemon's own, once it has one."""
        self._folder = folder
        self._agent_limit_bytes = agent_limit_bytes
        self._total_limit_bytes = total_limit_bytes
        self._outputs: dict[str, _Output] = {}
        """By handle, the oldest first."""

    async def start(self) -> None:
        """Remove the outputs of an earlier daemon, whose owners are not known any more."""
        await asyncio.to_thread(self._clear)

    async def close(self) -> None:
        """Remove everything."""
        self._outputs.clear()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def add(self, call: Call, piece: dict[str, Any]) -> None:
        """Keep a piece `{stream, data: base64, total_bytes}`, or drop it beyond the call's limit.

        On a full disk the output is lost but the call succeeds.
        """
        handle, stream = handle_of(call.call_id), piece.get("stream")
        if not handle or stream not in STREAMS:
            return
        owned_by = (call.agent, call.session, call.owner)
        output = self._outputs.setdefault(handle, _Output(owned_by=owned_by))
        try:
            data = base64.b64decode(piece["data"], validate=True)[: CALL_LIMIT_BYTES - output.size_bytes]
            output.total_bytes[stream] = int(piece["total_bytes"])
        except (KeyError, ValueError, TypeError, binascii.Error):
            return
        pieces = output.pieces.setdefault(stream, Pieces(self.redactor))
        await self._keep(handle, output, stream, pieces.feed(data), call)

    async def whole(self, call: Call) -> None:
        """Finish the output of a call: its result has arrived."""
        output = self._outputs.get(handle := handle_of(call.call_id))
        if output is None:
            return
        for stream, pieces in list(output.pieces.items()):
            del output.pieces[stream]
            await self._keep(handle, output, stream, pieces.feed(b"", last=True), call)
            output.total_bytes[stream] += pieces.added_bytes

    async def _keep(self, handle: str, output: _Output, stream: str, data: bytes, call: Call) -> None:
        output.kept_bytes[stream] += len(data)
        await self._make_room(handle, call.agent)
        try:
            await asyncio.to_thread(_append, self._path(handle, stream), data)
        except OSError as err:
            _log.warning("the output of %s cannot be kept: %s", call.call_id, err)
            await self._drop(handle)

    async def answer(self, call: Call) -> dict[str, Any]:
        """The result of a call of `READ`. Raises NotFound, also for an output of another caller."""
        handle, stream = str(call.args["handle"]), str(call.args["stream"])
        offset, limit = int(call.args["offset"]), int(call.args["limit"])
        output = self._outputs.get(handle)
        if (
            output is None
            or output.owned_by != (call.agent, call.session, call.owner)
            or stream not in STREAMS
        ):
            raise _gone(handle)
        try:
            data = await asyncio.to_thread(_read, self._path(handle, stream), offset, limit)
        except OSError as err:
            raise _gone(handle) from err
        if offset + len(data) < output.kept_bytes[stream]:
            data = _whole_characters(data)
        kept, total = output.kept_bytes[stream], output.total_bytes[stream]
        end = offset + len(data)
        notes = []
        if end < kept:
            notes.append(f"(more follows: offset={end})")
        elif total > kept:
            notes.append(f"({total - kept} bytes that followed were not kept)")
        if not data:
            notes.insert(0, f"({stream} has {kept} bytes)")
        text = data.decode("utf-8", "replace")
        output_text = text + ("\n" if text and notes and not text.endswith("\n") else "")
        return {
            "kind": "result",
            "output": output_text + "".join(f"{note}\n" for note in notes),
            "metadata": {
                "handle": handle,
                "stream": stream,
                "offset": offset,
                "next_offset": end if end < kept else None,
                "kept_bytes": kept,
                "total_bytes": total,
            },
        }

    async def end_session(self, session: str) -> None:
        """Remove the outputs of a deleted session."""
        for handle in [key for key, one in self._outputs.items() if one.owned_by[1] == session]:
            try:
                await self._drop(handle)
            except OSError as err:
                _log.error("the output %s of a deleted session cannot be removed: %s", handle, err)

    async def _make_room(self, newest: str, agent: str) -> None:
        for handle, output in list(self._outputs.items()):
            of_agent = [one.size_bytes for one in self._outputs.values() if one.owned_by[0] == agent]
            total = sum(one.size_bytes for one in self._outputs.values())
            too_many = sum(of_agent) > self._agent_limit_bytes and output.owned_by[0] == agent
            if handle != newest and (too_many or total > self._total_limit_bytes):
                await self._drop(handle)

    async def _drop(self, handle: str) -> None:
        self._outputs.pop(handle, None)
        for stream in STREAMS:
            await asyncio.to_thread(self._path(handle, stream).unlink, missing_ok=True)

    def _path(self, handle: str, stream: str) -> Path:
        return self._folder / f"{handle}.{stream}"

    def _clear(self) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(self._folder.lstat().st_mode):
                    shutil.rmtree(self._folder, ignore_errors=True)
                else:  # which shutil.rmtree leaves alone, or even waits for if it is a FIFO
                    self._folder.unlink()
            self._folder.mkdir(mode=0o700, parents=True)
        except OSError as err:
            raise StorageError(
                f"{self._folder}, where outputs are to be kept, cannot be cleared: {err.strerror}.",
                suggestion=f"Look at it, and then: rm -r {self._folder}",
            ) from err


def _gone(handle: str) -> NotFound:
    return NotFound(
        f"No output is kept by the handle {handle[:40]!r} for this session.",
        field="handle",
        suggestion="Newer outputs and a restart of the daemon remove old ones; run the command again.",
    )


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""  # this stream had nothing
    try:
        return os.pread(handle, limit, offset)
    finally:
        os.close(handle)


def _whole_characters(data: bytes) -> bytes:
    """The bytes without an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # inside a character
        length = 1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4
        return data[:-back] if back < length and len(data) > back else data
    return data
