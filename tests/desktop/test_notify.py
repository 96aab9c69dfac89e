"""`lightagent-notify` on a private bus, with a notification server of its own making and a real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightagentd.desktop.board import Board, Card
from lightagentd.desktop.daemon_link import _TOPICS, DaemonLink
from lightagentd.desktop.screen import Screen
from lightagentd.host.paths import Paths
from lightagentd.policy.questions.question import State, now_us
from tests.agents.asking import add, approvals, asked, asking, lines, prepare
from tests.agents.scripted import ME, Scripted, until
from tests.conftest import REPOSITORY
from tests.desktop.conftest import notification_server
from tests.fake_systemd import private_bus
from tests.scripted_daemon import Connection, ScriptedDaemon, status
from tests.scripted_model import Script, call, say


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a test looks at of a running notifier."""

    board: Board
    link: DaemonLink


@contextlib.asynccontextmanager
async def notifier(
    socket: Path, *, min_s: float = 1000.0, uid: int | None = None, guard_s: float = 0.0
) -> AsyncIterator[Parts]:
    """The program's parts as `notify.show` puts them together, in this process."""
    board = Board()
    link = DaemonLink(board, socket=str(socket), uid=os.getuid() if uid is None else uid, min_s=min_s)
    screen = Screen(board, link.answer, guard_s=guard_s)
    tasks = [asyncio.create_task(link.run()), asyncio.create_task(screen.run())]
    try:
        yield Parts(board=board, link=link)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


def script(path: Path, **more: Any) -> Script:
    return [call("probe_add", add(path, **more)), say("all is well")]


def asks_always(path: Path) -> Script:
    """A model that asks for the call in each prompt."""
    return [call("probe_add", add(path))]


async def prompt(test: Scripted, text: str = "go") -> None:
    await test.agent.prompt(await test.session(), text)


def out(paths: Paths) -> Path:
    return paths.state.parent / "out" / "lines"


async def test_a_question_is_shown_with_what_would_run_and_approved_by_its_button(
    paths: Paths, session_bus: str
) -> None:
    async with (
        asking(paths, script(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        await asked(test)
        note = await server.has(1)
        assert note["summary"] == "Agent test asks to run probe.add"
        assert f"path: {out(paths)}\nline: ran\n" in note["body"]
        assert "What it would do: +ran" in note["body"]
        assert "It can be answered until" in note["body"]
        assert note["actions"] == ["deny", "Deny", "approve", "Approve once"]
        assert (note["expires_ms"], note["hints"]["urgency"]) == (0, 1)
        await server.click(note, "approve")
        await until(lambda: lines(out(paths)) == ["ran"])
        await until(lambda: approvals(test)[0].state is State.USED)
        assert approvals(test)[0].answered_by == os.getuid()
    assert len(server.notes) == 1


async def test_deny_refuses_the_call(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, script(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        await server.click(await server.has(1), "deny")
        await until(lambda: approvals(test)[0].state is State.DENIED)
        assert lines(out(paths)) == []


@pytest.mark.parametrize("key", ["default", "", "approve-all"])
async def test_a_click_that_is_no_button_of_ours_answers_nothing(
    paths: Paths, session_bus: str, key: str
) -> None:
    async with (
        asking(paths, asks_always(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        note = await server.has(1)
        await server.click(note, key)
        await server.click(note, "approve")  # it is closed: whatever comes of it now is no answer
        await prompt(test)
        await server.has(2)
        assert {one.state for one in approvals(test)} == {State.WAITING}


async def test_an_approval_that_comes_with_the_notification_is_not_taken(
    paths: Paths, session_bus: str
) -> None:
    async with (
        asking(paths, script(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket, guard_s=3600.0),
    ):
        await prompt(test)
        await server.click(await server.has(1), "approve")
        again = await server.has(2)
        assert approvals(test)[0].state is State.WAITING
        await server.click(again, "deny")  # a refusal may be as quick as it likes
        await until(lambda: approvals(test)[0].state is State.DENIED)


async def test_a_signal_of_a_program_that_is_not_the_server_is_no_click(
    paths: Paths, session_bus: str
) -> None:
    from lightagentd.bus.connection import connect

    async with (
        asking(paths, asks_always(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
        connect(session_bus) as liar,
    ):
        await prompt(test)
        note = await server.has(1)
        path, name = "/org/freedesktop/Notifications", "org.freedesktop.Notifications"
        await liar.emit(path, name, "ActionInvoked", "us", [note["id"], "approve"])
        await server.order("close", 999, 2)  # goes the same way, later
        await prompt(test)
        await server.has(2)
        assert {one.state for one in approvals(test)} == {State.WAITING}


async def test_a_question_answered_elsewhere_goes_from_the_screen(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, script(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        note = await server.has(1)
        question = await asked(test)
        await test.daemon.service.approvals.deny(ME, question.id, "not now")
        await server.until(lambda: server.closed == [note["id"]])
    assert len(server.notes) == 1


async def test_a_question_whose_time_is_over_goes_from_the_screen(session_bus: str) -> None:
    board = Board()
    screen = Screen(board, _no_answer)
    async with notification_server(session_bus) as server:
        task = asyncio.create_task(screen.run())
        board.ask(Card(key="apr_1", summary="one", body="", expires_us=now_us() + 3_600_000_000))
        board.ask(Card(key="apr_2", summary="two", body="", expires_us=now_us() + 300_000))
        await server.until(lambda: server.closed == [2])
        assert list(board.questions) == ["apr_1"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.until(lambda: server.closed == [2, 1])  # the program takes back what it has shown


async def _no_answer(card: Card, answer: str) -> bool:
    raise AssertionError("nobody clicked")


async def test_a_question_that_was_closed_by_hand_is_not_put_again(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, asks_always(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket) as parts,
    ):
        await prompt(test)
        note = await server.has(1)
        await server.order("close", note["id"], 2)
        await prompt(test)
        await server.has(2)
        parts.board.tell(Card(key="last", summary="the last", body=""))  # told after all questions
        assert (await server.has(3))["summary"] == "the last"
        assert {one.state for one in approvals(test)} == {State.WAITING}


async def test_a_server_without_buttons_gets_the_command_and_no_markup(
    paths: Paths, session_bus: str
) -> None:
    line = "<b>&amp;</b>"
    async with (
        asking(paths, script(out(paths), line=line)) as test,
        notification_server(session_bus, "body") as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        note = await server.has(1)
        question = await asked(test)
        assert note["actions"] == []
        assert f"line: {line}" in note["body"]
        assert f"lactl approve {question.id}" in note["body"]


async def test_a_server_with_markup_gets_none_of_the_models(paths: Paths, session_bus: str) -> None:
    line = "<a href='http://x/'>ok</a> \x1b[2J \u202egnp"
    async with (
        asking(paths, script(out(paths), line=line)) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        note = await server.has(1)
        assert "line: &lt;a href='http://x/'&gt;ok&lt;/a&gt; \\x1b[2J \\u202egnp" in note["body"]


async def test_what_does_not_fit_can_be_refused_and_not_approved(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, script(out(paths), line="x" * 5000)) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        note = await server.has(1)
        assert note["actions"] == ["deny", "Deny"]
        assert len(note["body"]) < 1500
        assert f"lactl approvals show {(await asked(test)).id}" in note["body"]


async def test_a_question_with_a_secret_does_not_show_it(paths: Paths, session_bus: str) -> None:
    secret = "correct-horse"
    async with (
        asking(paths, script(out(paths), key=secret)) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        note = await server.has(1)
        assert note["actions"] == ["deny", "Deny"]
        assert secret not in str(note)
        assert (await asked(test)).volatile


async def test_others_questions_are_not_shown(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, script(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket, uid=os.getuid() + 1, min_s=0.0) as parts,
    ):
        await until(lambda: _follows(test))
        await prompt(test)
        question = await asked(test)
        await test.daemon.service.approvals.deny(ME, question.id, "")
        await until(lambda: test.stored(topic="session.turn")[-1].type == "done")
        done = test.stored(topic="session.turn")[-1].seq
        await until(lambda: parts.link._next["session.turn"] > done)
        parts.board.tell(Card(key="last", summary="the last", body=""))
        assert (await server.has(1))["summary"] == "the last"


async def test_a_prompt_that_took_long_is_told_with_its_answer(paths: Paths, session_bus: str) -> None:
    answer = "all <i>is</i> well\n\n" + "and more\n" * 100
    async with (
        asking(paths, [say(answer)]) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket, min_s=0.0),
    ):
        await until(lambda: _follows(test))
        await prompt(test, "is all well?")
        note = await server.has(1)
        assert note["summary"] == "Agent test has answered"
        assert note["body"].startswith("is all well?\nall &lt;i&gt;is&lt;/i&gt; well\nand more\n")
        assert "…\n" in note["body"]
        assert "lactl sessions show ses_" in note["body"]
        assert (note["actions"], note["expires_ms"]) == ([], -1)


async def test_of_short_prompts_only_unattended_ones_are_told(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, [say("first"), say("second")]) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await until(lambda: _follows(test))
        await prompt(test)
        await until(lambda: test.stored(topic="session.turn")[-1:] and _ended(test) == 1)
        session = await test.session()
        await test.agent.prompt(session, "go", unattended=True)
        note = await server.has(1)
        assert "second" in note["body"]


async def test_a_failure_is_told_and_a_cancel_is_not(paths: Paths, session_bus: str) -> None:
    answers = [call("probe_add", add(out(paths))), call("probe_add", {"no": 1})]
    async with (
        asking(paths, answers, front="limits: {max_steps: 2}") as test,
        notification_server(session_bus) as server,
        notifier(paths.socket, min_s=0.0),
    ):
        await until(lambda: _follows(test))
        session = await test.session()
        await test.agent.prompt(session, "cancelled")
        await asked(test)
        await server.has(1)
        await test.daemon.service.conversations.cancel(ME, session.id)
        await until(lambda: test.stored(topic="agent.error"))
        await test.agent.prompt(session, "again")
        note = await server.has(2)
        assert note["summary"] == "Agent test failed"


def _follows(test: Scripted) -> bool:
    """Whether the notifier hears of everything from here on."""
    return test.daemon.feed.followers == len(_TOPICS)


def _ended(test: Scripted) -> int:
    return sum(event.type == "done" for event in test.stored(topic="session.turn"))


async def test_a_server_that_comes_later_or_again_shows_what_is_open_and_news_once(
    paths: Paths, session_bus: str
) -> None:
    async with asking(paths, script(out(paths))) as test, notifier(paths.socket) as parts:
        await prompt(test)
        await asked(test)
        await until(lambda: parts.board.questions)
        parts.board.tell(Card(key="news", summary="news", body=""))
        async with notification_server(session_bus) as first:
            await first.has(2)
            assert {note["summary"] for note in first.notes} == {"news", "Agent test asks to run probe.add"}
        async with notification_server(session_bus) as second:
            note = await second.has(1)
            assert note["summary"] == "Agent test asks to run probe.add"
            await second.click(note, "approve")
            await until(lambda: lines(out(paths)) == ["ran"])


async def test_a_server_that_refuses_is_asked_again(paths: Paths, session_bus: str) -> None:
    async with (
        asking(paths, script(out(paths))) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await server.order("refuse", True)
        await prompt(test)
        await asked(test)
        await server.order("refuse", False)
        await server.has(1)


async def test_a_bus_that_goes_and_comes_back(paths: Paths, tmp_path: Path) -> None:
    board = Board()
    board.ask(Card(key="apr_1", summary="one", body="", expires_us=now_us() + 3_600_000_000))
    link = tmp_path / "bus"
    task = asyncio.create_task(Screen(board, _no_answer, bus=f"unix:path={link}").run())
    for _ in range(2):
        with private_bus() as address:
            async with notification_server(address) as server:
                link.unlink(missing_ok=True)
                link.symlink_to(address.partition("path=")[2].partition(",")[0])
                await server.has(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_daemon_that_is_started_again_is_taken_up_without_a_gap_or_a_double(
    paths: Paths, session_bus: str
) -> None:
    prepare(paths)
    async with notification_server(session_bus) as server, notifier(paths.socket, min_s=0.0):
        async with asking(paths, script(out(paths))) as test:
            await until(lambda: _follows(test))
            await prompt(test)
            note = await server.has(1)
            question = await asked(test)
        # It stops with the question open. What happens before the program is back has to be told, too.
        async with asking(paths, [say("all is well")]) as test:
            await test.daemon.service.approvals.approve(ME, question.id, "")
            await until(lambda: _ended(test) == 1)
            ended = await server.has(2)
            assert ended["summary"] == "Agent test has answered"
            await server.until(lambda: server.closed == [note["id"]])
        async with asking(paths, [say("all is well")]) as test:
            await until(lambda: _follows(test))
            await prompt(test)
            await server.has(3)


async def test_questions_that_are_many_come_one_after_the_other(session_bus: str) -> None:
    board = Board()
    for number in range(15):
        board.ask(Card(key=f"apr_{number}", summary=str(number), body="", expires_us=now_us() + 10**9))
    async with notification_server(session_bus) as server:
        task = asyncio.create_task(Screen(board, _no_answer).run())
        await server.until(lambda: len(server.notes) == 10)
        board.settle("apr_3")
        await server.until(lambda: len(server.notes) == 11)
        assert server.closed == [4]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_answer_that_fails_is_told_and_the_question_asked_again(session_bus: str) -> None:
    board, given = Board(), []

    async def answer(card: Card, word: str) -> bool:
        given.append(word)
        link = DaemonLink(board, socket="/nonexistent/control.sock", uid=0, min_s=0)
        return await link.answer(card, word)

    board.ask(
        Card(key="apr_1", summary="one", body="", answers=("deny", "approve"), expires_us=now_us() + 10**9)
    )
    async with notification_server(session_bus) as server:
        task = asyncio.create_task(Screen(board, answer, guard_s=0.0).run())
        await server.click(await server.has(1), "approve")
        await server.until(lambda: len(server.notes) == 3)
        said = {note["summary"] for note in server.notes[1:]}
        assert (given, said) == (["approve"], {"one", "The answer was not taken"})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_program_shows_a_question_and_takes_it_back_when_it_is_ended(
    paths: Paths, session_bus: str
) -> None:
    argv = [sys.executable, "-m", "lightagentd.desktop.notify", f"--socket={paths.socket}"]
    async with asking(paths, script(out(paths))) as test, notification_server(session_bus) as server:
        program = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY)
        try:
            await prompt(test)
            note = await server.has(1)
            program.send_signal(signal.SIGTERM)
            assert await program.wait() == 0
            await server.until(lambda: server.closed == [note["id"]])
        finally:
            with contextlib.suppress(ProcessLookupError):
                program.kill()
            await program.wait()


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--min-seconds=nan", 2), ("--version", 0)])
async def test_its_options(argument: str, status: int) -> None:
    argv = [sys.executable, "-m", "lightagentd.desktop.notify", argument]
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY, stdout=pipe, stderr=pipe)
    await program.communicate()
    assert program.returncode == status


async def test_events_that_retention_removed_meanwhile_do_not_end_the_stream(tmp_path: Path) -> None:
    scripted = ScriptedDaemon(tmp_path / "control.sock")
    scripted.answer("Manager.GetStatus", {"status": status(history={"events": 10})})
    scripted.answer("Approvals.List", {"approvals": []})
    scripted.answer("Inputs.List", {"inputs": []})

    def subscribe(connection: Connection, call: dict[str, Any]) -> None:
        missed = {"count": 5, "first_seq": 1, "from_seq": 6}
        connection.reply({"event": None, "missed": missed}, continues=True)
        connection.sock.recv(1)  # until somebody hangs up

    scripted.handle("Events.Subscribe", subscribe)
    link = DaemonLink(Board(), socket=str(scripted.path), uid=0, min_s=0)
    link._next = dict.fromkeys(_TOPICS, 1)
    scripted.start()
    running = asyncio.create_task(link.run())
    try:
        await until(lambda: set(link._next.values()) == {6})
        asked = [call for call in scripted.calls if call["method"] == "Events.Subscribe"]
        assert len(asked) == len(_TOPICS)
    finally:
        running.cancel()
        await asyncio.wait([running])
        scripted.stop()
