"""The commands that show again what was folded, copy what was said, and tell what fills the context."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.cli.chatting.acting import takes_nothing
from lightagentd.cli.chatting.session_acting import write_new_file
from lightagentd.cli.output import cell
from lightagentd.cli.question import page
from lightagentd.cli.terminal import clean
from lightagentd.cli.when import size
from lightagentd.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_LOOKED_AT = 100
_PAGED_LINES = 200
"""More lines than that are shown in the pager, where there is one."""
CLIPBOARD_BYTES = 74_994
"""Terminals take no longer text by OSC 52: 100,000 bytes in Base64 with the sequence."""


async def output(chat: Conversation, argument: str) -> None:
    """The whole output of a call."""
    name, text = chat.transcript.folded.find(argument)
    await _show_whole(chat, f"{name}:", text if text.strip() else "(no output)")


async def reasoning(chat: Conversation, argument: str) -> None:
    """What the model thought last, or whether its thoughts are shown as they come."""
    if argument in ("on", "off"):
        chat.transcript.shows_thoughts = argument == "on"
        chat.say(f"The model's reasoning is {'shown' if argument == 'on' else 'folded'} from now on.")
    elif argument:
        raise InvalidArgument("/reasoning takes on, off or nothing.", suggestion="Write: /reasoning")
    elif chat.transcript.thinking is not None:
        chat.transcript.shows_thoughts = not chat.transcript.shows_thoughts
    elif not chat.transcript.folded.thoughts:
        chat.say("The model has told no reasoning here.")
    else:
        await _show_whole(chat, "The reasoning before the last answer:", chat.transcript.folded.thoughts)


async def _show_whole(chat: Conversation, head: str, text: str) -> None:
    lines = [head, *clean(text).strip("\n").split("\n")]
    if len(lines) > _PAGED_LINES and chat.screen.can_ask and chat.screen.can_redraw:
        await chat.screen.suspended(partial(page, lines))
    else:
        chat.say(*lines)


async def copy(chat: Conversation, argument: str) -> None:
    """Copy the last answer, or a block of code in it, to the clipboard of the terminal or to a new file."""
    word, _, rest = argument.partition(" ")
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 4 else None
    path = rest.strip() if number is not None else argument
    text = (await newest(chat, "assistant"))["content"]
    if number is not None:
        blocks = _code(text)
        if not 0 < number <= len(blocks):
            raise NotFound(
                f"The last answer has {len(blocks)} blocks of code.", suggestion="Write: /copy NUMBER"
            )
        text = blocks[number - 1]
    text, what = clean(text), "The answer" if number is None else f"The block of code {number}"
    if path:
        chat.say(f"Written: {await write_new_file(Path(path), text, 'copy')}")
        return
    length = len(text.encode("utf-8", "replace"))
    if length > CLIPBOARD_BYTES or not chat.screen.copy(text):
        why = "is too long for" if length > CLIPBOARD_BYTES else "cannot be put into"
        raise InvalidArgument(f"{what} {why} the clipboard of a terminal.", suggestion="Write: /copy FILE")
    chat.say(f"{what} ({size(length)}) is in the clipboard, if the terminal allows that (OSC 52).")


def _code(text: str) -> list[str]:
    from lightagentd.cli.markdown import parser

    return [token.content for token in parser().parse(text) if token.type in ("fence", "code_block")]


async def newest(chat: Conversation, role: str) -> dict[str, Any]:
    """The newest message of a role with a text. Raises NotFound."""
    found = await chat.daemon.call("Sessions.Messages", session=chat.session, limit=_LOOKED_AT)
    for message in reversed(found):
        if message["role"] == role and message["content"].strip():
            return dict(message)
    what = "no answer" if role == "assistant" else "no prompt"
    raise NotFound(f"There is {what} yet.", suggestion="Type what you want to ask.")


async def context(chat: Conversation, argument: str) -> None:
    """What fills the model's window."""
    takes_nothing(argument, "context")
    found = await chat.daemon.call("Sessions.Context", session=chat.session)
    window = found["window_tokens"]
    rows = [
        ("system prompt", found["system_tokens"]),
        (f"tools ({found['functions']})", found["function_tokens"]),
        (f"messages ({found['messages']})", found["message_tokens"]),
    ]
    rows += [("left", max(0, window - found["tokens"]))] if window else []
    chat.say(
        f"{cell(found['model'])}: about {found['tokens']:,} tokens"
        + (f" of {window:,}{'' if found['window_known'] else ' (a guess)'}." if window else "."),
        *(
            f"  {name:<18}{tokens:>11,}" + (f"  {tokens / window:4.0%}" if window else "")
            for name, tokens in rows
        ),
    )
    if window:
        chat.say(f"It is compacted at {found['compact_at_tokens']:,}; /compact does that now.")


async def compact(chat: Conversation, argument: str) -> None:
    """Have the older part of the conversation replaced by a summary, for the model."""
    takes_nothing(argument, "compact")
    found = await asyncio.shield(chat.daemon.call("Sessions.Compact", session=chat.session))
    if not found["removed"]:
        chat.say("There is nothing to compact: only the newest turn is in the context.")
