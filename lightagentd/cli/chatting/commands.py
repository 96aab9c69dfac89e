"""The commands of a chat: a line that begins with a slash. A unique beginning of a name is enough.

`acting` and `session_acting` implement them; this table has their names, arguments and completions.
"""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightagentd.cli.chatting import acting, again, looking, session_acting
from lightagentd.errors import InvalidArgument

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_LINE_MAX = 60
_NAME_COLUMNS = 24
"""So wide is the column of the commands in the help."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command. `completes` is the kind of its first argument: session, agent, model, tool, skill, file,
    plan, command or nothing.
    """

    name: str
    takes: str = ""
    help: str
    completes: str = ""
    run: Callable[[Conversation, str], Awaitable[None]]


async def _help(chat: Conversation, argument: str) -> None:
    """The table of the commands, or one of them."""
    if argument:
        one = find(argument.removeprefix("/"))
        chat.say(f"/{one.name} {one.takes}".rstrip(), f"  {one.help}")
        return
    wide = chat.screen.columns >= 60
    for command in COMMANDS:
        used = f"/{command.name} {command.takes}".rstrip()
        beside = wide and len(used) <= _NAME_COLUMNS
        first = f"{used:<{_NAME_COLUMNS}}  " if beside else "  " + " " * (_NAME_COLUMNS if wide else 0)
        chat.say(
            *([] if beside else _wrapped(chat, used, "  ")),
            *_wrapped(chat, first + command.help, " " * len(first)),
        )
    for line in (
        "A unique beginning of a name is enough; a line that is to begin with / or ! begins with two.",
        "!COMMAND runs as you; what it says goes with the next prompt. @FILE in a prompt attaches a file.",
        "Enter sends, Alt-Enter or a backslash at the end begins a new line, Tab completes, Ctrl-R searches.",
        "Ctrl-O is /output, Ctrl-T is /reasoning, Ctrl-X Ctrl-E edits what is typed in your editor.",
        "Ctrl-C cancels the turn and the prompts that wait, Ctrl-D leaves.",
    ):
        chat.say(*_wrapped(chat, line, ""))


def _wrapped(chat: Conversation, line: str, indent: str) -> list[str]:
    """The line within the width of the screen, broken between words; what follows the first is indented."""
    columns = max(chat.screen.columns, len(indent) + 8)
    return textwrap.wrap(line, columns, subsequent_indent=indent, break_on_hyphens=False)


COMMANDS = tuple(
    Command(name=name, takes=takes, completes=completes, run=run, help=text)
    for name, takes, completes, run, text in (
        ("help", "[COMMAND]", "command", _help, "This list."),
        ("new", "[TITLE]", "", session_acting.new, "Begin a new session."),
        ("clear", "", "", again.clear, "Begin a new session on an empty screen; this one stays."),
        ("sessions", "[AGENT]", "agent", session_acting.sessions, "List your sessions."),
        (
            "switch",
            "SESSION",
            "session",
            session_acting.switch,
            "Open another session, by its id or a part of its title.",
        ),
        ("pause", "", "", session_acting.pause, "Take no prompts until /resume."),
        ("resume", "", "", session_acting.resume, "Take a paused session up again."),
        ("rename", "TITLE", "", session_acting.rename, "Give the session another title."),
        ("fork", "[TITLE]", "", session_acting.fork, "Go on in a copy of the session."),
        (
            "delete",
            "[SESSION]",
            "session",
            session_acting.delete,
            "Drop a session and all that was said in it.",
        ),
        ("history", "[NUMBER]", "", session_acting.history, "Show the last messages."),
        ("usage", "", "", acting.usage, "Show what the session used, and its limits."),
        ("agent", "[AGENT]", "agent", again.agent, "List the agents, or talk with another one."),
        ("context", "", "", looking.context, "Show what fills the model's window."),
        ("compact", "", "", looking.compact, "Replace what is older by a summary, for the model."),
        ("model", "[MODEL]", "model", acting.model, "Show the models, or have one asked first."),
        ("tools", "[TOOL]", "tool", acting.tools, "List the tools, or show one."),
        ("skills", "[SKILL]", "skill", acting.skills, "List the skills, or show one."),
        (
            "plan",
            "[on|off|progress|apply|retry|skip|abort|set FILE]",
            "plan",
            acting.plan,
            "Plan mode: draft a plan, look at it, apply it.",
        ),
        ("approve", "[ID] [NOTE]", "", acting.approve, "Allow the call that is asked about."),
        ("confirm", "[CALL]", "", acting.confirm, "Keep a change that takes itself back otherwise."),
        ("deny", "[ID] [NOTE]", "", acting.deny, "Refuse the call that is asked about."),
        ("answer", "[ID] TEXT", "", acting.answer, "Answer what the agent asks."),
        ("undo", "[CALL]", "", acting.undo, "Take back what a call changed in a file."),
        (
            "export",
            "[FILE]",
            "file",
            session_acting.export,
            "Write the session to a file: Markdown, or JSONL if its name ends so.",
        ),
        ("retry", "[MODEL]", "model", again.retry, "Send the last prompt again, also to another model."),
        (
            "edit",
            "[TEXT]",
            "",
            again.edit,
            "Edit a text, or the last prompt, in $VISUAL or $EDITOR and send it.",
        ),
        (
            "copy",
            "[NUMBER] [FILE]",
            "file",
            looking.copy,
            "Copy the last answer, or its NUMBERth block of code, to the clipboard or to a file.",
        ),
        ("output", "[CALL]", "", looking.output, "Show all that a call gave: the last one, or CALL."),
        (
            "reasoning",
            "[on|off]",
            "",
            looking.reasoning,
            "Show what the model thought, or have that shown while it comes.",
        ),
        ("attach", "FILE", "file", acting.attach, "Send a file along with the next prompt."),
        ("exit", "", "", acting.exit_, "Leave; a turn that runs goes on."),
    )
)


def parse(line: str) -> str | tuple[Command, str]:
    """A prompt, or a command and its argument. Raises InvalidArgument for an unknown command."""
    text = line.strip()
    if not text.startswith("/"):
        return line
    if text.startswith("//"):
        return line.replace("//", "/", 1)
    word, _, argument = text[1:].partition(" ")
    return find(word), argument.strip()


def find(word: str) -> Command:
    """The command that a word begins. Raises InvalidArgument."""
    found = [command for command in COMMANDS if word and command.name.startswith(word)]
    exact = [command for command in found if command.name == word]
    if exact or len(found) == 1:
        return (exact or found)[0]
    if found:
        names = " ".join(f"/{command.name}" for command in found)
        raise InvalidArgument(f"/{word} may be: {names}", suggestion="Write more of it.", field="command")
    import difflib  # few lines need it

    near = difflib.get_close_matches(word, [command.name for command in COMMANDS], n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(f'/{name}' for name in near)}? " if near else ""
    raise InvalidArgument(
        f"There is no command /{word[:_LINE_MAX]}.",
        suggestion=f"{hint}/help lists them; a line that is to begin with a slash begins with two.",
        field="command",
    )
