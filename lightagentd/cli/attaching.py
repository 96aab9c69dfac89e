"""Reads attachments with the rights of the user who runs lactl; the daemon opens no file for a prompt.

The daemon enforces the limit (`limits.max_attachment_bytes`); a file larger than any daemon accepts is not
read.
"""

from __future__ import annotations

import os
import select
import stat
import sys

from lightagentd.cli.named_file import STANDARD_INPUT, read_once, shown, unreadable
from lightagentd.errors import AttachmentInvalid, AttachmentTooLarge, InvalidArgument
from lightagentd.limits import MAX_ATTACHMENTS, MAX_MESSAGE_BYTES

MAX_BYTES = MAX_MESSAGE_BYTES // 4
"""The largest that `limits.max_attachment_bytes` may be."""
SILENCE_S = 30.0
"""How long a pipe may give nothing."""
_NAME_CHARS = 255
_CHUNK_BYTES = 1 << 16


def attachments(paths: tuple[str, ...]) -> list[dict[str, str]]:
    """The `api.Attachment` of each path, in their order; `-` is standard input.

    Raises `unreadable`, InvalidArgument, AttachmentInvalid, AttachmentTooLarge.
    """
    if len(paths) > MAX_ATTACHMENTS:
        raise AttachmentTooLarge(
            f"{len(paths)} files are attached; a prompt may have {MAX_ATTACHMENTS}.",
            suggestion="Attach fewer, or name the folder that the agent is to read.",
            field="attachments",
        )
    if paths.count(STANDARD_INPUT) > 1:
        raise InvalidArgument(
            "Standard input is attached twice.", suggestion="Write '-a -' once.", field="attachments"
        )
    return [attachment(path) for path in paths]


def attachment(path: str) -> dict[str, str]:
    """The `api.Attachment` of one path. Raises the same errors as `attachments`."""
    if path == STANDARD_INPUT:
        name, data = "standard input", _standard_input()
    else:
        name, data = name_of(path), _read(path)
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        raise AttachmentInvalid(
            f"{shown(path)} is binary: it is not UTF-8 at byte {err.start + 1}.",
            suggestion="Attach text, or name the file, so that the agent reads it with its tools.",
            field="attachments",
        ) from err
    return {"name": name, "text": text}


def name_of(path: str) -> str:
    """The last part of a path; characters that cannot be shown become U+FFFD."""
    name = path.rstrip("/").rpartition("/")[2]
    return "".join(char if char.isprintable() else "\ufffd" for char in name)[:_NAME_CHARS]


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        what = "closed" if sys.stdin is None else "a terminal"
        raise InvalidArgument(
            f"Standard input is {what}, so it cannot be attached.",
            suggestion="Give it a file or a pipe, as in: dmesg | lactl prompt ops -a - 'what is wrong?'",
            field="attachments",
        )
    data = read_once(sys.stdin.buffer, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _too_large(STANDARD_INPUT)
    return data


def _read(path: str) -> bytes:
    """All of a file or pipe. Raises `unreadable`, InvalidArgument, AttachmentTooLarge."""
    try:
        # Without O_NONBLOCK the opening of a pipe that nobody writes to would not return (fifo(7)).
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as err:
        raise unreadable(path, err, field="attachments") from err
    try:
        info = os.fstat(handle)
        if stat.S_ISREG(info.st_mode) and info.st_size > MAX_BYTES:
            raise _too_large(path, info.st_size)
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISFIFO(info.st_mode)):
            folder = stat.S_ISDIR(info.st_mode)
            raise InvalidArgument(
                f"{path} is a {'folder' if folder else 'device'}, so it cannot be attached.",
                suggestion="Attach the files in it that matter, or name it in the prompt."
                if folder
                else "Attach a file or a pipe.",
                field="attachments",
            )
        return _read_all(handle, path)
    except OSError as err:
        raise unreadable(path, err, field="attachments") from err
    finally:
        os.close(handle)


def _read_all(handle: int, path: str) -> bytes:
    data = bytearray()
    while True:
        if not select.select([handle], [], [], SILENCE_S)[0]:
            raise InvalidArgument(
                f"{path} is a pipe, and it gave nothing for {SILENCE_S:g} seconds.",
                suggestion="See that what writes to it runs, and ends.",
                field="attachments",
            )
        chunk = os.read(handle, _CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > MAX_BYTES:
            raise _too_large(path)


def _too_large(path: str, size: int = 0) -> AttachmentTooLarge:
    length = f"has {size} bytes" if size else f"has more than {MAX_BYTES} bytes"
    return AttachmentTooLarge(
        f"{shown(path)} {length}; an attachment may have 1 MiB, or as much as the configuration says.",
        suggestion="Attach the part that matters, or name a file that the agent can read.",
        field="attachments",
    )
