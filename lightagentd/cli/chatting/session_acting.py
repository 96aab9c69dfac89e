"""The commands about sessions; `commands` has their names, `acting` the other commands."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.cli.chatting.acting import takes_nothing
from lightagentd.cli.chatting.catching_up import short_lines
from lightagentd.cli.chatting.startup import (
    Opening,
    open_latest,
    open_new,
    opening,
    own_sessions,
    session_line,
)
from lightagentd.cli.layout import cut
from lightagentd.cli.output import cell
from lightagentd.cli.terminal import DIM, in_words, style
from lightagentd.cli.turn_lines import ARGUMENTS_MAX
from lightagentd.errors import (
    ConfirmationRequired,
    Conflict,
    InvalidArgument,
    SessionNotFound,
    StorageError,
)

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_MESSAGES = 20
_MESSAGE_LINES = 40


async def new(chat: Conversation, argument: str) -> None:
    """Begin a session."""
    await chat.open(await open_new(chat.daemon, chat.agent, argument))


async def sessions(chat: Conversation, argument: str) -> None:
    """List the caller's sessions with this agent, or with another."""
    found = await own_sessions(chat.daemon, argument or chat.agent)
    chat.say(*(f"{'*' if each['id'] == chat.session else ' '} {session_line(each)}" for each in found))
    if not found:
        chat.say("There are none.")


async def switch(chat: Conversation, argument: str) -> None:
    """Open another session and make it the current one."""
    found = await chat.daemon.call("Sessions.Switch", session=await _whole(chat, argument, "switch"))
    await chat.open(opening(found))


async def pause(chat: Conversation, argument: str) -> None:
    """Pause the session."""
    takes_nothing(argument, "pause")
    await chat.daemon.call("Sessions.Pause", session=chat.session)
    chat.say("Paused: it takes no prompts until /resume. What runs goes on to its end.")


async def resume(chat: Conversation, argument: str) -> None:
    """Take the session up again."""
    takes_nothing(argument, "resume")
    await chat.daemon.call("Sessions.Resume", session=chat.session)
    chat.say("It takes prompts again.")


async def rename(chat: Conversation, argument: str) -> None:
    """Give the session another title."""
    found = await chat.daemon.call("Sessions.Rename", session=chat.session, title=argument)
    chat.say(f"It is called {cell(found['title'])} now.")


async def fork(chat: Conversation, argument: str) -> None:
    """Go on in a copy."""
    made = await chat.daemon.call("Sessions.Fork", session=chat.session, title=argument or None)
    line = f"A copy of {chat.session}: {made['id']}"
    await chat.open(Opening(session=made, lines=(line,)))


async def delete(chat: Conversation, argument: str) -> None:
    """Delete a session; where there is a conversation, once the person has said that it is meant."""
    words = argument.split()
    meant = not chat.screen.can_ask and words[-1:] == ["yes"]
    name = " ".join(words[:-1] if meant else words)
    session = await _whole(chat, name, "delete") if name else chat.session
    chat.deleting = session
    try:
        if await _is_deleted(chat, session, confirmed=meant):
            chat.say(f"{session} is deleted.")
            if session == chat.session:
                await chat.open(await open_latest(chat.daemon, chat.agent))
        else:
            chat.say("It stays.")
    finally:
        chat.deleting = ""


async def _is_deleted(chat: Conversation, session: str, *, confirmed: bool) -> bool:
    try:
        await chat.daemon.call("Sessions.Delete", session=session, confirmed=confirmed or None)
    except ConfirmationRequired as err:
        if not chat.screen.can_ask:
            err.suggestion = f"If it is meant: /delete {session} yes"
            raise
        chat.say(err.message)
        if not await chat.questions.confirm(f"Delete {session} and all that was said in it?"):
            return False
        await chat.daemon.call("Sessions.Delete", session=session, confirmed=True)
    return True


async def history(chat: Conversation, argument: str) -> None:
    """Show the last messages of the session."""
    if argument and not (argument.isascii() and argument.isdigit() and len(argument) < 5 and int(argument)):
        raise InvalidArgument("/history takes how many messages.", suggestion="Write: /history 20")
    found = await chat.daemon.call(
        "Sessions.Messages", session=chat.session, limit=int(argument or _MESSAGES)
    )
    for message in found:
        chat.show(_message_lines(message, chat.screen.columns))
    if not found:
        chat.say("Nothing was said yet.")


def _message_lines(message: dict[str, Any], columns: int) -> list[str]:
    if message["role"] == "tool":
        first = message["content"].strip().partition("\n")[0]
        return [style(cut(in_words(f"  ← {cell(message['name'])}: {cell(first)}"), ARGUMENTS_MAX), DIM)]
    lines = short_lines(message, _MESSAGE_LINES, columns) if message["content"].strip() else []
    for call in message["tool_calls"]:
        said = in_words(f"  → {cell(call['name'])} {cell(call['arguments'])}")
        lines.append(style(cut(said, ARGUMENTS_MAX), DIM))
    return lines


async def export(chat: Conversation, argument: str) -> None:
    """Write the session to a file of its own, which only the caller may read."""
    kind = "jsonl" if argument.endswith(".jsonl") else "markdown"
    found = await chat.daemon.call("Sessions.Export", session=chat.session, format=kind)
    chat.say(f"Written: {await write_new_file(Path(argument or found['name']), found['text'], 'export')}")


async def write_new_file(path: Path, text: str, command: str) -> Path:
    """Write a file that only the caller may read; gives its whole path. Raises Conflict, StorageError."""
    try:
        return await asyncio.to_thread(_write_new, path.expanduser(), text)
    except FileExistsError as err:
        raise Conflict(
            f"There is a file {path} already.", suggestion=f"Write: /{command} FILE", field="file"
        ) from err
    except (OSError, RuntimeError) as err:  # RuntimeError: there is no such home
        why = err.strerror if isinstance(err, OSError) else ""
        raise StorageError(f"{path} cannot be written: {why or err}.", field="file") from err


def _write_new(path: Path, text: str) -> Path:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode("utf-8", "replace"))
    return path.absolute()


async def _whole(chat: Conversation, name: str, command: str) -> str:
    """The session that is meant: by its id, the beginning of one, or a part of its title."""
    if not name:
        raise InvalidArgument(
            f"/{command} needs a session.", suggestion=f"Write: /{command} SESSION; /sessions lists them."
        )
    found = await chat.daemon.call("Sessions.List")
    own = [each for each in found if each["owner"] == chat.daemon.uid()]
    exact = [each for each in own if each["id"] == name]
    begun = [each for each in own if each["id"].startswith(name) or each["id"].startswith(f"ses_{name}")]
    titled = [each for each in own if name.lower() in each["title"].lower()]
    meant = exact or begun or titled
    if not meant:
        if name.startswith("ses_"):
            return name  # of another user, for an administrator; the daemon says what it is
        raise SessionNotFound(f"You have no session {name[:60]!r}.", suggestion="/sessions lists them.")
    if len(meant) > 1:
        raise InvalidArgument(
            f"{name[:60]!r} may mean {len(meant)} sessions.",
            suggestion=f"Write more: {', '.join(each['id'] for each in meant[:5])}",
        )
    return str(meant[0]["id"])
