"""`lactl tools draft`, `drafts`, `discard` and `install`: tools from descriptions.

An OpenAPI document is read here, with the rights of the user who runs lactl, and needs no model. What a model
writes comes from one turn without tools. The daemon keeps the draft and has a worker load it once.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import click

from lightagentd import errors
from lightagentd.cli.content import own_folder, reload_daemon
from lightagentd.cli.difference import say_difference
from lightagentd.cli.named_file import read_file
from lightagentd.cli.options import Command, Settings, agent_names, names_of
from lightagentd.cli.output import Columns, as_json, fields, listing, say, told, user_cell, warn
from lightagentd.cli.terminal import BOLD, style
from lightagentd.errors import Conflict, InvalidArgument, PermissionDenied
from lightagentd.quoted import quoted

MODEL_S = 600.0
_WORDS = """\
Write one tool for lightagentd: a Python 3.11 file that another program loads, named {name}.py. Answer with \
one fenced block of Python and nothing else.

The file has functions, each with a dictionary as its attribute `tool_info`:

```python
def show(city: str, days: int = 1) -> str:
    "Say in a sentence what it does."
    return "the text that is read"


show.tool_info = {{
    "description": "What it does, for who chooses among tools.",
    "parameters": {{
        "type": "object",
        "properties": {{"city": {{"type": "string"}}, "days": {{"type": "integer"}}}},
        "required": ["city"],
    }},
    "effect": "observe",
}}
```

`effect` is observe for what only reads this machine, reach for what asks the network, and change for all
else. Use the standard library and httpx. Nothing may run when the file is loaded. Keep no secrets in it.

What the tool is to do:

"""
draft_names = names_of("Tools.Drafts", "name")


@click.command("draft", cls=Command)
@click.argument("words", nargs=-1)
@click.option("--from", "source", metavar="FILE", help="An OpenAPI document, or a text that a model reads.")
@click.option("--agent", metavar="AGENT", required=True, shell_complete=agent_names, help="Whose model.")
@click.option("--name", metavar="NAME", default="", help="The tool's name; by default that of the file.")
@click.option("--operation", "operations", metavar="ID", multiple=True, help="Only this one; several times.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only operations with it; several times.")
@click.option("--server", metavar="URL", default="", help="The server to call, for the document's own.")
@click.pass_obj
def draft(
    settings: Settings,
    /,
    words: tuple[str, ...],
    source: str | None,
    agent: str,
    name: str,
    operations: tuple[str, ...],
    tags: tuple[str, ...],
    server: str,
) -> None:
    """Draft a tool from an OpenAPI 3 document, or from a text or WORDS by the model of AGENT.

    \b
      lactl tools draft --from petstore.yaml --agent ops --tag pets
      lactl tools draft --agent ops --name leases "who has a DHCP lease"

    A draft is a file that nothing loads. A worker that can change nothing tries it once, and what it found is
    shown: the actions with their effects, the hosts, and the names that the code uses. An administrator puts
    it in force with 'lactl tools install'.

    Of an OpenAPI document, GET and HEAD have the effect reach, all else the effect change. Its tool calls the
    document's servers alone. It has at most 100 operations; choose with --operation, an operationId or "GET
    /path", and --tag. Credentials are those of the daemon with the names tool.NAME.SCHEME.
    """
    from lightagentd.toolkit.openapi.document import looks_like_one

    text = read_file(source).decode("utf-8", "replace") if source else ""
    name = name or _name_of(source)
    if source and looks_like_one(text):
        made = _from_openapi(source, text, name, operations, tags, server)
        origin = f"OpenAPI document {Path(source).name}"
    elif operations or tags or server:
        raise InvalidArgument("--operation, --tag and --server go with an OpenAPI document.", field="from")
    else:
        made = _from_model(settings, agent, name, " ".join(words), text, source or "")
        origin = f"the model of {agent}"
    found = settings.call("Tools.Draft", agent=agent, name=name, source=made, origin=origin)
    if not as_json(settings, found):
        _show(found, source=not source or not looks_like_one(text))


@click.command("drafts", cls=Command)
@click.argument("name", required=False, shell_complete=draft_names)
@click.pass_obj
def drafts(settings: Settings, name: str | None) -> None:
    """List the drafts of tools, or show one with its source.

    The columns: name, whose it is, what it was made of, and the SHA-256 of its source.
    """
    if name is not None:
        found = settings.call("Tools.GetDraft", name=name)
        if not as_json(settings, found):
            _show(found, source=True)
        return
    columns: Columns = {
        "NAME": "name",
        "BY": lambda one: user_cell(one["by"]),
        "ORIGIN": "origin",
        "SHA256": "digest",
    }
    listing(settings, settings.call("Tools.Drafts"), columns, empty="There are no drafts.")


@click.command("discard", cls=Command)
@click.argument("name", metavar="DRAFT", shell_complete=draft_names)
@click.pass_obj
def discard(settings: Settings, name: str) -> None:
    """Remove a draft."""
    settings.call("Tools.Discard", name=name)
    told(settings, {"discarded": name}, f"The draft {name} is removed.")


@click.command("install", cls=Command)
@click.argument("name", metavar="DRAFT", shell_complete=draft_names)
@click.option("--digest", metavar="SHA256", required=True, help="The digest that was shown with the draft.")
@click.option("--replace", is_flag=True, help="In the place of a tool of that name.")
@click.pass_obj
def install(settings: Settings, name: str, digest: str, replace: bool) -> None:
    """Put a draft in force, as administrator: for all agents, in the folder of the daemon's own tools.

    Only the text with the digest that was shown is taken. lactl writes the file with the rights of the user
    who runs it, so for the system's daemon that is root; for change the code runs as root, too.

    \b
      sudo lactl tools install petstore --digest 2c26b46b68ffc68f…
    """
    from lightagentd.host.atomic_file import write_whole

    found = settings.call("Tools.GetDraft", name=name)
    source = str(found["source"])
    if hashlib.sha256(source.encode()).hexdigest() != digest.removeprefix("sha256:").lower():
        raise Conflict(
            f"The draft {name} is not what was shown: it has another digest.",
            suggestion=f"Read it again: lactl tools drafts {name}",
            field="digest",
        )
    if found["problem"]:
        raise InvalidArgument(f"The draft {name} cannot be used: {found['problem']}", field="name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InvalidArgument(f"{name[:60]!r} is not a name for a tool.", field="name")
    folder = own_folder("tools")
    target = folder / f"{name}.py"
    _check_free(target, replace=replace)
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        old = target.read_text().splitlines() if target.exists() else []
        write_whole(target, source.encode(), mode=0o644, replace=replace)
    except OSError as err:
        raise PermissionDenied(
            f"{target} cannot be written: {err.strerror}.",
            suggestion=f"Only an administrator installs a tool: sudo lactl tools install {name} --digest …",
        ) from err
    read = reload_daemon(settings, "tools") and _is_read(settings, name, target)
    if old and not settings.json:
        say_difference(old, source.splitlines(), ("before", "now"))
    then = "" if read else " A daemon reads it when it starts."
    result = {"name": name, "path": str(target), "in_force": read}
    told(settings, result, f"The tool {name} is in {target}.{then}", name, target)


def _check_free(target: Path, *, replace: bool) -> None:
    """Raises Conflict for a tool that is there already, also a shipped one, which this would cover."""
    from lightagentd.host.paths import content_folders, default_paths

    there = [folder / target.name for folder in content_folders("tools", default_paths())]
    if not replace and (path := next((one for one in there if one.exists()), None)) is not None:
        raise Conflict(
            f"There is a tool {target.stem} in {path} already.",
            suggestion="Draft it with another --name, or --replace it.",
            field="name",
        )


def _is_read(settings: Settings, name: str, target: Path) -> bool:
    found = [one for one in settings.call("Tools.List") if one["name"] == name]
    if found and found[0]["origin"] == str(target):
        return True
    where = f"The daemon that answers does not read {target.parent}."
    warn(where, "Set LIGHTAGENT_CONFIG_DIR to its folder.")
    return False


def _name_of(source: str | None) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", Path(source or "").stem.lower()).strip("_")
    if not re.match(r"[a-z]", name):
        raise InvalidArgument("The tool needs a name.", suggestion="Name it: --name NAME", field="name")
    return name[:32].strip("_")


def _from_openapi(
    source: str, text: str, name: str, operations: tuple[str, ...], tags: tuple[str, ...], server: str
) -> str:
    from lightagentd.agents.drafts.drafts import SOURCE_BYTES
    from lightagentd.toolkit.openapi.document import Document, read
    from lightagentd.toolkit.openapi.source import source_of
    from lightagentd.toolkit.web.guard import parse_url

    if server:
        parse_url(server)
    facts = Document(read(text, source), source).facts(operations, tags, server.rstrip("/"))
    made = source_of(name, facts)
    if len(made) > SOURCE_BYTES:
        raise InvalidArgument(
            f"{source}: its {len(facts['operations'])} operations make a tool of {len(made) >> 10} KiB, and"
            f" {SOURCE_BYTES >> 10} are the most.",
            suggestion="Choose some with --operation ID or --tag TAG.",
            field="from",
        )
    return made


def _from_model(settings: Settings, agent: str, name: str, words: str, text: str, source: str) -> str:
    """The Python file that a model answers with. Raises InvalidArgument, and the errors of the turn."""
    if not words and not text:
        raise InvalidArgument("There is nothing to make a tool of.", suggestion="Say what it is to do.")
    asked = _WORDS.format(name=name) + words + (f"\n\n{quoted(source, text)}" if text else "")
    with settings.client(MODEL_S) as client:
        parameters: dict[str, Any] = {"tools": [], "new": True, "unattended": True, "outside": bool(text)}
        events = client.stream("Sessions.Prompt", agent=agent, text=asked, **parameters)
        last = [one["event"] for one in events][-1]
    if last["type"] == "error":
        raise errors.from_dict(last)
    answer = str(last.get("text") or "")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", answer, re.S | re.M)
    return max(blocks, key=len) if blocks else answer


def _show(found: dict[str, Any], *, source: bool) -> None:
    shown = ("name", "description", "problem", "origin", "hosts", "uses")
    fields((key, found[key]) for key in shown if found[key])
    for action in found["actions"]:
        say()
        effect = action["effect"] or "the effect that the call names"
        say(style(f"{found['name']}.{action['name']}", BOLD), f"  [{effect}]  {action['description']}")
        needed = action["schema"].get("required", [])
        for argument, described in action["schema"].get("properties", {}).items():
            say(f"  {argument}: {described.get('type', 'any')}{' (required)' if argument in needed else ''}")
    if source:
        say()
        say(found["source"])
    say()
    digest = hashlib.sha256(str(found["source"]).encode()).hexdigest()
    if not source and digest != found["digest"]:  # the daemon is not trusted with what it says of a text
        raise Conflict(
            f"The draft {found['name']} is not what the daemon says.", suggestion="Look at its journal."
        )
    fields([("sha256", digest)])
    if not found["problem"]:
        say(f"An administrator installs it: lactl tools install {found['name']} --digest {digest}")
