"""What a person brings along with a prompt: files named with `@`, and the output of their own commands.

Both are read and run by lactl with the person's rights, never by the daemon, and only where a person types.
They go as attachments, so they count as text from outside.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd.cli.attaching import attachment
from lightagentd.cli.output import cell
from lightagentd.cli.terminal import clean
from lightagentd.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_PATH_BEGINS = ("/", "./", "../", "~/")
_AFTER_WORDS = ".,;:!?)"
_OUTPUT_BYTES = 256 << 10
"""Of a longer output the first and the last half of that are kept."""
_TIMEOUT_S = 3600.0
_SHOWN_LINES = 30
_MERGED = 'exec "$0" -c "$1" 2>&1'
"""Both outputs in the order in which they come; `$0` is the person's shell, whatever its language."""


def named_files(typed: str) -> list[dict[str, str]]:
    """The attachments of the regular files that a typed line names with `@`. A word that is no file, such as
    the name of a person, stays text. Raises NotFound for a path to nothing, and as `attachment`.
    """
    found: dict[str, dict[str, str]] = {}
    for quoted, word in _NAMED.findall(typed):
        names = [quoted] if quoted else [word, word.rstrip(_AFTER_WORDS)]
        paths = [path for name in names if (path := _expanded(name)).is_file()]
        if paths:
            found[str(paths[0])] = attachment(str(paths[0]))
        elif names[0].startswith(_PATH_BEGINS) and not any(_expanded(name).exists() for name in names):
            raise NotFound(
                f"There is no file {cell(names[-1][:200])}.", suggestion="Correct the path after the @."
            )
    return [*found.values()]


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError):
        return Path(name)


async def run_own(chat: Conversation, command: str) -> None:
    """Run a command with the person's shell; its output goes with the next prompt. Raises ToolError."""
    if not command:
        raise InvalidArgument("! needs a command.", suggestion="Write: !COMMAND", field="command")
    from lightagentd.host.process import run  # few chats need it

    shell, progress = os.environ.get("SHELL") or "/bin/sh", chat.transcript.progress
    progress.begin_own(cell(command))
    try:
        done = await run(
            ["/bin/sh", "-c", _MERGED, shell, command],
            timeout_s=_TIMEOUT_S,
            cwd=Path.cwd(),
            env={**os.environ, "TERM": "dumb"},
            limit_bytes=_OUTPUT_BYTES,
            on_output=lambda _, data: progress.output_own(data),
        )
    except asyncio.CancelledError:
        chat.transcript.note(f"· cancelled: {cell(command)}")
        raise
    finally:
        progress.end_own()
    text = clean(await asyncio.to_thread(done.stdout.text)).rstrip("\n")
    status = f"ended by {done.signal}" if done.signal else f"exit status {done.status}"
    lines = text.split("\n") if text else []
    chat.transcript.folded.keep(f"!{command}", f"!{cell(command)}", text)
    if len(lines) > _SHOWN_LINES:
        chat.say(
            f"… {len(lines) - _SHOWN_LINES} lines before these; /output shows all of it",
            *lines[-_SHOWN_LINES:],
        )
    else:
        chat.say(*lines)
    brought = "\n".join([f"$ {clean(command)}", *lines, f"[{status}]"])
    chat.attached.append({"name": f"output of a command, {status}", "text": brought})
    chat.transcript.note(
        f"· {status}, {len(lines)} {'line' if len(lines) == 1 else 'lines'}; goes with the next prompt"
    )
