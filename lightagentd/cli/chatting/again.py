"""The commands that prompt again, and those that begin somewhere else."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from lightagentd.cli.chatting.acting import takes_nothing
from lightagentd.cli.chatting.looking import newest
from lightagentd.cli.chatting.startup import Opening, open_latest, open_new
from lightagentd.cli.output import cell
from lightagentd.errors import InvalidArgument

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation


async def retry(chat: Conversation, argument: str) -> None:
    """Send the last prompt again, with what was attached to it; this once to another model."""
    text, attached = await _last(chat)
    await chat.typed.send(text, attached, model=argument)


async def edit(chat: Conversation, argument: str) -> None:
    """Edit a text or the last prompt with the person's editor, and send it."""
    text, again = (argument, []) if argument else await _last(chat)
    edited = await chat.screen.suspended(partial(edited_text, text))
    if not edited or not edited.strip():
        chat.say("It was not saved, so nothing is sent.")
        return
    attached, chat.attached = [*again, *chat.attached], []
    await chat.typed.send(edited.rstrip("\n"), attached)


async def _last(chat: Conversation) -> tuple[str, list[dict[str, str]]]:
    """The last prompt, and what was attached to it. In one that was sent elsewhere that is in the text."""
    return chat.sent or ((await newest(chat, "user"))["content"], [])


def edited_text(text: str) -> str | None:
    """What an editor makes of a text; None if it was not saved. Raises InvalidArgument."""
    try:
        return click.edit(text, extension=".md")
    except click.ClickException as err:
        raise InvalidArgument(
            err.message, suggestion="Set $VISUAL or $EDITOR to your editor.", field="editor"
        ) from err


async def clear(chat: Conversation, argument: str) -> None:
    """Begin a new session on an empty screen; the former one stays."""
    takes_nothing(argument, "clear")
    before, opening = chat.session, await open_new(chat.daemon, chat.agent)
    chat.screen.wipe()
    line = f"The former one stays; back with: /switch {before}"
    await chat.open(Opening(session=opening.session, lines=(*opening.lines, line)))


async def agent(chat: Conversation, argument: str) -> None:
    """List the agents, or go on with another one, in your current session with it."""
    if not argument:
        for one in await chat.daemon.call("Agents.List"):
            mark = "*" if one["name"] == chat.agent else " "
            chat.say(
                f"{mark} {cell(one['name'])}  {cell(one['model'])}  {cell(one['description'])}".rstrip(" -")
            )
        return
    found = await chat.daemon.call("Agents.Get", name=argument)
    await chat.open(await open_latest(chat.daemon, found["name"]))
