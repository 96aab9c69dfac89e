"""`lactl memory`: the agents' memories of the caller, and the caller's profile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from lightagentd.cli.named_file import read_file, shown
from lightagentd.cli.options import Group, Settings, agent_names, names_of
from lightagentd.cli.output import Columns, as_json, cell, listing, print_json, say
from lightagentd.cli.question import visible
from lightagentd.cli.short_id import Ids
from lightagentd.cli.terminal import BOLD, DIM, is_terminal, style
from lightagentd.cli.when import ago, local
from lightagentd.errors import InvalidArgument, MemoryNotFound
from lightagentd.host.users import called

_IDS = Ids(
    prefix="mem_",
    noun="memory",
    nouns="memories",
    missing=MemoryNotFound,
    method="Memory.List",
    hint="lactl memory list --state=all",
)
_MAX_LISTED = 1000
_DAY_S = 86_400
_COLUMNS: Columns = {
    "ID": "id",
    "STATE": "state",
    "AGENT": "agent",
    "SOURCE": "source",
    "SURE": lambda each: f"{each['confidence']:g}",
    "UPDATED": lambda each: ago(each["updated_us"]),
    "TAGS": "tags",
    "TEXT": "text",
}
_SCOPES = ("user", "agent", "session", "team", "machine")
_READERS = {"team": "those of your agents that read the pool", "machine": "the agents of all users"}
_agent = click.option("--agent", metavar="NAME", shell_complete=agent_names, help="Only for this agent.")


memory_ids = names_of(_IDS.method, "id", state="all", limit=_MAX_LISTED)


@click.group("memory", cls=Group)
def command() -> None:
    """See and decide what agents remember of you.

    What is kept stands in the system prompts of your agents. What an agent wants to keep from a
    conversation with text from outside in it is a candidate: no agent reads it until you promote it.
    """


@command.command("list")
@_agent
@click.option(
    "--state",
    type=click.Choice(["kept", "candidate", "rejected", "all"]),
    default="kept",
    show_default=True,
    help="Which ones.",
)
@click.option("--scope", type=click.Choice(_SCOPES), help="Only of this scope.")
@click.option(
    "--limit", type=click.IntRange(1, _MAX_LISTED), default=100, show_default=True, help="How many."
)
@click.pass_obj
def list_memories(settings: Settings, agent: str | None, state: str, scope: str | None, limit: int) -> None:
    """List what is remembered, newest first.

    The columns: id, state, agent (- for all), source, confidence, last change, tags, text.
    """
    _show(settings, settings.call("Memory.List", agent=agent, state=state, limit=limit, scope=scope))


@command.command("show")
@click.argument(
    "memory", metavar="ID", shell_complete=names_of(_IDS.method, "id", state="all", limit=_MAX_LISTED)
)
@click.pass_obj
def show(settings: Settings, memory: str) -> None:
    """Show one memory: what it says, whose word it is, where it comes from, and who promoted it.

    ID may be cut short as long as it is the only one that begins so.
    """
    found = settings.call("Memory.Get", memory=_whole_ids(settings, (memory,))[0])
    if settings.json:
        print_json(found)
        return
    facts = {
        "Id": found["id"],
        "State": found["state"],
        "For": found["agent"] or _READERS.get(found["scope"], "all your agents"),
        "Namespace": found["namespace"],
        "Said by": called(found["said_by"]),
        "Source": found["source"],
        "Agent": found["from_agent"],
        "Session": found["session"],
        "Trace": found["trace_id"],
        "Proposed": found["proposed_why"] and f"because {found['proposed_why']}",
        "Promoted": found["promoted_us"]
        and f"by {called(found['promoted_by'])}, {local(found['promoted_us'])}",
        "Because": found["promoted_why"],
        "Confidence": f"{found['confidence']:g}",
        "Made": local(found["created_us"]),
        "Changed": local(found["updated_us"]),
        "Expires": found["expires_us"] and local(found["expires_us"]),
        "Tags": " ".join(found["tags"]),
        "Text": found["text"],
    }
    for name, value in facts.items():
        if value:
            say(style(f"{name:<12}", DIM), visible(str(value)))


@command.command("search")
@_agent
@click.option("--limit", type=click.IntRange(1, _MAX_LISTED), default=10, show_default=True, help="How many.")
@click.argument("query", nargs=-1, required=True)
@click.pass_obj
def search(settings: Settings, agent: str | None, limit: int, query: tuple[str, ...]) -> None:
    """Find what is kept by its words, the best first.

    The columns are those of 'lactl memory list'.
    """
    _show(settings, settings.call("Memory.Search", query=" ".join(query), agent=agent, limit=limit))


@command.command("candidates")
@_agent
@click.pass_obj
def candidates(settings: Settings, agent: str | None) -> None:
    """List what agents want to keep, and what only you can promote.

    On a terminal all of each text is shown. In a pipe the columns are those of 'lactl memory list'.
    """
    found = settings.call("Memory.List", agent=agent, state="candidate", limit=_MAX_LISTED)
    if not found or settings.json or not is_terminal():
        _show(settings, found, empty="No agent wants to keep anything.")
    else:
        for each in found:
            _show_whole(each)
        say("Keep one with: lactl memory promote ID   Turn it down with: lactl memory reject ID")


@command.command("add")
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="For this agent, not for all.")
@click.option(
    "--scope",
    type=click.Choice(["team", "machine"]),
    help="For the agents that read your pool, or for those of all users of this machine (administrators).",
)
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="A word to find it by; may be repeated.")
@click.option("--confidence", type=click.FloatRange(0, 1), help="How sure it is; 1 unless you say otherwise.")
@click.option("--days", type=click.IntRange(1, 36_500), help="Forget it after so many days.")
@click.argument("text", nargs=-1, required=True)
@click.pass_obj
def add(
    settings: Settings, /, tags: tuple[str, ...], days: int | None, text: tuple[str, ...], **more: Any
) -> None:
    """Keep something for your agents to know.

    \b
      lactl memory add --tag backup "Backups begin at 02:30."
    """
    kept = settings.call(
        "Memory.Remember",
        text=" ".join(text),
        tags=[*tags] or None,
        **more,
        expires_us=int((time.time() + days * _DAY_S) * 1e6) if days else None,
    )
    if settings.json:
        print_json(kept)
    else:
        _tell(settings, [kept], "Kept")


_ids = click.argument("memories", metavar="ID...", nargs=-1, required=True, shell_complete=memory_ids)


@command.command("promote")
@click.option("--why", metavar="TEXT", help="Why; it stays with them.")
@_ids
@click.pass_obj
def promote(settings: Settings, memories: tuple[str, ...], why: str | None) -> None:
    """Keep candidates: from now on they stand in your agents' system prompts.

    ID may be cut short as long as it is the only one that begins so.
    """
    ids = _whole_ids(settings, memories)
    _tell(settings, [_promoted(settings, each, why) for each in ids], "Kept")


def _promoted(settings: Settings, memory: str, why: str | None) -> Any:
    if why is None:
        return settings.call("Memory.Promote", memory=memory)
    return settings.call("Memory.PromoteBecause", memory=memory, why=why)


@command.command("reject")
@_ids
@click.pass_obj
def reject(settings: Settings, memories: tuple[str, ...]) -> None:
    """Turn candidates down; the same text is not proposed again.

    ID may be cut short as long as it is the only one that begins so.
    """
    ids = _whole_ids(settings, memories)
    _tell(settings, [settings.call("Memory.Reject", memory=each) for each in ids], "Rejected")


@command.command("forget")
@_ids
@click.pass_obj
def forget(settings: Settings, memories: tuple[str, ...]) -> None:
    """Drop memories, in whatever state they are.

    ID may be cut short as long as it is the only one that begins so. What was said in a conversation stays
    there until its session is deleted.
    """
    ids = _whole_ids(settings, memories)
    for each in ids:
        settings.call("Memory.Forget", memory=each)
    _tell(settings, [{"id": each, "state": "forgotten"} for each in ids], "Forgotten")


@command.command("export")
@click.pass_obj
def export(settings: Settings) -> None:
    """Print everything that is remembered, one JSON object on each line, the oldest first."""
    text = settings.call("Memory.Export")
    if text:
        say(text, end="")


@command.command("profile")
@click.option("--set", "file", metavar="FILE", help="Replace it; - is standard input.")
@click.option("--edit", is_flag=True, help="Edit it with $EDITOR.")
@click.option("--clear", is_flag=True, help="Take it away.")
@click.pass_obj
def profile(settings: Settings, file: str | None, edit: bool, clear: bool) -> None:
    """Show or change what you want every agent to know of you.

    It is Markdown, and stands in the system prompts of your own sessions alone.
    """
    if (file is not None) + edit + clear > 1:
        raise click.UsageError("--set, --edit and --clear cannot be used together.")
    text = _new_profile(settings, file, edit=edit, clear=clear)
    if text is not None:
        settings.call("Memory.SetProfile", text=text)
    shown = settings.call("Memory.GetProfile")
    if settings.json:
        print_json({"text": shown})
    elif text is None and shown:
        say(shown)
    elif is_terminal():
        say("There is no profile. Write one with: lactl memory profile --edit" if not shown else "It is set.")


def _new_profile(settings: Settings, file: str | None, *, edit: bool, clear: bool) -> str | None:
    """The text to set; None when nothing is to be changed. Raises InvalidArgument, and as `read_file`."""
    if clear:
        return ""
    try:
        if file is not None:
            return read_file(file).decode()
        return click.edit(settings.call("Memory.GetProfile"), extension=".md") if edit else None
    except UnicodeDecodeError as err:
        raise InvalidArgument(f"{shown(str(file))} is not UTF-8 text.", field="text") from err


def _whole_ids(settings: Settings, memories: Sequence[str]) -> list[str]:
    """The full ids for a person's prefixes, each once. Raises MemoryNotFound, InvalidArgument."""
    found: list[dict[str, Any]] = []
    if any(_IDS.is_short(each) for each in memories):
        found = settings.call(_IDS.method, state="all", limit=_MAX_LISTED)
    return list(dict.fromkeys(_IDS.whole(each, found) for each in memories))


def _show(settings: Settings, found: list[dict[str, Any]], *, empty: str = "Nothing is remembered.") -> None:
    listing(
        settings,
        found,
        _COLUMNS,
        spare=("SOURCE", "SURE", "TAGS", "UPDATED", "STATE", "AGENT"),
        empty=empty,
    )


def _show_whole(found: dict[str, Any]) -> None:
    """Show the whole text that a person is to decide on, with nothing hidden."""
    whose = f"for {cell(found['agent']) if found['agent'] else _READERS.get(found['scope'], 'all agents')}"
    whose += " in this session" if found["scope"] == "session" else ""
    said = f"in {cell(found['session'])}, {local(found['updated_us'])}, confidence {found['confidence']:g}"
    tags = f", tags {cell(found['tags'])}" if found["tags"] else ""
    say(style(found["id"], BOLD), f"  {whose}, {said}{tags}")
    if found["proposed_why"]:
        say(style("  ? ", DIM), visible(found["proposed_why"]))
    say(style("  | ", DIM), visible(found["text"]))


def _tell(settings: Settings, changed: list[dict[str, Any]], word: str) -> None:
    if as_json(settings, changed):
        return
    for each in changed:
        say(f"{word}: {each['id']}" if is_terminal() else f"{each['id']}\t{each['state']}")
