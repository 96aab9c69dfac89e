"""The parts of a chat that need neither a daemon nor a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from lightagentd.cli.chatting.bringing import named_files
from lightagentd.cli.chatting.commands import COMMANDS, find, parse
from lightagentd.cli.chatting.completion import Completions, files
from lightagentd.cli.chatting.daemon import Daemon
from lightagentd.cli.chatting.folded import Folded
from lightagentd.cli.chatting.passages import Passage
from lightagentd.cli.chatting.pasting import Pastes
from lightagentd.cli.chatting.questions import Question
from lightagentd.cli.chatting.shown import Shown
from lightagentd.cli.markdown import LONG_CHARS, render
from lightagentd.cli.options import Settings
from lightagentd.cli.terminal import rings, theme
from lightagentd.errors import AttachmentInvalid, InvalidArgument, NotFound
from tests.cli.chatty_model import EVIL, MARKDOWN

_T = TypeVar("_T")

# Markdown


def test_markdown_has_no_line_wider_than_the_terminal() -> None:
    for columns in (20, 40, 80):
        for line in render("".join(MARKDOWN) + "\n\n" + "long words " * 50, columns, colours=False):
            assert len(line) <= columns


def test_a_table_is_a_list_where_it_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    table = "| disk | used |\n|---|---|\n| sda1 | 93% |\n"
    assert render(table, 40, colours=False) == ["- disk: sda1", "  used: 93%"]
    assert "sda1" in render(table, 80, colours=False)[2]


def test_what_a_link_hides_is_written_out() -> None:
    (line,) = render("[safe](http://evil.example/) <http://same.example/>", 80, colours=True)
    assert line.count("http://evil.example/") == 1
    assert line.count("http://same.example/") == 1
    assert "\x1b]" not in line


@pytest.mark.parametrize("colours", [True, False])
def test_markdown_cannot_spell_what_a_terminal_acts_on(colours: bool) -> None:
    shown = "\n".join(render(EVIL, 80, colours=colours))
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
    assert not [char for char in shown if char in "\x07\x9b\u202e\r"]
    if not colours:
        assert "\x1b" not in shown


@pytest.mark.parametrize(
    "source",
    [
        "> " * 500 + "x",
        "- " * 500 + "x",
        "[" * 5000,
        "[![a](b)](c) **[d*e*](f)**",
        "|" * 3000,
        "<b>" * 100,
        "",
        "\n\n",
    ],
)
def test_any_nesting_can_be_shown(source: str) -> None:
    render(source, 40, colours=True)


def deep_list(levels: int) -> str:
    return "\n".join(f"{'  ' * level}- item{level}x" for level in range(levels))


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        (">" * 30 + " item0x", 80),
        (deep_list(30), 80),
        (deep_list(9), 40),
        (deep_list(6), 20),
        (deep_list(3), 10),
        ("> " * 9 + "item0x", 20),
    ],
)
def test_nothing_is_left_out_however_deep_it_is_nested(source: str, columns: int) -> None:
    shown = "".join("".join(render(source, columns, colours=False)).split())
    assert [item for item in re.findall(r"item\d+x", source) if item not in shown] == []


@pytest.mark.parametrize("count", [2, 13, 20, 60])
def test_no_cell_of_a_table_is_cut_or_left_out(count: int) -> None:
    cells = [f"/srv/{number}/" + chr(97 + number % 26) * 50 for number in range(count)]
    table = f"|{'h|' * count}\n|{'---|' * count}\n|{'|'.join(cells)}|\n"
    shown = "".join(render(table, 79, colours=False))
    assert "…" not in shown
    assert all(shown.count(cell[-1]) >= 50 for cell in cells)


LONG_CODE = ("```\n{}\n```", "```sh\n{}\n```", "    {}", "- a\n\n  ```\n  {}\n  ```", "> ```\n> {}\n> ```")


@pytest.mark.parametrize("source", LONG_CODE)
@pytest.mark.parametrize("columns", [80, 79, 60, 20])
def test_no_character_of_code_is_lost_where_it_is_wrapped(source: str, columns: int) -> None:
    for char, count in (("x", 500), ("日", 120)):
        lines = render(source.format(char * count), columns, colours=False)
        assert sum(line.count(char) for line in lines) == count


def test_code_is_at_the_left_to_be_copied() -> None:
    source = "text\n\n```python\ndef f():\n    return 1\n```\n\nmore"
    assert render(source, 80, colours=False) == ["text", "", "def f():", "    return 1", "", "more"]


def test_colours_can_be_read_on_black_and_on_white() -> None:
    source = "# H\n`code` [a](http://b) <http://c>\n- a\n1. b\n> c\n---\n|a|b|\n|-|-|\n|c|d|\n"
    source += '```python\n@x\nclass A(int):  # c\n    """d"""\n    a = len(1)\n```\n```diff\n+a\n-b\n```\n'
    seen = set(
        re.findall(
            r"[0-9]+", "".join(re.findall(r"\x1b\[[0-9;]*m", "\n".join(render(source, 80, colours=True))))
        )
    )
    styles, red_green_magenta = {"0", "1", "2", "3", "4", "9"}, {"31", "32", "35"}
    assert {"1", "35"} < seen <= styles | red_green_magenta


def test_a_dumb_terminal_has_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert render("| disk | used |\n|---|---|\n| sda1 | 93% |\n", 80, colours=False) == [
        "disk used",
        "sda1 93%",
    ]
    assert render("> said", 80, colours=False) == ["> said"]


def test_html_is_text() -> None:
    assert render("<details>hidden</details>", 80, colours=False) == ["<details>hidden</details>"]


def test_what_is_very_long_is_shown_as_it_is() -> None:
    assert render("**x**\n" + "y" * LONG_CHARS, 80, colours=True)[0] == "**x**"


# Streaming


def test_blocks_are_finished_once_and_nothing_is_lost() -> None:
    source = "".join(MARKDOWN) + "\n\n```sh\n# no heading\n\nls\n```\n1. a\n\n2. b\n\nlast"
    for size in (1, 3, 1000):
        passage = Passage()
        pieces = [passage.feed(source[at : at + size]) for at in range(0, len(source), size)]
        rest = passage.end()
        finished = [piece for piece in pieces if piece]
        assert "".join(f"{piece}\n" for piece in finished).replace("\n", "") + rest.replace("\n", "") == (
            source.replace("\n", "")
        )
        assert passage.text == source
        assert rest.endswith("last")
        assert not [piece for piece in finished if piece.count("```") == 1], "a fence stays whole"


def test_a_sequence_in_two_pieces_is_taken_out() -> None:
    passage = Passage()
    passage.feed("a\x1b]0;ti")
    passage.feed("tle\x07b")
    assert passage.end() == "ab"


def test_a_line_without_an_end_goes_out_in_pieces() -> None:
    passage, shown = Passage(), ""
    for _ in range(3000):
        shown += passage.feed("x" * 100)
        assert len(passage.rest) <= LONG_CHARS
    assert shown + passage.end() == passage.text == "x" * 300_000


# Pasted, named and folded


def test_a_pasted_block_stands_as_words_until_it_is_sent() -> None:
    pastes = Pastes()
    assert pastes.fold("a\r\nb") == "a\nb"
    block = "[pasted 9 lines]\n" * 9
    assert pastes.fold(block) == "[pasted 9 lines]"
    assert pastes.fold(block) == "[pasted 9 lines, 2]"
    assert pastes.fold("x" * 5000) == "[pasted 5000 characters]"
    assert pastes.whole("see [pasted 9 lines] [pasted 8 lines]") == f"see {block} [pasted 8 lines]"
    pastes.clear()
    assert pastes.whole("[pasted 9 lines]") == "[pasted 9 lines]"


def test_files_named_in_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b c").write_text("two")
    (tmp_path / "bin").write_bytes(b"\xff\xfe")
    found = named_files('see @a.txt, @"b c" @a.txt me@a.txt @nobody @/ and (@a.txt')
    assert [(each["name"], each["text"]) for each in found] == [("a.txt", "one"), ("b c", "two")]
    with pytest.raises(NotFound, match=r"no file \./x"):
        named_files("@./x")
    with pytest.raises(AttachmentInvalid):
        named_files("@bin")


def test_the_newest_outputs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightagentd.cli.chatting.folded._MOST_CHARS", 250)
    folded = Folded()
    with pytest.raises(NotFound):
        folded.find("")
    for number in range(3):
        folded.keep(f"call_{number}", f"tool.do{number}", f"{number}\x1b[2J" + "x" * 100)
    assert folded.find("")[0] == folded.find("1")[0] == "tool.do2"
    assert folded.find("2")[0] == folded.find("call_1")[0] == folded.find("tool.do1")[0] == "tool.do1"
    assert folded.find("")[1].startswith("2x")
    for word in ("3", "0", "call_0", "x"):
        with pytest.raises(NotFound):
            folded.find(word)


@pytest.mark.parametrize(
    ("wanted", "background", "found"),
    [
        ("", "", ""),
        ("", "15;0", "dark"),
        ("", "0;default;15", "light"),
        ("", "0;x", ""),
        ("light", "15;0", "light"),
        ("none", "15;0", ""),
    ],
)
def test_the_theme(wanted: str, background: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTAGENT_THEME", wanted)
    monkeypatch.setenv("COLORFGBG", background)
    assert theme() == found


def test_when_a_bell_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTAGENT_BELL", raising=False)
    assert [rings(1, None), rings(11, None), rings(11, True), rings(0, False)] == [False, True, True, True]
    monkeypatch.setenv("LIGHTAGENT_BELL", "off")
    assert not rings(11, False)


# Exactly once


def test_of_a_text_only_what_was_missed_is_shown() -> None:
    shown = Shown()
    shown.text("trace_1", "Hello wo")
    assert shown.rest_of("trace_1", "Hello world") == "rld"
    assert shown.rest_of("trace_1", "another") == "another"
    shown.text("trace_2", "all of it")
    assert shown.rest_of("trace_2", "all of it") == ""
    shown.text("trace_3", "something else")
    assert shown.rest_of("trace_3", "not that") == "not that"
    assert shown.first("call_1", shown.calls)
    assert not shown.first("call_1", shown.calls)


# Commands and questions


def test_a_line_is_a_prompt_or_a_command() -> None:
    assert parse("check disk") == "check disk"
    assert parse("//etc/passwd") == "/etc/passwd"
    assert parse("a /b") == "a /b"
    meant = parse("/ren  New title ")
    assert not isinstance(meant, str)
    assert (meant[0].name, meant[1]) == ("rename", "New title")


def test_every_beginning_that_means_one_command_is_enough() -> None:
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    for name in names:
        assert find(name).name == name
        for length in range(1, len(name)):
            begun = [other for other in names if other.startswith(name[:length])]
            if len(begun) == 1:
                assert find(name[:length]).name == name
            elif name[:length] not in names:
                with pytest.raises(InvalidArgument):
                    find(name[:length])


@pytest.mark.parametrize("line", ["/", "/nothing", "/etc/passwd", "/\x1b[2J"])
def test_no_command(line: str) -> None:
    with pytest.raises(InvalidArgument):
        parse(line)


@pytest.mark.parametrize(
    ("line", "answer"),
    [("y", "yes"), (" YES ", "yes"), ("n", "no"), ("", "no"), ("maybe", None), ("yes please do", None)],
)
def test_only_a_plain_yes_allows_a_call(line: str, answer: str | None) -> None:
    question = Question(id="apr_1", kind="approval", words="", summary="")
    assert question.answer(line) == answer


@pytest.mark.parametrize(
    ("line", "answer"),
    [("1", "red"), ("2", "3"), ("3", "3"), ("4", None), ("red", "red"), ("x", None), ("", None)],
)
def test_a_choice_by_its_number_or_its_text(line: str, answer: str | None) -> None:
    question = Question(id="inp_1", kind="input", words="", summary="", choices=("red", "3"))
    assert question.answer(line) == answer
    assert Question(id="inp_1", kind="input", words="", summary="").answer("7") == "7"


# Completion


class _Nobody:
    """Has no terminal to give away."""

    async def suspended(self, function: Callable[[], _T]) -> _T:
        return function()


def test_lactl_imports_what_draws_only_when_a_chat_begins() -> None:
    code = "import sys, lightagentd.cli.chat; print({'rich', 'prompt_toolkit', 'asyncio'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.txt").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "lo\x1bg").touch()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    found = Completions(Daemon(Settings(), _Nobody()))
    found._names = {"tool": ["file", "systemd"], "session": ["ses_1", "ses_2"], "agent": ["ops"]}

    def of(before: str) -> list[str]:
        return [text for _, text in found.of(before)]

    assert of("/se") == ["/sessions"]
    assert of("/switch ses_") == ["ses_1", "ses_2"]
    assert of("/sw ") == ["ses_1", "ses_2"]
    assert of("/tools s") == ["systemd"]
    assert of("/help de") == ["delete", "deny"]
    assert of("/plan a") == ["apply", "abort"]
    assert of("/plan set lo") == ["log.txt", "logs/"]
    assert of(f"/attach {tmp_path}/lo") == [f"{tmp_path}/log.txt", f"{tmp_path}/logs/"]
    assert of("look at ./lo") == ["./log.txt", "./logs/"]
    assert of("ask sys") == ["systemd"]
    assert of("look at @lo") == ["@log.txt", "@logs/"]
    assert of("/nothing x") == []
    assert list(files("/nonexistent/")) == []
    assert [text for _, text in files("")] == ["log.txt", "logs/"]
