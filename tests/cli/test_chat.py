"""`lactl chat` on a real pseudo-terminal, against the real daemon."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightagentd.cli.chatting.commands import COMMANDS
from tests.cli.chatting import Chatty, chatty, forked
from tests.cli.conftest import start
from tests.cli.terminal import LIMIT_S, Terminal, without_status


@pytest.fixture(scope="module")
def running() -> Iterator[Chatty]:
    with chatty() as found:
        yield found


@pytest.fixture
def chats(running: Chatty) -> Chatty:
    running.close_gate()
    return running


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the time is only there to end a test that fails."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def at_prompt(text: str) -> bool:
    return without_status(text).endswith("\ntest>")


def session_of(text: str) -> str:
    found = re.findall(r"ses_[0-9a-f]{16}", text)
    assert found, text
    return str(found[-1])


# Texts and turns


def test_an_answer_is_markdown_and_is_shown_once(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("the report\r")
        text = terminal.until("· 1 step")
        for once in ("> the report", "Report", "All is well.", " • one", "The end."):
            assert text.count(once) == 1, text
        assert "# Report" not in text
        assert "**" not in text
        assert re.search(r"disk +used\n ?─+\n ?sda1 +93%", text), text
        terminal.send("/exit\r")
        assert terminal.finished() == 0


def test_finished_blocks_stay_and_the_rest_is_live_and_ctrl_c_cancels(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("hang\r")
        terminal.until(lambda text: without_status(text).endswith("Half a\ntest>"))
        terminal.send("\x03")
        text = terminal.until("cancelled after")
        assert (text.count("A whole block."), text.count("Half a")) == (1, 1)
        terminal.send("\x03")
        terminal.until("Leave with Ctrl-D")
        terminal.send("after that\r")
        terminal.until("You said: after that")
        terminal.send("\x04")
        assert terminal.finished() == 0


def test_what_is_typed_ahead_waits_for_its_turn(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("run it\r")
        terminal.until("line 3")
        terminal.send("and more\r")
        terminal.until("· queued: and more")
        chats.open_gate()
        text = terminal.until("You said: and more")
        assert text.index("← bash.exec ok") < text.index("> and more") < text.index("You said: and more")
        terminal.send("\x04")
        terminal.finished()


def test_a_long_command_shows_its_last_lines_and_then_a_summary(chats: Chatty, sandboxed: None) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("run it\r")
        text = terminal.until("  line 3")
        assert re.search(r"→ bash\.exec command=.*\[observe\]", text, re.DOTALL), text
        chats.open_gate()
        text = terminal.until("· 2 steps")
        assert re.search(r"← bash\.exec ok [\d.]+m?s  3 lines", text), text
        assert "\n  line 1" not in text, "the lines of the command are gone"
        terminal.send("run and hang\r")
        text = terminal.until("Half a")
        assert "· bash.exec" not in text, "it does not run any more"
        terminal.send("\x03")
        terminal.until("cancelled after")
        terminal.send("\x04")
        terminal.finished()


def test_nothing_from_a_model_or_a_tool_acts_on_the_terminal(chats: Chatty, sandboxed: None) -> None:
    with chats.chat() as terminal:  # its screen fails the test for what is not ours
        terminal.until("test>")
        terminal.send("be evil\r")
        terminal.until("· 1 step")
        terminal.send("print evil\r")
        terminal.until("· 2 steps")
        raw = terminal.raw.decode()
        assert "\x1b]" not in raw
        assert "\u202e" not in raw
        assert "\x9b" not in raw
        assert "\x1b[2J" not in raw
        assert "click" in terminal.screen.text
        terminal.send("\x04")
        terminal.finished()


def test_lines_of_one_prompt(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("first\\\r")
        terminal.send("second\x1b\r")
        terminal.send("\x1b[200~third\nfourth\x1b[201~")
        terminal.until("fourth")
        terminal.send("\r")
        terminal.until("You said: first")
        (message, *_) = [each for each in _messages(chats) if each["role"] == "user"]
        assert message["content"] == "first\nsecond\nthird\nfourth"
        terminal.send("\x04")
        terminal.finished()


def _messages(chats: Chatty) -> list[dict[str, str]]:
    shown = chats.lactl("sessions", "show", chats.sessions()[0]["id"], "--json").stdout
    found: list[dict[str, str]] = json.loads(shown)["messages"]
    return found


# What is asked


def test_an_approval_is_asked_where_one_types(chats: Chatty) -> None:
    (chats.folder / "motd").unlink(missing_ok=True)
    with chats.chat(PAGER="cat") as terminal:
        terminal.until("test>")
        terminal.send("write it\r")
        text = terminal.until("Allow it, once? [y/N]")
        assert "+welcome" in text
        assert "[change]" in text
        terminal.send("what?\r")
        terminal.until("Answer y to allow it")
        terminal.send("v\r")
        terminal.until(lambda text: text.count("+welcome") == 2 and without_status(text).endswith("[y/N]"))
        terminal.send("/approve\r")
        terminal.until("Read it, and answer y, or write: /approve apr_")
        terminal.send("y\r")
        text = terminal.until("← file.write ok")
        assert "granted" in text
        terminal.until("· 2 steps")
        assert (chats.folder / "motd").read_text() == "welcome\n"
        terminal.send("/undo\r")
        terminal.until("← file.undo ok")
        terminal.until("-welcome\n")
        assert not (chats.folder / "motd").exists()
        terminal.send("\x04")
        terminal.finished()


def test_a_line_begun_before_a_question_is_no_answer_to_it(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("which colour\rgree")  # goes on when the question is over
        terminal.until("Answer (1-2):")
        terminal.send("2\r")
        terminal.until("answered by ")
        text = terminal.until("The tool said: ")
        assert "green" in text
        terminal.until("test> gree")
        terminal.send("n\r")
        terminal.until("You said: green")
        terminal.send("\x04")
        terminal.finished()


def test_an_answer_given_elsewhere_ends_the_question(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("write it\r")
        terminal.until("Allow it, once? [y/N]")
        (approval,) = [line.split("\t")[0] for line in chats.lactl("approvals").stdout.splitlines()]
        assert chats.lactl("deny", approval, "--note", "not now").returncode == 0
        terminal.until("not now")
        terminal.until("· 2 steps")
        terminal.until(at_prompt)
        terminal.send("\x04")
        terminal.finished()


def test_a_cut_id_of_another_session_shows_what_it_would_allow(chats: Chatty) -> None:
    null = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    prompt = ["prompt", "test", "--new", "write it"]
    with chats.chat() as terminal, start(prompt, env=chats.env, **null):
        terminal.until("test>")
        until(lambda: bool(chats.lactl("approvals").stdout))
        found = chats.lactl("approvals").stdout
        terminal.send(f"/approve {found[:8]}\r")
        assert "+welcome" in terminal.until("Allow it, once? [y/N]")
        assert chats.lactl("approvals").stdout == found
        terminal.send("y\r")
        terminal.until("Allowed, once: file.write")
        terminal.send("\x04")
        terminal.finished()
    (chats.folder / "motd").unlink()


def test_what_others_prompt_is_shown(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        chats.lactl("prompt", "test", "--session", session, "from elsewhere")
        text = terminal.until("You said: from elsewhere")
        assert "> from elsewhere" in text
        terminal.send("\x04")
        terminal.finished()


# Commands


def test_commands_by_a_unique_beginning(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("/ren The  title\r")
        terminal.until("It is called The title now.")
        terminal.send("/sess\r")
        terminal.until("  The title")
        terminal.send("/s\r")
        terminal.until("/s may be: /sessions /switch /skills")
        terminal.send("/hepl\r")
        terminal.until("There is no command /hepl.")
        terminal.until("Did you mean /help")
        terminal.send("//etc\r")
        terminal.until("You said: /etc")
        terminal.send("/exit\r")
        assert terminal.finished() == 0


def test_every_command_says_something(chats: Chatty, tmp_path: Path) -> None:
    target = tmp_path / "talk.md"
    with chats.chat(rows=100) as terminal:
        terminal.until("test>")
        terminal.send("hello\r")
        terminal.until("You said: hello")
        for command, wanted in (
            ("/help", "Ctrl-D leaves."),
            ("/history", "  You said: hello"),
            ("/usage", "cost:"),
            ("/context", "/compact does that now"),
            ("/compact", "only the newest turn is in the context"),
            ("/agent", "  other  openai/x"),
            ("/agent nobody", "nobody"),
            ("/output", "No call has ended here yet."),
            ("/reasoning", "The model has told no reasoning here."),
            ("/reasoning off", "is folded from now on."),
            ("/copy 1", "The last answer has 0 blocks of code."),
            ("/model", "openai/x"),
            ("/model nobody/x", "The agent test has no model 'nobody/x'"),
            ("/model openai/x", "openai/x is asked first from now on."),
            ("/model", "This session asks openai/x first"),
            ("/model default", "the model of the agent is asked first"),
            ("/tools", "TOOL"),
            ("/tools file", "ACTION"),
            ("/skills", "SKILL"),
            ("/pause", "Paused:"),
            ("so be it", "/resume takes it up again, and brings back what you typed."),
            ("/resume", "It takes prompts again.\ntest> so be it"),
            ("", "You said: so be it"),
            ("/plan", "There is no plan."),
            ("/plan on", "test (drafting)>"),
            ("/plan off", "There is no plan. "),
            (f"/export {target}", "Written:"),
            (f"/export {target}", "There is a file"),
            ("/fork A copy", "A copy of ses_"),
            ("/new", "A new session with test:"),
            ("/approve", "No call of this session waits"),
            ("/answer x", "No question of this session waits"),
            ("/delete", "is deleted."),
        ):
            before = terminal.screen.text.count(wanted)
            terminal.send(f"{command}\r")
            terminal.until(lambda text: text.count(wanted) > before)  # noqa: B023 - called at once
        terminal.send("/exit\r")
        assert terminal.finished() == 0
    assert "You said: hello" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_plan_that_can_be_applied_is_shown_whole_each_time_it_is_another(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        for text in ("Rotate the logs.", "Remove the logs."):
            plan = {"title": "Logs", "tasks": [{"text": text, "check": "test -e /var/log"}]}
            assert chats.lactl("plan", "set", session, "-", stdin=json.dumps(plan).encode()).returncode == 0
            terminal.until(text)
        terminal.until(lambda found: found.count("check: test -e /var/log") == 2)
        terminal.send("\x04")
        terminal.finished()


def test_deleting_what_was_said_is_asked_about(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        terminal.send("hello\r")
        terminal.until("· 1 step")
        terminal.send("/delete\r")
        terminal.until("said in it? [y/N]")
        terminal.send("\r")
        terminal.until("It stays.")
        terminal.send("/delete\r")
        terminal.until(lambda text: text.count("said in it? [y/N]") == 2)
        terminal.send("y\r")
        terminal.until(f"{session} is deleted.")
        terminal.send("\x04")
        terminal.finished()
    assert session not in [each["id"] for each in chats.sessions()]


def test_a_session_that_is_deleted_elsewhere_is_left(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        chats.lactl("sessions", "delete", session)
        terminal.until(f"The session {session} was deleted.")
        terminal.until(lambda text: len(set(re.findall(r"ses_[0-9a-f]{16}", text))) > 1)
        terminal.send("hello\r")
        terminal.until("You said: hello")
        terminal.send("\x04")
        terminal.finished()


def test_switching_shows_what_was_said(chats: Chatty) -> None:
    with chats.chat() as terminal:
        first = session_of(terminal.until("test>"))
        terminal.send("remember me\r")
        terminal.until("· 1 step")
        terminal.send("/new\r")
        terminal.until(lambda text: text.count("A new session") == 2)
        terminal.send(f"/switch {first[:12]}\r")
        text = terminal.until(f"The session {first}: remember me")
        terminal.until(lambda text: text.count("You said: remember me") == 2)
        terminal.send("/switch ses_0000000000000000\r")
        terminal.until("There is no session")
        terminal.send("\x04")
        terminal.finished()
    assert text
    assert next(each for each in chats.sessions() if each["current"])["id"] == first


def test_a_file_goes_with_the_next_prompt(chats: Chatty, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("the disk is full")
    (tmp_path / "log.bin").write_bytes(b"\xff\x00")
    with chats.chat(columns=200) as terminal:
        terminal.until("test>")
        terminal.send(f"/attach {tmp_path}/log.bin\r")
        terminal.until("is binary")
        terminal.send(f"/att\t {tmp_path}/log.t\t")
        terminal.until("/log.txt")
        terminal.send("\r")
        terminal.until("goes with the next prompt")
        terminal.until("(1 attached)")
        terminal.send("look\r")
        terminal.until("You said: look")
        assert "the disk is full" in _messages(chats)[0]["content"]
        terminal.send("\x04")
        terminal.finished()


def test_what_was_typed_is_kept_for_its_owner(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("keep this\r")
        terminal.until("You said: keep this")
        terminal.send("\x04")
        terminal.finished()
    path = chats.folder / "state-home" / "lightagent" / "chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("\x1b[A")
        terminal.until("test> keep this")
        terminal.send("\x03")
        terminal.until(at_prompt)
        terminal.send("\x04")
        terminal.finished()


# What is brought along, looked at and sent again


def test_the_output_of_an_own_command_goes_with_the_next_prompt(chats: Chatty) -> None:
    with chats.chat(SHELL="/bin/sh") as terminal:
        terminal.until("test>")
        terminal.send("!printf 'a\\033]0;t\\007\\033[31mb\\n'; echo oh >&2; seq 40; exit 3\r")
        text = terminal.until("exit status 3, 42 lines; goes with the next prompt")
        assert "… 12 lines before these; /output shows all of it\n11\n" in text
        terminal.until("test (1 attached)>")
        terminal.send("/output\r")
        terminal.until("\nab\noh\n1\n")
        terminal.send("!echo here; sleep 600\r")
        terminal.until("  here")
        terminal.send("\x03")
        terminal.until("· cancelled: echo here; sleep 600")
        terminal.send("what is this\r")
        terminal.until("You said: what is this")
        terminal.send("!!loud\r")
        terminal.until("You said: !loud")
        terminal.send("\x04")
        terminal.finished()
    prompts = [each["content"] for each in _messages(chats) if each["role"] == "user"]
    assert prompts[0].startswith("what is this\n")
    assert "exit 3\nab\noh\n1\n" in prompts[0]
    assert "\n40\n[exit status 3]\n" in prompts[0]
    assert "sleep" not in prompts[0]
    assert prompts[1] == "!loud"


def test_a_file_that_a_prompt_names_is_attached(chats: Chatty, tmp_path: Path) -> None:
    (tmp_path / "a note.txt").write_text("the disk is full")
    with chats.chat(columns=200) as terminal:
        terminal.until("test>")
        terminal.send(f"see @{tmp_path}/a\t")
        terminal.until(f'@"{tmp_path}/a note.txt"')
        terminal.send(" and ask @nobody\r")
        terminal.until("You said: see")
        terminal.send(f"and @{tmp_path}/none\r")
        terminal.until("There is no file ")
        terminal.until(f"test> and @{tmp_path}/none")
        terminal.send("\x03")
        terminal.until(at_prompt)
        terminal.send("\x04")
        terminal.finished()
    assert "the disk is full" in _messages(chats)[0]["content"]


def test_lines_of_a_pipe_are_no_commands_and_name_no_files(chats: Chatty, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the word")
    lines = f"!touch {tmp_path}/made\nsee @{tmp_path}/secret\n"
    done = chats.lactl("chat", "test", "--new", stdin=lines.encode())
    assert done.stdout == f"You said: !touch {tmp_path}/made\nYou said: see @{tmp_path}/secret\n"
    assert not (tmp_path / "made").exists()


def test_a_prompt_is_sent_again_and_edited_and_an_answer_copied(chats: Chatty, tmp_path: Path) -> None:
    with chats.chat(EDITOR="sh -c 'echo edited >> \"$0\"'") as terminal:
        terminal.until("test>")
        terminal.send("the code\r")
        terminal.until("1 step")
        terminal.send("/copy\r")
        terminal.until("The answer (")
        assert terminal.screen.clipboard == "Run this:\n\n```sh\nls -l\n```\n\nor\n\n```sh\ndf\n```\n"
        terminal.send("/copy 1\r")
        terminal.until("The block of code 1 (")
        assert terminal.screen.clipboard == "ls -l\n", "no end of a paste is in it"
        terminal.send(f"/copy 2 {tmp_path}/code\r")
        terminal.until("Written: ")
        assert (tmp_path / "code").read_text() == "df\n"
        terminal.send("/retry\r")
        terminal.until(lambda text: text.count("1 step") == 2)
        terminal.send("/retry nobody/x\r")
        terminal.until("has no model 'nobody/x'")
        terminal.send("/edit\r")
        terminal.until("> the code\n  edited")
        terminal.until(lambda text: text.count("1 step") == 3)
        terminal.send("draft\x18\x05")
        terminal.until(lambda text: re.search(r"test> draft\n +edited", text) is not None)
        terminal.send("\x03")
        terminal.until(at_prompt)
        terminal.send("\x04")
        terminal.finished()
    prompts = [each["content"] for each in _messages(chats) if each["role"] == "user"]
    assert prompts == ["the code", "the code", "the code\nedited"]


def test_a_paste_of_many_lines_is_one_block_and_never_a_command(chats: Chatty) -> None:
    block = "!touch /nonexistent\n" + "\n".join(f"line {number} @/etc/hostname" for number in range(44))
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send(f"\x1b[200~{block}\x1b[201~")
        terminal.until("test> [pasted 45 lines]")
        terminal.send(f" and \x1b[200~{block}\x1b[201~")
        terminal.until("[pasted 45 lines] and [pasted 45 lines, 2]")
        terminal.send("\r")
        terminal.until("You said: !touch")
        terminal.send("\x04")
        terminal.finished()
    (prompt,) = [each["content"] for each in _messages(chats) if each["role"] == "user"]
    assert prompt == f"{block} and {block}"


def test_reasoning_is_folded_and_shown_when_asked(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("think\r")
        text = terminal.until(lambda text: re.search(r"· thinking \d+s  \d+B", text) is not None)
        assert "\n  Thought" not in text
        terminal.send("\x14")
        terminal.until("\n  Thought ")
        text = terminal.until("1 step")
        assert "So it is." in text
        terminal.send("/reasoning off\r")
        terminal.until("is folded from now on.")
        terminal.send("think\r")
        terminal.until("· thought: Thought 0. (9 lines)")
        terminal.until(lambda text: text.count("1 step") == 2)
        terminal.send("\x14")
        terminal.until("The reasoning before the last answer:\nThought 0.\nThought 1.")
        terminal.send("\x04")
        terminal.finished()


def test_what_a_call_gave_is_folded_and_shown_whole(chats: Chatty, sandboxed: None) -> None:
    chats.open_gate()
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("run it\r")
        text = terminal.until("· 2 steps")
        assert "\n  line 1" not in text
        terminal.send("\x0f")
        terminal.until("bash.exec:\nline 1\nline 2\nline 3")
        terminal.send("/output file\r")
        terminal.until("There is no output of 'file' here.")
        terminal.send("\x04")
        terminal.finished()


def test_the_status_and_a_bell_for_who_looks_elsewhere(chats: Chatty) -> None:
    with chats.chat(LIGHTAGENT_BELL="3600") as terminal:
        terminal.until("test · new session · openai/x")
        terminal.send("hello\r")
        terminal.until("test · hello · openai/x · 0.0k of 128k (0%) tokens")
        terminal.until("1 step")  # the status is there before the turn has ended
        assert terminal.screen.bells == 0
        terminal.send("\x1b[O")
        terminal.send("write it\r")
        terminal.until("Allow it, once? [y/N]")
        terminal.until("· waits for you")
        assert terminal.screen.bells == 1
        terminal.send("\x1b[I")
        terminal.send("n\r")
        terminal.until("2 steps")
        terminal.until(at_prompt)
        assert terminal.screen.bells == 1, "the person looks"
        terminal.send("\x04")
        terminal.finished()
    assert b"\x1b[?1004l" in terminal.raw[-200:]


def test_another_size_of_the_terminal_leaves_nothing_behind(chats: Chatty) -> None:
    with chats.chat(columns=100) as terminal:
        terminal.until("test · new session")
        terminal.send("run it\r")
        terminal.until("line 3")
        for columns in (70, 45, 90):
            terminal.resize(columns, 30)
            terminal.until(lambda text: text.count("· bash.exec") == 1 and text.count("test · run it") == 1)
        chats.open_gate()
        terminal.until("2 steps")
        once = ("\ntest>", "test · run it", "→ bash.exec", "← bash.exec")
        terminal.until(lambda text: all(text.count(each) == 1 for each in once) and "· bash" not in text)
        terminal.send("\x04")
        terminal.finished()


def test_clear_begins_anew_on_an_empty_screen(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        terminal.send("hello\r")
        terminal.until("1 step")
        terminal.send("/clear\r")
        text = terminal.until(f"The former one stays; back with: /switch {session}")
        assert "hello" not in text
        terminal.send("/agent third\r")
        terminal.until("third>")
        terminal.send("\x04")
        terminal.finished()
    assert session in [each["id"] for each in chats.sessions()]


def test_leave_for_the_session_and_a_rule(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        terminal.send("write it\r")
        terminal.until("Allow it, once? [y/N]")
        assert "\x1b[32m+welcome" in terminal.raw.decode(), "the diff has colours"
        terminal.send("a\r")
        text = terminal.until("Write this rule?")
        assert "file.write" in text
        terminal.send("n\r")
        terminal.until(lambda text: without_status(text).endswith("Allow it, once? [y/N]"))
        terminal.send("s\r")
        terminal.until("2 steps")
        terminal.send("\x04")
        terminal.finished()
    assert "leave_" in chats.lactl("sessions", "show", session).stdout
    (chats.folder / "motd").unlink()


# Beginning


def test_an_agent_without_a_model_says_what_works(chats: Chatty) -> None:
    text = _begin(chats, "ops", "--new")
    assert "it answers from its skills, which /skills lists." in text
    assert "give it a model: lactl setup" in text


def test_which_session_it_begins_with(chats: Chatty) -> None:
    text = _begin(chats, "other")
    assert "A new session with other" in text
    (only,) = chats.sessions("other")
    text = _begin(chats, "other")
    assert f"The session {only['id']}" in text
    assert "more session" not in text
    _begin(chats, "other", "--new")
    assert len(chats.sessions("other")) == 2
    chats.lactl("sessions", "switch", only["id"])
    text = _begin(chats, "other")
    assert "1 more session, /switch opens one:" in text
    assert f"The session {only['id']}" in text
    (rest,) = [each["id"] for each in chats.sessions("other") if each["id"] != only["id"]]
    assert f"The session {rest}" in _begin(chats, "other", "--session", rest)


def _begin(chats: Chatty, agent: str, *arguments: str) -> str:
    with Terminal(["chat", agent, *arguments], env=chats.env, start=forked) as terminal:
        terminal.until(f"{agent}>")
        terminal.send("\x04")
        assert terminal.finished() == 0
        return terminal.screen.text


def test_a_session_that_waits_asks_again_when_it_is_opened(chats: Chatty) -> None:
    with chats.chat() as terminal:
        session = session_of(terminal.until("test>"))
        terminal.send("which colour\r")
        terminal.until("Answer (1-2):")
        terminal.send("\x04")
        assert terminal.finished() == 0
        assert "The turn goes on." in terminal.screen.text
    with chats.chat("--session", session) as terminal:
        text = terminal.until("Answer (1-2):")
        assert "> which colour" in text
        assert "A turn waits" in text
        terminal.send("1\r")
        terminal.until("· 2 steps")
        terminal.send("\x04")
        terminal.finished()


# Other terminals


def test_forty_columns(chats: Chatty) -> None:
    with chats.chat(columns=40, rows=15) as terminal:
        terminal.until("test>")
        terminal.send("the report\r")
        text = terminal.until("· 1 step")
        assert "- disk: sda1\n  used: 93%" in text
        terminal.send("/help\r")
        text = terminal.until("Ctrl-D leaves.")
        assert "/attach FILE\n" in text
        terminal.send("\x04")
        assert terminal.finished() == 0


def test_a_dumb_terminal_gets_lines(chats: Chatty) -> None:
    with chats.chat(TERM="dumb") as terminal:
        terminal.until("test>")
        terminal.send("the report\n")
        terminal.until("· 1 step")
        terminal.send("which colour\n")
        terminal.until("Answer (1-2):")
        terminal.send("red\n")
        terminal.until("· 2 steps")
        terminal.send("hang\n")
        terminal.until("A whole block.")
        terminal.send("\x03")
        terminal.until("cancelled after")
        terminal.send("/exit\n")
        assert terminal.finished() == 0
        assert b"\x1b" not in terminal.raw


def test_a_screen_reader_gets_words_and_lines(chats: Chatty) -> None:
    with chats.chat("--new", "--plain") as terminal:
        terminal.until("test:")
        terminal.send("the report\n")
        text = terminal.until("1 step")
        assert "- disk: sda1\n  used: 93%" in text
        terminal.send("write it\n")
        text = terminal.until("Allow it, once? [y/N]")
        assert "    line: welcome\n" in text
        assert "  added: welcome\n" in text
        terminal.send("n no\n")
        text = terminal.until("\n2 steps")
        assert re.search(
            "^Call: file.write .*^Result: file.write approval_denied", text, re.MULTILINE | re.DOTALL
        )
        terminal.send("/exit\n")
        assert terminal.finished() == 0
        assert b"\x1b" not in terminal.raw
        assert not set("→←·─│") & set(terminal.screen.text)


def test_without_colours(chats: Chatty) -> None:
    with chats.chat(NO_COLOR="1") as terminal:
        terminal.until("test>")
        terminal.send("the report\r")
        terminal.until("· 1 step")
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", terminal.raw)
        terminal.send("\x04")
        terminal.finished()


def test_lines_from_a_program_are_prompts(chats: Chatty) -> None:
    done = chats.lactl("chat", "test", "--new", stdin=b"one\n\n/rename Piped\n//two")
    assert (done.returncode, done.stdout) == (0, "You said: one\nIt is called Piped now.\nYou said: /two\n")
    done = chats.lactl("chat", "test", "--new", stdin=b"/nonsense\n")
    assert done.returncode == 65
    assert done.stderr.startswith("lactl: There is no command /nonsense.")
    done = chats.lactl("chat", "test", "--new", stdin=b"which colour\n/answer green\n")
    assert done.returncode == 0
    assert "green" in done.stdout


def test_an_output_that_cannot_be_written_ends_lines_from_a_program(chats: Chatty) -> None:
    pipe = subprocess.PIPE
    with (
        Path("/dev/full").open("w") as full,
        start(["chat", "test", "--new"], env=chats.env, stdin=pipe, stdout=full, stderr=pipe) as process,
    ):
        _, err = process.communicate(b"one\n", timeout=60)
    assert process.returncode == 74
    assert err == b"lactl: The output cannot be written: No space left on device.\n"


def test_a_reader_of_the_output_that_leaves_ends_lines_from_a_program_quietly(chats: Chatty) -> None:
    pipe = subprocess.PIPE
    with start(["chat", "test", "--new"], env=chats.env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(b"one\ntwo\n", timeout=60)
    assert (process.returncode, err) == (-signal.SIGPIPE, b"")


def test_help_is_broken_between_words(chats: Chatty) -> None:
    for columns in (80, 40):
        with chats.chat(columns=columns) as terminal:
            terminal.until("test>")
            terminal.send("/help\r")
            shown = terminal.until("leaves.").splitlines()
            terminal.send("\x04")
            terminal.finished()
        words = set(" ".join(shown).split())
        assert [one.name for one in COMMANDS if not words.issuperset(one.help.split())] == []


def test_ctrl_c_ends_lines_from_a_program_and_their_turn(chats: Chatty) -> None:
    (chats.folder / "lines").write_text("hang\none\ntwo\nthree\n")
    with (chats.folder / "lines").open() as lines:
        process = start(
            ["chat", "test", "--new"],
            env=chats.env,
            stdin=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    with process:
        until(lambda: [(one["state"], one["title"]) for one in chats.sessions()[:1]] == [("running", "hang")])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    until(lambda: chats.sessions()[0]["state"] == "idle")
    prompt, answer = _messages(chats)
    assert prompt["content"] == "hang"
    assert answer["cut_off"].startswith("Error (cancelled)")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["test", "--json"], 2, "'lactl prompt --json'"),
        (["nobody"], 66, "nobody"),
        (["test", "--session", "ses_0000000000000000"], 66, "ses_0000000000000000"),
        (["test", "--new", "--session", "ses_1"], 2, "cannot be used together"),
        (["test", "--socket", "/nonexistent/socket"], 69, "not running"),
    ],
)
def test_what_cannot_begin(chats: Chatty, arguments: list[str], status: int, words: str) -> None:
    done = chats.lactl("chat", *arguments)
    assert done.returncode == status
    assert words in done.stderr
