"""The commands of a chat: a line that begins with a slash. A unique beginning of a name is enough.

What a command does is in `acting` and `session_acting`; here is what it is called, takes and completes.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightagentd.cli.chatting import acting, session_acting
from lightagentd.errors import InvalidArgument

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_LINE_MAX = 60


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command. `completes` is what its first argument is: session, agent, tool, skill, file, plan,
    command or nothing.
    """

    name: str
    takes: str = ""
    help: str
    completes: str = ""
    run: Callable[[Conversation, str], Awaitable[None]]


COMMANDS = (
    Command(name="help", takes="[COMMAND]", help="This list.", completes="command", run=acting.help_),
    Command(name="new", takes="[TITLE]", help="Begin a new session.", run=session_acting.new),
    Command(
        name="sessions",
        takes="[AGENT]",
        help="List your sessions.",
        completes="agent",
        run=session_acting.sessions,
    ),
    Command(
        name="switch",
        takes="SESSION",
        help="Open another session, by its id or a part of its title.",
        completes="session",
        run=session_acting.switch,
    ),
    Command(name="pause", help="Take no prompts until /resume.", run=session_acting.pause),
    Command(name="resume", help="Take a paused session up again.", run=session_acting.resume),
    Command(name="rename", takes="TITLE", help="Give the session another title.", run=session_acting.rename),
    Command(name="fork", takes="[TITLE]", help="Go on in a copy of the session.", run=session_acting.fork),
    Command(
        name="delete",
        takes="[SESSION]",
        help="Drop a session and all that was said in it.",
        completes="session",
        run=session_acting.delete,
    ),
    Command(name="history", takes="[NUMBER]", help="Show the last messages.", run=session_acting.history),
    Command(name="usage", help="Show what the session used, and its limits.", run=acting.usage),
    Command(
        name="model", takes="[AGENT]", help="Show the agent's model.", completes="agent", run=acting.model
    ),
    Command(
        name="tools", takes="[TOOL]", help="List the tools, or show one.", completes="tool", run=acting.tools
    ),
    Command(
        name="skills",
        takes="[SKILL]",
        help="List the skills, or show one.",
        completes="skill",
        run=acting.skills,
    ),
    Command(
        name="plan",
        takes="[on|off|progress|apply|retry|skip|abort|set FILE]",
        help="Plan mode: draft a plan, look at it, apply it.",
        completes="plan",
        run=acting.plan,
    ),
    Command(
        name="approve", takes="[ID] [NOTE]", help="Allow the call that is asked about.", run=acting.approve
    ),
    Command(name="deny", takes="[ID] [NOTE]", help="Refuse the call that is asked about.", run=acting.deny),
    Command(name="answer", takes="[ID] TEXT", help="Answer what the agent asks.", run=acting.answer),
    Command(name="undo", takes="[CALL]", help="Take back what a call changed in a file.", run=acting.undo),
    Command(
        name="export",
        takes="[FILE]",
        help="Write the session to a file: Markdown, or JSONL if its name ends so.",
        completes="file",
        run=session_acting.export,
    ),
    Command(
        name="attach",
        takes="FILE",
        help="Send a file along with the next prompt.",
        completes="file",
        run=acting.attach,
    ),
    Command(name="exit", help="Leave; a turn that runs goes on.", run=acting.exit_),
)


def parse(line: str) -> str | tuple[Command, str]:
    """A prompt, or a command and its argument. Raises InvalidArgument for a command that there is not."""
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
    near = difflib.get_close_matches(word, [command.name for command in COMMANDS], n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(f'/{name}' for name in near)}? " if near else ""
    raise InvalidArgument(
        f"There is no command /{word[:_LINE_MAX]}.",
        suggestion=f"{hint}/help lists them; a line that is to begin with a slash begins with two.",
        field="command",
    )
