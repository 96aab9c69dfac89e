"""org.lightagent1(5), from the Varlink interfaces and the classes of the API."""

from __future__ import annotations

import collections.abc
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lightagentd import api, errors
from lightagentd.control.dbus import methods as dbus_methods
from lightagentd.control.dbus import properties as dbus_properties
from lightagentd.control.dbus import views as dbus_views
from lightagentd.control.dbus.object_methods import methods_of
from lightagentd.control.varlink.interfaces import INTERFACES
from lightagentd.policy.operation import Operation
from manual.roff import Page, Stamp, bold, escaped, italic, see_also

_DESCRIPTION = """\
Programs talk to lightagentd(8) over Varlink (https://varlink.org) or over D-Bus. Both have the same
operations and the same errors, and the same policy decides who may call what: the caller is who the
kernel, or the bus, says that he is. A session belongs to the uid that made it; to others it does not
exist.

A user's prompts to an agent that name no session go to his current one: the one that he last made,
forked, imported, switched to or prompted by name; unattended prompts change nothing of that. An export as
JSON lines has a first line that names its format (lightagent-session), its version and how many messages
follow, and then one message a line.
Sessions.Import takes that, or Markdown with one fenced block of JSON that holds a list of messages in the
shape of chat completions. What is damaged is refused as a whole, with the line; a call without a result
gets one that says that it was not run. Of a deleted session the history keeps the headers and hashes of
its events, and nothing of what they held, so its changes of files cannot be undone any more, either.

Times are in microseconds since 1970, UTC; durations say their unit. Sizes are in bytes. An id is a
prefix, an underscore and 16 hexadecimal digits."""
_VARLINK = """\
The socket is /run/lightagentd/control.sock; root and the group lightagent may connect. The descriptions
of the interfaces lie in /usr/share/lightagentd/varlink, and the daemon gives them to whoever asks:

    cd /run/lightagentd
    varlinkctl introspect ./control.sock org.lightagent1.Sessions
    varlinkctl call ./control.sock org.lightagent1.Agents.List '{}'
    varlinkctl call --more ./control.sock \\
        org.lightagent1.Sessions.Prompt \\
        '{"agent": "ops", "text": "check disk"}'

A parameter that is written with a question mark may be left out. A method that streams needs the flag
`more` and answers many times; the last answer is the one without `continues`. A turn that was begun
goes on when the caller hangs up."""
_CLIENT = """\
import asyncio
from dbus_next import BusType, Variant
from dbus_next.aio import MessageBus
NAME, ROOT = "org.lightagent1", "/org/lightagent1"
async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    async def interface(path, name):
        xml = await bus.introspect(NAME, path)
        found = bus.get_proxy_object(NAME, path, xml)
        return found.get_interface(f"{NAME}.{name}")
    sender = bus.unique_name[1:].replace(".", "_")
    turn = await interface(f"{ROOT}/turns/{sender}/first", "Turn")
    over = asyncio.Event()
    def event(kind, fields):
        print(kind, fields["text"].value if "text" in fields else "")
        if kind in ("done", "error"):
            over.set()
    turn.on_event(event)
    manager = await interface(ROOT, "Manager")
    options = {"handle_token": Variant("s", "first")}
    await manager.call_prompt("ops", "check disk", options)
    await over.wait()
    print(await turn.get_state(), await turn.get_answer())
asyncio.run(main())"""
_DBUS = """\
The bus name is `org.lightagent1` on the system bus (on the session bus for a user's own daemon). The
object `/org/lightagent1` has each interface below under the same name, and
org.freedesktop.DBus.ObjectManager; agents, sessions, approvals and turns are objects below it, with
properties.

    busctl introspect org.lightagent1 /org/lightagent1
    busctl call org.lightagent1 /org/lightagent1 \\
        org.lightagent1.Manager Ask 'ssa{sv}' ops "check disk" 0

Required parameters are positional, in the order below; those that may be left out go into one
dictionary after them, `options`, which may be empty. Structures are dictionaries `a{sv}` with the names
of their fields, without those that are null; lists of structures are `aa{sv}`. Any JSON is a variant.

The path of an object ends with its name or id, in which each byte that is not a letter or digit of ASCII,
and a digit at the beginning, is an underscore and two hexadecimal digits, as sd_bus_path_encode(3) makes
them: the session `ses_0f` is `/org/lightagent1/sessions/ses_5f0f`.

A method that streams gives the path of an object with the interface `org.lightagent1.Stream`: its
signal `Item` (`a{sv}`) has one part, and its signal `Ended` (`sss`: error, message, suggestion) comes last,
with empty strings where all is well; its method `Close` ends it. An item of `Events.Subscribe` is an
event, or holds `missed` alone. `Manager.Prompt` gives the paths of session and turn at once, and the turn
sends its events as the signal `org.lightagent1.Turn.Event` (`sa{sv}`: type, event); the last is of the
type `done` or `error`. For a minute after its end the turn is still there, with its `State` and its
`Answer`; of one owner the 16 that ended last.

A client library that connects to the signals of a path once it is in a reply misses the first of them.
So these methods take the option `handle_token` (`s`), of letters, digits and underscores, as those of the
desktop portals do. The path is then `/org/lightagent1/turns/SENDER/TOKEN` for a turn and
`/org/lightagent1/streams/SENDER/TOKEN` for a stream, where SENDER is the unique name of the caller without
its colon and with underscores for dots. It is there for the caller alone, and can be introspected before
the call. In Python, with dbus-next:

@CLIENT@

`Manager.Subscribe` asks for the signals about objects that come, go and change; whoever reads properties
gets them, too. Signals go to the program alone that asked, and only about what it may see; nothing is
broadcast.

Errors have the names below with `org.lightagent1.Error.` in front."""
_ACCESS = """\
Root and the daemon's own user may do everything. Of others polkit(8) decides, by one of these actions,
with the name of the agent as a detail:"""
_ACCESS_MORE = """\
As it ships, polkit lets the group lightagent inspect and prompt, and has everybody else authenticate as
an administrator. Where polkit is not running, the group may inspect and prompt, and nobody else
anything."""
_ACTIONS = {
    Operation.INSPECT: "Look at agents, sessions of one's own, tools, skills, rules and the daemon's state.",
    Operation.PROMPT: "Prompt agents and call tools.",
    Operation.APPROVE: "Allow calls that agents ask for, or refuse those in sessions of others.",
    Operation.MANAGE_AGENTS: "Make, start, stop and delete agents.",
    Operation.ADMINISTER: "Reload, stop everything, and see the sessions of everybody.",
}
_METHOD = re.compile(r"method (\w+)\((.*?)\) -> \((.*)\)")
_TYPE = re.compile(r"type (\w+) (?:\((.*)\)|(.*))")


@dataclass(frozen=True)
class Method:
    """One method: its documentation and its parameters as (name, type) pairs."""

    name: str
    doc: str
    takes: list[tuple[str, str]]
    gives: list[tuple[str, str]]
    streams: bool


@dataclass(frozen=True)
class Interface:
    name: str
    doc: str
    methods: list[Method]


def page(stamp: Stamp) -> str:
    """The page as roff."""
    made = Page("org.lightagent1", 5, "Programming interface", "interfaces of lightagentd", stamp)
    made.section("SYNOPSIS")
    made.raw(f"{italic('/run/lightagentd/control.sock')} (Varlink)")
    made.raw(".br")
    made.raw(f"{bold('org.lightagent1')}, {italic('/org/lightagent1')} (D\\-Bus)")
    client = "".join(f"    {line}\n" for line in _CLIENT.splitlines())
    dbus = _DBUS.replace("@CLIENT@\n", client)
    for title, text in (("DESCRIPTION", _DESCRIPTION), ("VARLINK", _VARLINK), ("D-BUS", dbus)):
        made.section(title)
        made.prose(text)
    made.section("WHO MAY CALL WHAT")
    made.prose(_ACCESS)
    for operation in Operation:
        made.item(bold(f"org.lightagent1.{operation}"), _ACTIONS[operation])
    made.prose(_ACCESS_MORE)
    types: dict[str, list[tuple[str, str]]] = {}
    made.section("METHODS")
    for interface in interfaces(types):
        made.subsection(interface.name)
        made.prose(interface.doc)
        for method in interface.methods:
            made.item(_signature(method), method.doc)
            if on_dbus := dbus_methods.methods().get((interface.name, method.name)):
                made.continued(_on_dbus(on_dbus))
    _only_on_dbus(made)
    made.section("TYPES")
    for name in sorted(types):
        doc = inspect.cleandoc(getattr(api, name).__doc__ or "")
        made.subsection(name)
        made.prose(doc)
        for field, kind in types[name]:
            made.raw(".br" if field != types[name][0][0] else ".PP")
            made.raw(f"{bold(field)}: {italic(kind)}")
    made.section("ERRORS")
    made.paragraph(
        "Each error carries `code`, `message` (one sentence: what failed), `field` (the parameter at "
        "fault, or empty) and `suggestion` (what to do next, or empty). In parentheses are the code and "
        "the HTTP status."
    )
    for row in errors.table():
        doc = (row.cls.__doc__ or "").strip().partition("\n\n")[0]
        made.item(
            f"{bold(row.varlink.removeprefix(errors.VARLINK_PREFIX))} "
            f"({escaped(row.code)}, {row.http_status})",
            doc,
        )
    made.section("SEE ALSO")
    made.raw(see_also("org.lightagent1", "busctl(1)", "varlinkctl(1)", "polkit(8)"))
    return made.text()


def _only_on_dbus(made: Page) -> None:
    """Parts that only D-Bus has: two methods, and the objects."""
    made.subsection("D-Bus alone: org.lightagent1.Manager")
    heads = {
        "AskForAnswer": bold("AskForAnswer"),
        "Prompt": f"{bold('Prompt')}, {bold('Subscribe')}, {bold('Unsubscribe')}",
    }
    for name, head in heads.items():
        method = dbus_methods.methods()[dbus_methods.MANAGER, name]
        made.item(head, method.doc)
        made.continued(_on_dbus(method))
    made.section("OBJECTS ON D-BUS")
    made.paragraph(
        "Each field of the type is a property, named in CamelCase. An absent number is -1, an absent "
        "structure an empty dictionary."
    )
    for kind in dbus_views.KINDS:
        made.subsection(f"{kind.interface} (/org/lightagent1/{kind.folder}/...)")
        properties = dbus_properties.properties(kind).values()
        made.paragraph(
            "Properties: " + ", ".join(f"{one.name} `{one.signature}`" for one in properties) + "."
        )
        for method in methods_of(kind).values():
            made.item(bold(method.name), method.doc)
            made.continued(_on_dbus(method))


def _on_dbus(method: dbus_methods.Method) -> str:
    """The signature on D-Bus, as roff."""

    def listed(arguments: Mapping[str, str]) -> str:
        return ", ".join(f"{bold(signature)} {italic(name)}" for name, signature in arguments.items())

    arrow = f" \\-> {listed(method.results)}" if method.results else ""
    options = ", ".join(f"{italic(name)} {bold(one)}" for name, one in method.optional.items())
    more = f"; options: {options}" if options else ""
    return f"D\\-Bus: {escaped(method.name)}({listed(method.arguments)}){arrow}{more}"


def interfaces(types: dict[str, list[tuple[str, str]]]) -> Iterator[Interface]:
    """The interfaces with methods, from their descriptions; also collects the types that they use."""
    for interface in INTERFACES:
        doc: list[str] = []
        head = ""
        methods = []
        for line in interface.render_interface_description().splitlines():
            if line.startswith("#"):
                doc.append(line.removeprefix("#").strip())
                continue
            text = " ".join(doc)
            if line.startswith("interface "):
                head = text
            elif found := _TYPE.fullmatch(line):
                types.setdefault(found[1], _pairs(found[2] or ""))
            elif found := _METHOD.fullmatch(line):
                streams = _streams(getattr(interface, found[1]))
                methods.append(
                    Method(found[1], text, _named(found[2], types), _named(found[3], types), streams)
                )
            doc = []
        yield Interface(interface.name, head, methods)


def _streams(method: object) -> bool:
    assert callable(method)
    returned = inspect.signature(inspect.unwrap(method)).return_annotation
    return getattr(returned, "__origin__", None) is collections.abc.AsyncIterator


def _named(text: str, types: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """The parameters; a turn event, which has no name in the description, gets one."""
    pairs = []
    for name, kind in _pairs(text):
        if kind.startswith("(type: string, session: string, trace_id: string"):
            types["TurnEvent"] = _pairs(kind[1:-1])
            kind = "TurnEvent"
        pairs.append((name, kind))
    return pairs


def _pairs(text: str) -> list[tuple[str, str]]:
    """`a: string, b: (c: int, d: int)` as pairs."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    found = (part.strip().partition(":") for part in parts if part.strip())
    return [(name, kind.strip()) for name, _, kind in found]


def _signature(method: Method) -> str:
    def listed(pairs: list[tuple[str, str]]) -> str:
        return ", ".join(f"{italic(name)}: {escaped(kind)}" for name, kind in pairs)

    arrow = f" \\-> {listed(method.gives)}" if method.gives else ""
    more = " (streams)" if method.streams else ""
    return f"{bold(method.name)}({listed(method.takes)}){arrow}{more}"
