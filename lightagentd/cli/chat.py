"""`lactl chat`: a conversation with an agent on a terminal."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from lightagentd.cli.options import AGENT, Command, Settings
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.cli.terminal import be_plain, is_dumb, is_terminal


@click.command("chat", cls=Command)
@click.argument("agent", required=False, **AGENT)
@click.option("--session", metavar="ID", shell_complete=session_ids, help="Open this session.")
@click.option("--new", is_flag=True, help="Begin a new session.")
@click.option("--plain", is_flag=True, help="For screen readers: only lines, with words for signs.")
@click.pass_obj
def command(settings: Settings, agent: str | None, session: str | None, new: bool, plain: bool) -> int:
    """Talk with AGENT, or with your default agent, on a terminal.

    With no session yet a chat makes one. With exactly one earlier session it opens that one. Else it keeps
    your current one and lists the rest. A session that is opened shows its last few messages.

    A chat on the terminal shows what the model thinks and what commands print while they run, and folds that
    afterwards: /output and /reasoning show it whole. A line that begins with ! is a command that runs as you;
    what it prints goes with the next prompt, and so do files that a prompt names as @FILE. The line below
    what you type tells of the session. A bell rings when a turn ends or asks while you look elsewhere, or
    after 10 seconds ($LIGHTAGENT_BELL: other seconds, or off). $LIGHTAGENT_THEME is dark or light.

    Enter sends what you typed, also while a turn runs: it waits for its turn. Alt-Enter, or a backslash at
    the end of the line, begins a new line. Ctrl-C cancels the turn and the prompts that wait, and Ctrl-D on
    an empty line leaves; a turn that runs then goes on. What needs your yes is asked where you type.

    A line that begins with a slash is a command: /help lists them, and a unique beginning of a name is
    enough. A line that is to begin with a slash begins with two. Tab completes commands, sessions, agents,
    tools, skills and files.

    Several can watch and prompt one session. When the daemon is started again, the chat goes on with what
    was missed. What you typed is kept in $XDG_STATE_HOME/lightagent/chat_history.

    On a terminal that cannot move its cursor (TERM=dumb) lines come one after the other. Where standard
    input is no terminal each line is a prompt, or a command, and the exit status is that of the last turn.
    """
    if settings.json:
        raise click.UsageError(
            "A chat is for people, so --json has no meaning there; 'lactl prompt --json' is for programs."
        )
    if new and session:
        raise click.UsageError("--new and --session cannot be used together.")
    if not agent:
        from lightagentd.cli.default_agent import default_agent

        agent = default_agent(settings)
    about = settings.call("Agents.Get", name=agent)  # asks for a password while the terminal is still free
    whole = whole_session(settings, session) if session else ""
    if plain:
        be_plain()
    can_draw = is_terminal() and sys.stdin is not None and sys.stdin.isatty()
    return _chat(settings, about, whole, new=new, draws=can_draw and not is_dumb())


def _chat(settings: Settings, about: dict[str, Any], session: str, *, new: bool, draws: bool) -> int:
    from lightagentd.cli.asynchronous import run as run_async
    from lightagentd.cli.chatting.conversation import Conversation
    from lightagentd.cli.chatting.daemon import Daemon
    from lightagentd.cli.chatting.line_screen import LineScreen
    from lightagentd.cli.chatting.screen import Screen
    from lightagentd.cli.chatting.startup import open_first

    async def chat() -> int:
        screen: Screen
        if draws:
            from lightagentd.cli.chatting.prompt_screen import PromptScreen

            screen = PromptScreen()
        else:
            screen = LineScreen()
        daemon = Daemon(settings, screen)
        opening = await open_first(daemon, about, session, new=new)
        return await Conversation(screen, daemon, about["name"]).run(opening)

    try:
        return run_async(chat())
    except (OSError, ExceptionGroup) as err:  # also one that ends a task of the chat: output is unwritable
        failed = err.subgroup(OSError) if isinstance(err, ExceptionGroup) else err
        if failed is None:
            raise
        if isinstance(_first(failed), BrokenPipeError):
            signal.raise_signal(signal.SIGPIPE)  # its reader left: end quietly
        raise _first(failed) from (None if failed is err else err)


def _first(failed: BaseException) -> BaseException:
    """The first exception in a group, or the exception itself."""
    return _first(failed.exceptions[0]) if isinstance(failed, BaseExceptionGroup) else failed
