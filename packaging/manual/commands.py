"""lactl(1) and the pages of its commands, from click and the table of errors."""

from __future__ import annotations

import click

from lightagentd import errors
from lightagentd.cli.help import OWN_STATUSES
from lightagentd.cli.main import INTERRUPTED_STATUS
from manual.roff import Page, Stamp, bold, escaped, italic, see_also
from manual.tree import COMMON, Command, commands, value, words

_OUTPUT = """\
On a terminal lactl prints tables and sentences, with colours unless NO_COLOR is set. In a pipe, each
thing is one line with tabs between the columns, and no heading. With `--json` the output is JSON: one
object or one list, and for what goes on and on (turns, events) one object for each line. Errors go to
standard error: what failed, and what to do next; with `--json` as an object with `code`, `message`, and
where they say something `field` and `suggestion`.

Escape sequences in the words of models and tools are taken out before they reach a terminal."""
_ENVIRONMENT = (
    ("LIGHTAGENT_SOCKET", "The daemon's socket, where `--socket` names none."),
    (
        "LIGHTAGENT_AGENT",
        'The default agent: that of `lactl "WORDS"` and of `lactl chat` without a name. Else it is'
        " default_agent in lactl.toml, else the only agent there is, else ops.",
    ),
    (
        "LIGHTAGENT_STATE_DIR",
        "The daemon's state folder, for commands that read the store itself, where `--state-dir` names none.",
    ),
    (
        "XDG_RUNTIME_DIR",
        "Where the socket of a user's own daemon lies, below lightagentd/; it comes before the system's.",
    ),
    ("XDG_CONFIG_HOME", "Where lightagent/lactl.toml lies; ~/.config if it is not set."),
    ("XDG_STATE_HOME", "Where lactl chat keeps what was typed; ~/.local/state if it is not set."),
    ("NO_COLOR", "Print without colours (https://no-color.org); so does TERM=dumb."),
)
_FILES = (
    (
        "/run/lightagentd/control.sock",
        "The system daemon's socket; for root and the group lightagent.",
    ),
    ("$XDG_RUNTIME_DIR/lightagentd/control.sock", "That of a user's own daemon."),
    (
        "$XDG_CONFIG_HOME/lightagent/lactl.toml",
        'The default agent, default_agent = "NAME", and groups of hosts for `--hosts`: under [hosts] lines'
        ' such as web = ["web1", "admin@web2"].',
    ),
    ("$XDG_STATE_HOME/lightagent/chat_history", "What was typed in chats; its owner alone can read it."),
)
_EXAMPLES = (
    ("Set up a language model and the rest, now or again later:", ("sudo lactl setup",)),
    (
        "Ask, and go on asking in the same session:",
        ('lactl prompt ops "check disk"', 'lactl prompt ops "what is large below /var"'),
    ),
    ("Talk with it; /help lists what a chat can do:", ("lactl chat ops",)),
    (
        "Give it something to read; the session counts as tainted from then on:",
        ('dmesg | lactl prompt ops "explain"   # needs a language model',),
    ),
    (
        "In a script: the answer alone, and nobody is asked:",
        ("lactl prompt -q --new --unattended ops 'check disk'",),
    ),
    ("Allow what waits, once:", ("lactl approvals", 'lactl approve 3f --note "for the release"')),
    ("Answer what an agent asks:", ("lactl inputs", 'lactl answer 3f "the second disk"')),
    ("Follow one agent, also across restarts of the daemon:", ("lactl events --follow --agent ops",)),
    (
        "Ask the daemons of other machines, through ssh and with your rights there:",
        ("lactl --host web1 chat ops", 'lactl --hosts @web,db1 prompt ops "check disk"'),
    ),
    ("Prove that nobody changed the history:", ("lactl audit verify",)),
    (
        "Keep a copy of the history, and put it back while the daemon is stopped:",
        ("sudo lactl history backup /srv/history", "sudo lactl history restore /srv/history"),
    ),
    ("Stop everything, now:", ('lactl panic --reason "it deletes logs"', "lactl panic --off")),
)
_MORE = "Every command has a page of its own: lactl-sessions(1) for `lactl sessions`."


def pages(stamp: Stamp) -> dict[str, str]:
    """lactl(1), and a page for each noun and verb, as roff by the names of their files."""
    root, *every = commands()
    found = {"lactl.1": _overview(root, every, stamp)}
    for command in every:
        if len(command.path) == 1:
            inner = [one for one in every if one.path[:1] == command.path]
            found[f"{_page_of(command)}.1"] = _of_command(command, inner, stamp)
    return found


def _overview(root: Command, every: list[Command], stamp: Stamp) -> str:
    made = Page("lactl", 1, "User commands", "talk to the AI agents that lightagentd runs", stamp)
    made.section("SYNOPSIS")
    made.raw(f"{bold('lactl')} [{italic('OPTION')}]... {italic('COMMAND')} [{italic('ARGUMENT')}]...")
    made.section("DESCRIPTION")
    made.prose(root.help)
    made.paragraph("To begin with, read lightagent-intro(7).")
    made.section("OPTIONS")
    made.paragraph("Every command takes these, before or after its name:")
    _options(made, root, common=True)
    made.section("COMMANDS")
    made.paragraph(_MORE)
    for command in every:
        if len(command.path) == 1:
            made.item(" ".join((bold(command.name), *map(escaped, command.usage()))), f"{command.summary}.")
    made.section("OUTPUT")
    made.prose(_OUTPUT)
    _exit_statuses(made)
    for title, rows in (("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        made.section(title)
        for name, text in rows:
            made.item(bold(name) if title == "ENVIRONMENT" else italic(name), text)
    made.section("EXAMPLES")
    for text, lines in _EXAMPLES:
        made.paragraph(text)
        made.example(lines)
    made.section("SEE ALSO")
    nouns = (f"{_page_of(one)}(1)" for one in every if len(one.path) == 1)
    made.raw(see_also("lactl", *nouns, "journalctl(1)", "ssh(1)", "varlinkctl(1)"))
    return made.text()


def _of_command(command: Command, inner: list[Command], stamp: Stamp) -> str:
    """The page of one command, and of those below it."""
    made = Page(_page_of(command), 1, "User commands", _lower(command.summary), stamp)
    made.section("SYNOPSIS")
    for number, one in enumerate(one for one in inner if one.does_something):
        if number:
            made.raw(".br")
        made.raw(" ".join((bold(one.name), f"[{italic('OPTION')}]...", *map(escaped, one.usage()))))
    made.section("DESCRIPTION")
    made.prose(command.help)
    if command.options():
        made.section("OPTIONS")
        _options(made, command)
    if len(inner) > 1:
        made.section("COMMANDS")
        for one in inner[1:]:
            made.subsection(" ".join((one.name, *one.usage())))
            made.prose(one.help)
            _options(made, one)
    made.section("COMMON OPTIONS")
    made.paragraph(f"{', '.join(COMMON)}: see lactl(1), which has the exit statuses, too.")
    made.section("SEE ALSO")
    made.raw(see_also(""))
    return made.text()


def _page_of(command: Command) -> str:
    return f"lactl-{command.path[0]}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _options(made: Page, command: Command, *, common: bool = False) -> None:
    for option in command.options(common=common):
        made.item(_term(option, command), option.help or "")


def _term(option: click.Option, command: Command) -> str:
    spelled = ", ".join(bold(word) for word in words(option))
    placeholder = value(option, command)
    return f"{spelled} {italic(placeholder)}" if placeholder else spelled


def _exit_statuses(made: Page) -> None:
    made.section("EXIT STATUS")
    made.paragraph(
        "An error has a code, which stays the same in all versions, and a status as in sysexits.h:"
    )
    rows = [*OWN_STATUSES]
    rows += [
        (row.exit_status, row.code, (row.cls.__doc__ or "").strip().partition("\n")[0])
        for row in errors.table()
    ]
    for status, code, meaning in sorted(rows, key=lambda row: row[0]):
        made.item(f"{bold(str(status))} {escaped(code)}", meaning)
    made.paragraph(f"Ctrl-C ends lactl with {INTERRUPTED_STATUS}.")
