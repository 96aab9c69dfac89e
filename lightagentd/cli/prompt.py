"""`lactl prompt`: ask an agent and watch it work."""

from __future__ import annotations

import re
import sys

import click

from lightagentd.cli.options import Command, Settings, agent_argument
from lightagentd.cli.output import warn
from lightagentd.cli.turn import watch
from lightagentd.client import MAX_MESSAGE_BYTES
from lightagentd.errors import InvalidArgument, MessageTooLarge

_FENCE = re.compile(r"^\s*(`{3,})", re.MULTILINE)


@click.command("prompt", cls=Command)
@agent_argument
@click.argument("text", nargs=-1)
@click.option("--new", is_flag=True, help="Begin a new session instead of going on with the latest one.")
@click.option("--session", metavar="ID", help="Go on with this session.")
@click.option("--unattended", is_flag=True, help="Nobody is asked to allow a call: it is refused.")
@click.option("--quiet", "-q", is_flag=True, help="Print the final answer and nothing else.")
@click.pass_obj
def command(
    settings: Settings,
    agent: str,
    text: tuple[str, ...],
    new: bool,
    session: str | None,
    unattended: bool,
    quiet: bool,
) -> None:
    """Ask AGENT something and watch it work.

    Standard input is read too when it is not a terminal: alone it is the prompt, with TEXT it follows the
    text in a block labelled "standard input". In a loop that reads lines, give lactl </dev/null.

    On a terminal the text is streamed, and each tool call is a dim line with its effect and duration. In a
    pipe only the final answer is printed; with --json, every event of the turn as one line. Ctrl-C cancels
    the turn.

    What came from standard input counts as text from outside: from then on the session asks before it
    changes anything or goes to a new host.

    A call that needs to be allowed is shown, and asked about on the terminal if you may allow it; else the
    turn waits until somebody answers, see 'lactl approvals'. With --unattended such a call is refused.
    """
    if new and session:
        raise click.UsageError("--new and --session cannot be used together.")
    prompt, outside = _prompt(text)
    parameters = {
        "agent": agent,
        "text": prompt,
        "outside": outside or None,
        "session": session,
        "new": new or None,
        "unattended": unattended or None,
    }
    watch(settings, "Sessions.Prompt", parameters, quiet=quiet)


def _prompt(words: tuple[str, ...]) -> tuple[str, bool]:
    """The prompt from the arguments and standard input, and whether the latter is in it.

    Raises InvalidArgument or MessageTooLarge.
    """
    text = _text(" ".join(words).encode("utf-8", "surrogateescape"), "The text").strip()
    attached = _text(_standard_input(), "Standard input").rstrip()
    if not attached:
        prompt = text
    elif not text:
        prompt = attached
    else:
        longest = max((len(fence) for fence in _FENCE.findall(attached)), default=2)
        fence = "`" * (longest + 1)
        prompt = f"{text}\n\n{fence}standard input\n{attached}\n{fence}"
    if not prompt.strip():
        raise InvalidArgument(
            "The prompt is empty.",
            suggestion='Write it after the name of the agent, as in: lactl prompt ops "check disk"',
            field="text",
        )
    return prompt, bool(attached)


def _standard_input() -> bytes:
    """All of standard input, unless it is a terminal or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    data = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1)
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"Standard input is larger than {MAX_MESSAGE_BYTES} bytes.",
            suggestion="Send the part that matters, or the name of a file that the agent can read.",
        )
    return data


def _text(data: bytes, what: str) -> str:
    """The bytes as text, with a warning where some of them are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        text = data.decode("utf-8", "replace")
        warn(f"{what} is not UTF-8 at byte {err.start}; what is no text is sent as U+FFFD.")
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
        warn(f"{what} has NUL bytes; each is sent as U+FFFD.")
    return text
