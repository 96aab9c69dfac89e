"""`lactl shell`: agents at the command line of bash, zsh and fish; `cli.shell_code` is what runs there.

What a model suggests goes into the line of a shell, where Enter runs it. So it is one line of characters that
are all seen, or it is left out with a sentence.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.default_agent import default_agent
from lightagentd.cli.named_file import STANDARD_INPUT, read_file
from lightagentd.cli.options import Command, Group, Settings, agent_names
from lightagentd.cli.output import warn
from lightagentd.cli.shell_code import SHELLS, code
from lightagentd.cli.turn import end_with, watch
from lightagentd.errors import InvalidArgument, SessionNotFound
from lightagentd.quoted import INSTRUCTIONS, quoted
from lightagentd.text.readable import visible, warnings

KEY = "alt-i"
"""A key that means nothing in bash, zsh and fish themselves."""
_HOW = (
    "The answer is shown on a terminal, so be short. If one command line is the next step, end with it alone"
    " in a block that begins with ```sh: it is put into the line, and the person decides whether to run it."
)
_SUGGESTED = re.compile(r"^```(?:sh|shell|bash|zsh|fish)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMAND_BYTES = 16 << 10
_SUGGESTION_CHARS = 2000
_SCREEN_LINES, _SCREEN_CHARS = 500, 16 << 10
_TMUX_S = 5.0


def _key(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"alt-[a-z]|ctrl-[abe-hkln-y]", value):  # no Enter, no Tab, nothing that ends
        raise click.BadParameter("a key is alt- or ctrl- and a letter, such as alt-i.", context, parameter)
    return value


_AGENT = click.option(
    "--agent", metavar="NAME", shell_complete=agent_names, help="The agent to ask, not your default one."
)
_SESSION = click.option("--session", metavar="ID", default="", help="Go on with this session.")


@click.group("shell", cls=Group)
def command() -> None:
    """Ask agents from the command line of bash, zsh or fish: by a key, and by the function ask."""


@command.command("init")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option(
    "--key", metavar="KEY", default=KEY, callback=_key, help=f"alt- or ctrl-LETTER; {KEY} if not given."
)
@_AGENT
def init(shell: str, key: str, agent: str | None) -> None:
    """Print the code that a shell evaluates at its start; 'lactl setup --shell SHELL' adds that line for you.

    \b
      eval "$(lactl shell init bash)"      in ~/.bashrc
      eval "$(lactl shell init zsh)"       in ~/.zshrc
      lactl shell init fish | source       in ~/.config/fish/config.fish

    Then KEY asks an agent why the last command failed, with its exit status and the folder; what the agent
    suggests is put into the line when that is empty, and never run. 'ask WORDS' asks anything else, in the
    same session, and KEY puts what is suggested into the line.

    A shell does not know what a command printed. In tmux the terminal does, and what stands there behind the
    command is sent along, if no other command ran since; elsewhere the agent is not told it. A command that
    begins with a blank, or that the history of the shell has not got, is not sent. Secrets are removed.
    """
    options = f"--agent {shlex.quote(agent)}" if agent else ""
    sys.stdout.write(code(shell, key=key, options=options))


@command.command("ask", cls=Command)
@click.argument("words", nargs=-1, required=True)
@_AGENT
@_SESSION
@click.pass_obj
def ask(settings: Settings, words: tuple[str, ...], agent: str | None, session: str) -> int:
    """Ask an agent, as the function ask of 'lactl shell init' does.

    Where standard output is no terminal, the answer is shown on standard error, and one line is printed: the
    session, a tab, and the suggested command line, if there is one.
    """
    return _ask(settings, {"agent": agent}, session, " ".join(words))


@command.command("explain", cls=Command)
@click.option("--status", metavar="NUMBER", type=int, required=True, help="The exit status of the command.")
@click.option("--capture", is_flag=True, help="Send what the pane of tmux shows behind the command, too.")
@_AGENT
@_SESSION
@click.pass_obj
def explain(settings: Settings, status: int, capture: bool, agent: str | None, session: str) -> int:
    """Ask why the command on standard input failed, as the key of 'lactl shell init' does.

    Nobody is asked to allow a call of the agent: it is refused. The output is that of 'lactl shell ask'.
    """
    from lightagentd.redaction.redactor import Redactor

    given = read_file(STANDARD_INPUT, max_bytes=_COMMAND_BYTES, too_large="Ask in words: ask WORDS")
    text = given.decode("utf-8", "replace").removesuffix("\n")
    if not text.strip() or text[0].isspace():
        raise InvalidArgument(
            "There is no command to ask about: one that begins with a blank is not sent.", field="command"
        )
    redacted = Redactor().text(text)
    shown = f" {redacted}" if "\n" not in redacted else f"\n\n{quoted('sh', redacted)}"
    question = f"Why did this command end with status {status}, in the folder {_folder()}?{shown}"
    asked: dict[str, Any] = {"agent": agent, "unattended": True}
    if capture and (output := Redactor().text(_output(text))):
        asked["attachments"] = [{"name": "output of the command", "text": output}]
    return _ask(settings, asked, session, question)


def _ask(settings: Settings, asked: dict[str, Any], session: str, question: str) -> int:
    """Ask in a session of the shell's own, which is not the person's current one."""
    text = f"{question}\n\n{quoted(INSTRUCTIONS, _HOW)}"
    agent = asked["agent"] or default_agent(settings)
    asked = {**asked, "text": text, "becomes_current": False, "agent": agent}
    captured = -1
    if not settings.json and not sys.stdout.isatty():
        captured = os.dup(sys.stdout.fileno())  # what is shown goes to the terminal all the same
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    turn: dict[str, str] = {}

    def note(event: dict[str, Any]) -> None:
        turn["session"] = event.get("session") or turn.get("session", "")
        if event["type"] == "done":
            turn["text"] = event.get("text") or ""

    metadata = _watched(settings, asked, session, note)
    if captured >= 0:
        sys.stdout.flush()
        line = f"{turn.get('session', '')}\t{_suggestion(turn.get('text', ''))}\n"
        with open(captured, "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor
            out.write(line)
    return end_with(metadata) if captured < 0 else 0


def _watched(
    settings: Settings, asked: dict[str, Any], session: str, note: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The turn in this session, or in a new one when there is none, or it is gone."""
    if session:
        try:
            return watch(settings, "Sessions.Prompt", {**asked, "session": session}, on_event=note)
        except SessionNotFound:
            pass
    return watch(settings, "Sessions.Prompt", {**asked, "new": True}, on_event=note)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "that is gone"


def _suggestion(answer: str) -> str:
    """The command line that an answer ends with, if nothing about it can mislead; else empty, and a warning
    says why.
    """
    found = _SUGGESTED.findall(answer)
    line = found[-1].strip() if found else ""
    if not line:
        return ""
    if "\n" in line:
        why = "it has several lines"
    elif len(line) > _SUGGESTION_CHARS:
        why = f"it has more than {_SUGGESTION_CHARS} characters"
    elif visible(line) != line or not line.isprintable():
        why = f"it has characters that are not seen: {visible(line)}"
    else:
        for warning in warnings({"the suggestion": line}):
            warn(warning)
        return line
    warn(f"The suggestion is not put into the line: {why}.")
    return ""


def _output(command: str) -> str:
    """What this pane of tmux shows behind a command; empty outside of tmux, or if the command is not seen."""
    pane, server = os.environ.get("TMUX_PANE", ""), os.environ.get("TMUX", "")
    if not pane or not server:
        return ""
    from lightagentd.errors import ToolError
    from lightagentd.host.process import run

    argv = ["tmux", "capture-pane", "-p", "-J", "-S", f"-{_SCREEN_LINES}", "-t", pane]
    env = {"TMUX": server, "PATH": os.environ.get("PATH", ""), "TERM": os.environ.get("TERM", "")}
    try:
        done = run_async(run(argv, timeout_s=_TMUX_S, env=env, limit_bytes=1 << 20))
    except ToolError:
        return ""
    return behind(command, done.stdout.text()) if done.status == 0 else ""


def behind(command: str, screen: str) -> str:
    """What a screen shows behind the last line that ends with a command; it may end with the next prompt."""
    lines = [line.rstrip() for line in screen.rstrip().split("\n")]
    first, *more = command.rstrip().split("\n")
    at = [number for number, line in enumerate(lines) if line.endswith(first)]
    if not at:
        return ""
    return "\n".join(lines[at[-1] + 1 + len(more) :])[-_SCREEN_CHARS:]
