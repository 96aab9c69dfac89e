"""`lactl prompt`: ask an agent and watch it work."""

from __future__ import annotations

import sys
from typing import Any

import click

from lightagentd import errors
from lightagentd.cli.attaching import attachments
from lightagentd.cli.choosing import choosing, chosen
from lightagentd.cli.deadline import SECONDS
from lightagentd.cli.named_file import STANDARD_INPUT, read_once
from lightagentd.cli.options import Command, Settings, agent_argument
from lightagentd.cli.output import told, warn
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.cli.turn import end_with, watch
from lightagentd.client.blocking import MAX_MESSAGE_BYTES
from lightagentd.errors import InvalidArgument, MessageTooLarge
from lightagentd.quoted import STANDARD_INPUT as INPUT_LABEL
from lightagentd.quoted import quoted


@click.command("prompt", cls=Command)
@agent_argument
@click.argument("text", nargs=-1)
@click.option(
    "--attach", "-a", "files", metavar="FILE", multiple=True, type=click.Path(), help="Send a file along."
)
@click.option("--new", is_flag=True, help="Begin a new session instead of going on with the current one.")
@click.option("--session", metavar="SESSION", shell_complete=session_ids, help="Go on with this session.")
@click.option(
    "--wait/--no-wait", default=True, help="Wait for the answer, or only until the prompt is stored."
)
@click.option(
    "--timeout", "timeout_s", metavar="SECONDS", type=SECONDS, help="Wait no longer; the turn goes on."
)
@click.option(
    "--unattended",
    is_flag=True,
    help="Nobody is asked to allow a call: it is refused. Your current session stays.",
)
@choosing
@click.option("--show-reasoning", is_flag=True, help="Show all that the model thinks.")
@click.option("--quiet", "-q", is_flag=True, help="Print the final answer and nothing else.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    agent: str,
    text: tuple[str, ...],
    files: tuple[str, ...],
    new: bool,
    session: str | None,
    wait: bool,
    timeout_s: float | None,
    unattended: bool,
    show_reasoning: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Ask AGENT something and watch it work.

    Standard input is read too when it is not a terminal: alone it is the prompt, with TEXT it follows the
    text in a block labelled "standard input". In a loop that reads lines, give lactl </dev/null.

    Each --attach FILE follows, in the order given, in a block labelled with the name of the file. lactl
    reads it, so it must be readable for you, and text; a pipe such as <(dmesg) will do, and '-a -' attaches
    standard input in that place. A prompt takes 32 files of 1 MiB each, 4 MiB together
    (limits.max_attachment_bytes), and 12 MiB in all (limits.max_prompt_bytes), and needs a question.

    On a terminal the text is laid out as it comes, with a dim line for each tool call and the beginning of
    what the model thinks (all of it with --show-reasoning). In a pipe only the final answer is printed; with
    --json, every event of the turn as one line. Ctrl-C cancels the turn.

    With --no-wait the ids of session and turn are printed once the prompt is stored, and the turn goes on by
    itself; so it does after --timeout, with exit status 124. 'lactl wait SESSION' waits for its end, 'lactl
    cancel SESSION' ends it.

    What came from standard input or a file counts as text from outside: from then on the session asks before
    it changes anything or goes to a new host.

    A call that needs to be allowed is shown, and asked about on the terminal if you may allow it: y allows
    it, n refuses it, with a reason for the agent if you write one, v shows all of what is folded. Else the
    turn waits until somebody answers, see 'lactl approvals'. With --unattended such a call is refused.

    --model, --tools, --effects, --max-steps and --schema are for this one turn, and only take away: from the
    agents that it asks, too. With --schema the answer is JSON that fits FILE; --json tells what it cost.

    With --hosts several machines are asked at once, each for --timeout or 300 seconds, and a table says how
    each ended; the answers follow. A turn that waits for a person is left waiting.

    SESSION is an id, the beginning of one, or the name of an agent for your current session with it. The
    exit status is 4 when a skill answers that what TEXT names, such as a unit, is not there.
    """
    _check(new_in_session=new and bool(session), timeout_without_wait=not wait and timeout_s is not None)
    parameters = {"agent": _named(settings, agent), **_asked(text, files), **chosen(**options)}
    parameters |= {"new": new or None, "unattended": unattended or None}
    parameters["session"] = whole_session(settings, session) if session else None
    if settings.hosts:
        return _several(settings, parameters, timeout_s, alone=not wait or show_reasoning or quiet)
    if not wait:
        return _send(settings, parameters, quiet=quiet)
    shows: dict[str, Any] = {"quiet": quiet, "thoughts": show_reasoning, "raw": bool(options["schema_file"])}
    return end_with(watch(settings, "Sessions.Prompt", parameters, timeout_s=timeout_s, **shows))


def _named(settings: Settings, agent: str) -> str:
    """The agent that is asked: the default one where the command line is words alone."""
    if not settings.asks_default:
        return agent
    from lightagentd.cli.default_agent import default_agent

    return default_agent(settings)


def _asked(text: tuple[str, ...], files: tuple[str, ...]) -> dict[str, Any]:
    """The prompt with its attachments. Raises as `_prompt` and `attachments` do."""
    prompt, outside = _prompt(text, attached=STANDARD_INPUT in files, needed=bool(files))
    return {"text": prompt, "outside": outside or None, "attachments": attachments(files) or None}


def _check(*, new_in_session: bool, timeout_without_wait: bool) -> None:
    if new_in_session:
        raise click.UsageError("--new and --session cannot be used together.")
    if timeout_without_wait:
        raise click.UsageError("--no-wait and --timeout cannot be used together.")


def _several(settings: Settings, parameters: dict[str, Any], timeout_s: float | None, *, alone: bool) -> int:
    """Ask several hosts; `alone` says that an option is given that only one can have."""
    if alone:
        raise click.UsageError("--hosts goes without --session, --no-wait, --show-reasoning and --quiet.")
    from lightagentd.cli import several  # only here: it imports asyncio

    return several.prompt(settings, parameters, timeout_s)


def _send(settings: Settings, parameters: dict[str, Any], *, quiet: bool) -> int:
    """Prompt, and say where the turn is; its first event comes when the prompt is stored."""
    with settings.client() as client:
        event = next(client.stream("Sessions.Prompt", **parameters))["event"]
    if event["type"] == "error":
        raise errors.from_dict(event)
    session, trace = event["session"], event["trace_id"]
    if settings.json or not quiet:
        sentence = f"The prompt is stored, as {trace} in {session}. Its answer shows: lactl wait {session}"
        told(settings, {"session": session, "trace_id": trace}, sentence, session, trace)
    return 0


def _prompt(words: tuple[str, ...], *, attached: bool, needed: bool) -> tuple[str, bool]:
    """The prompt from the arguments and standard input, and whether the latter is in it.

    When standard input is `attached` it is left alone; `needed` says that there are attachments, which need
    a question. Raises InvalidArgument or MessageTooLarge.
    """
    text = _text(" ".join(words).encode("utf-8", "surrogateescape"), "The text").strip()
    piped = "" if attached else _text(_standard_input(), "Standard input").rstrip()
    if not piped:
        prompt = text
    elif not text:
        prompt = piped
    else:
        prompt = f"{text}\n\n{quoted(INPUT_LABEL, piped)}"
    if not prompt.strip():
        raise InvalidArgument(
            "The prompt has attachments and no text." if needed else "The prompt is empty.",
            suggestion='Write it after the name of the agent, as in: lactl prompt ops "check disk"'
            if not needed
            else 'Say what to do with them, as in: lactl prompt AGENT "what is wrong here?" -a FILE',
            field="text",
        )
    return prompt, bool(piped)


def _standard_input() -> bytes:
    """All of standard input, unless it is a terminal or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    data = read_once(sys.stdin.buffer, MAX_MESSAGE_BYTES + 1)
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"Standard input is larger than {MAX_MESSAGE_BYTES} bytes.",
            suggestion="Send the part that matters, or the name of a file that the agent can read.",
        )
    return data


def _text(data: bytes, what: str) -> str:
    """The bytes as text, with a warning for invalid ones."""
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        text = data.decode("utf-8", "replace")
        warn(f"{what} is not UTF-8 at byte {err.start + 1}; invalid bytes are sent as U+FFFD.")
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
        warn(f"{what} has NUL bytes; each is sent as U+FFFD.")
    return text
