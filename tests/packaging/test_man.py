"""The man pages: complete, nothing made up, and readable at 80 columns by every formatter that is here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from lightagentd import api, errors
from lightagentd.cli.main import COMMANDS, lactl
from lightagentd.config.configuration import Config
from lightagentd.control.dbus.methods import methods
from lightagentd.control.dbus.views import KINDS
from lightagentd.control.varlink.interfaces import INTERFACES
from lightagentd.policy.operation import Operation
from tests.conftest import REPOSITORY

from .conftest import generate

ABOUT = (
    "lactl.1",
    "lightagent-agent.5",
    "lightagent-approver.8",
    "lightagent-eval.5",
    "lightagent-flow.5",
    "lightagent-hook.5",
    "lightagent-intro.7",
    "lightagent-mcp.5",
    "lightagent-notify.1",
    "lightagent-policy.5",
    "lightagent-skill.5",
    "lightagent-tool.5",
    "lightagent-trigger.5",
    "lightagentd.8",
    "lightagentd.toml.5",
    "org.lightagent1.5",
)
PAGES = (*ABOUT, *(f"lactl-{name}.1" for name in COMMANDS))
_FORMATTING = re.compile(r"\\f[BIR]|\\&")
_CHARACTERS = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ha": "^", r"\(ti": "~", r"\e": "\\"}


def plain(page: Path) -> str:
    """The words of a page: without fonts and requests, one space between words."""
    text = page.read_text()
    for sequence, char in _CHARACTERS.items():
        text = text.replace(sequence, char)
    text = re.sub(r"\\\[u([0-9A-F]+)\]", lambda found: chr(int(found[1], 16)), text)
    text = re.sub(r"^\.\w+ ?", "", _FORMATTING.sub("", text), flags=re.MULTILINE)
    return " ".join(text.split())


def every_command() -> Iterator[click.Context]:
    def below(context: click.Context) -> Iterator[click.Context]:
        yield context
        if isinstance(context.command, click.Group):
            for name in context.command.list_commands(context):
                command = context.command.get_command(context, name)
                assert command is not None
                yield from below(click.Context(command, info_name=name, parent=context))

    return below(click.Context(lactl, info_name="lactl"))


def every_option() -> set[str]:
    return {
        spelled
        for context in every_command()
        for param in context.command.get_params(context)
        for spelled in (*param.opts, *param.secondary_opts)
        if spelled.startswith("-")
    } | {"-h"}


def test_all_pages_are_there(generated: Path) -> None:
    assert sorted(path.name for path in (generated / "man").iterdir()) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_formatters_have_nothing_to_say_and_no_line_is_wider_than_a_terminal(
    generated: Path, name: str
) -> None:
    page = generated / "man" / name
    tried = 0
    for command in (
        ["groff", "-ww", "-Tutf8", "-man", "-P-cbou", "-rLL=78n", str(page)],
        ["mandoc", "-Tlint", "-W", "warning", str(page)],
    ):
        if shutil.which(command[0]) is None:
            continue
        tried += 1
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stderr, done.returncode) == ("", 0)
        if command[0] == "groff":
            assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
        else:
            assert done.stdout == ""
    if not tried:
        pytest.skip("neither groff nor mandoc is installed")


@pytest.mark.parametrize("name", PAGES)
def test_commands_stand_in_lines_of_their_own(generated: Path, name: str) -> None:
    """An example whose lines were joined reads as one command with wrong arguments."""
    text = (generated / "man" / name).read_text().replace(r"\-", "-")
    prose = re.sub(r"^\.EX\n.*?^\.EE$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^.*journalctl -u \S+ [A-Z_]+=.*lactl .*$", prose, re.MULTILINE) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_the_usual_sections_and_no_mark_is_left(generated: Path, name: str) -> None:
    text = (generated / "man" / name).read_text()
    titles = re.findall(r'^\.SH "?([A-Z -]+)"?$', text, re.MULTILINE)
    assert titles[0] == "NAME"
    assert titles[-1] == "SEE ALSO"
    assert {"SYNOPSIS", "DESCRIPTION"} <= set(titles)
    assert "@VERSION@" not in text
    assert "@DATE@" not in text
    assert "value Any" not in text
    assert '"2025-10-09"' in text
    assert text.isascii()
    assert "\\[u" not in text  # not every locale can show it
    seen = re.findall(r"^\\fB(lightagent\S*|lactl|org\S*)\\fR\((\d)", text.partition('"SEE ALSO"')[2], re.M)
    others = {page.rpartition(".") for page in ABOUT if page != name}
    assert {(page, number) for page, _, number in others} <= {
        (page.replace("\\-", "-"), number) for page, number in seen
    }


def test_every_command_has_its_page_with_arguments_and_options(generated: Path) -> None:
    for context in every_command():
        words = context.command_path.split()
        overview = plain(generated / "man/lactl.1")
        text = plain(generated / f"man/{'-'.join(words[:2])}.1")
        first = " ".join((context.command.help or "").partition("\n\n")[0].replace("…", "...").split())
        assert first in text
        arguments = [one for one in context.command.params if isinstance(one, click.Argument)]
        metavars = [argument.make_metavar(context) for argument in arguments]
        usage = " ".join((context.command_path, *metavars))
        assert usage in text or " ".join((context.command_path, "[OPTION]...", *metavars)) in text
        if len(words) == 2:
            assert usage in overview
            assert first.rstrip(".") in overview
        for param in context.command.params:
            assert all(word in text for word in (*param.opts, *param.secondary_opts) if word.startswith("-"))


def test_common_options_and_statuses_are_told_once(generated: Path) -> None:
    text = plain(generated / "man/lactl.1")
    for option in ("--json", "--socket PATH", "--no-ask-password"):
        assert text.count(f"{option} ") >= 1
    for row in errors.table():
        assert f"{row.exit_status} {row.code}" in text
    for name in COMMANDS:
        assert plain(generated / f"man/lactl-{name}.1").count("--no-ask-password") == 1
    assert sum(line != "" for line in (generated / "man/lactl.1").read_text().splitlines()) < 700


def test_help_names_the_page_of_a_command(generated: Path) -> None:
    for words in ((), ("sessions",), ("sessions", "list"), ("doctor",)):
        done = subprocess.run(
            [sys.executable, "-m", "lightagentd.cli.main", "help", *words],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        named = done.stdout.splitlines()[-1].removeprefix("The manual: man ")
        assert (generated / f"man/{named}.1").exists()


@pytest.mark.parametrize("name", PAGES)
def test_pages_name_no_command_and_no_option_of_lactl_that_does_not_exist(generated: Path, name: str) -> None:
    commands = {context.command_path for context in every_command()}
    groups = {context.command_path for context in every_command() if isinstance(context.command, click.Group)}
    text = (generated / "man" / name).read_text()
    for sequence, char in _CHARACTERS.items():
        text = text.replace(sequence, char)
    for line in text.splitlines():
        for used in re.findall(r"(?:^|\| |\(|'|\\fB)lactl ((?:[a-z][a-z-]* ?)+)", line):
            words = used.split()
            assert f"lactl {words[0]}" in commands, line
            if f"lactl {words[0]}" in groups and len(words) > 1:
                assert f"lactl {words[0]} {words[1]}" in commands, line
        if "lactl " in line:
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line.partition("lactl ")[2]):
                assert option in every_option(), line
    if name.startswith("lactl"):
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        assert options - every_option() <= {"--kill-whom", "--signal"}


def every_key(model: type[BaseModel] = Config) -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        annotations = [info.annotation, *getattr(info.annotation, "__args__", ())]
        inner = [one for one in annotations if isinstance(one, type) and issubclass(one, BaseModel)]
        if inner:
            yield from every_key(inner[0])
        else:
            yield model.__name__.lower(), name


def test_toml_page_has_every_key_with_its_default_and_no_other(generated: Path) -> None:
    page = generated / "man/lightagentd.toml.5"
    sections = page.read_text().partition('.SH "SECTIONS"')[2].partition('.SH "CREDENTIALS"')[0]
    found = re.findall(r"^\.TP\n\\fB([a-z_\\]+)\\fR = ", sections, re.MULTILINE)
    assert sorted(found) == sorted(name for _, name in every_key())
    assert sections.count("Default: ") + sections.count("Not set by default") + sections.count(
        "Has to be there"
    ) == len(found)
    assert "[models.providers.NAME]" in sections


def test_interface_page_has_every_method_type_and_error(generated: Path) -> None:
    text = plain(generated / "man/org.lightagent1.5")
    for interface in INTERFACES:
        assert interface.name in text
        description = interface.render_interface_description()
        for method in re.findall(r"^method (\w+)\(", description, re.MULTILINE):
            assert f"{method}(" in text
        for name in re.findall(r"^type (\w+) ", description, re.MULTILINE):
            assert hasattr(api, name)
            assert name in text
    for method in methods().values():
        arguments = ", ".join(f"{signature} {name}" for name, signature in method.arguments.items())
        results = ", ".join(f"{signature} {name}" for name, signature in method.results.items())
        assert f"D-Bus: {method.name}({arguments})" + (f" -> {results}" if results else "") in text
        assert all(f"{name} {signature}" in text for name, signature in method.optional.items())
    for kind in KINDS:
        assert f"{kind.interface} (/org/lightagent1/{kind.folder}/...)" in text
    for operation in Operation:
        assert f"org.lightagent1.{operation} " in text
    for row in errors.table():
        assert f"{row.varlink.rpartition('.')[2]} ({row.code}, {row.http_status})" in text
    assert "Prompt(text: string" in text
    assert "event: TurnEvent (streams)" in text


def test_the_output_is_the_same_for_the_same_code(generated: Path, tmp_path: Path) -> None:
    again = generate(tmp_path)
    for path in generated.rglob("*"):
        if path.is_file():
            assert (again / path.relative_to(generated)).read_bytes() == path.read_bytes()


def test_units_and_files_that_pages_name_exist(generated: Path) -> None:
    units = {path.name for path in (REPOSITORY / "units").rglob("*") if path.is_file()}
    text = plain(generated / "man/lightagentd.8")
    for named in re.findall(r"\blightagent[a-z-]*@?\.(?:service|socket|timer)\b", text):
        assert named in units or named.replace(".", "@.") in units, named
    for unit in units:
        if unit.endswith((".service", ".socket", ".timer")):
            name, at, kind = unit.partition("@") if "@" in unit else unit.rpartition(".")
            assert re.search(rf"{name}{at}[A-Za-z]*{re.escape(kind)}", text), unit


def test_the_daemons_page_has_its_options_and_no_other(generated: Path) -> None:
    page = (generated / "man/lightagentd.8").read_text().replace(r"\-", "-")
    section = page.partition('.SH "OPTIONS"')[2].partition(".SH")[0]
    described = set(re.findall(r"--[a-z-]+", section))
    done = subprocess.run(
        [sys.executable, "-m", "lightagentd.daemon", "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert described == set(re.findall(r"--[a-z-]+", done.stdout))
