"""What agents ask people, as notifications: few and short choices are buttons, all else is a command."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lightagentd.desktop.cards import asked
from lightagentd.host.paths import Paths
from tests.agents.questions import QUESTION, ask, question
from tests.agents.scripted import scripted, until
from tests.desktop.conftest import notification_server
from tests.desktop.test_notify import notifier, prompt
from tests.scripted_model import say

ID = "inp_0123456789abcdef"


def an_input(text: str = QUESTION, *choices: str) -> dict[str, Any]:
    return {
        "id": ID,
        "agent": "ops",
        "question": text,
        "choices": [*choices],
        "expires_us": 4_000_000_000_000_000,
    }


@pytest.mark.parametrize(
    ("text", "choices", "buttons"),
    [
        (QUESTION, [], 0),
        (QUESTION, ["sda", "sdb"], 2),
        (QUESTION, ["a", "b", "c"], 3),
        (QUESTION, ["a", "b", "c", "d"], 0),
        (QUESTION, ["x" * 41, "b"], 0),
        (QUESTION, ["yes\u202e", "no"], 0),
        ("x" * 500, ["a", "b"], 0),
        ("q\u200b", ["a", "b"], 0),
        ("a\n" * 9, ["a", "b"], 0),
    ],
)
def test_only_what_can_be_seen_whole_has_buttons(text: str, choices: list[str], buttons: int) -> None:
    card = asked(an_input(text, *choices))
    assert len(card.answers) == len(card.choices) == buttons
    assert [card.choice(answer) for answer in card.answers] == (choices if buttons else [])
    assert "default" not in card.answers
    assert f"lactl answer {ID}" in card.how
    assert len(card.body) < 1200
    assert "\u202e" not in card.body


def test_without_buttons_the_choices_are_listed() -> None:
    assert "1) a\n2) b\n3) c\n4) d\n" in asked(an_input(QUESTION, "a", "b", "c", "d")).body


async def test_a_question_is_shown_and_answered_by_its_button(paths: Paths, session_bus: str) -> None:
    choices = ["default", "2", "1"]
    async with (
        scripted(paths, [ask(choices=choices), say("ok")]) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        found = await question(test)
        note = await server.has(1)
        assert note["summary"] == "Agent test asks you"
        assert QUESTION in note["body"]
        assert note["actions"] == ["choice-1", "default", "choice-2", "2", "choice-3", "1"]
        assert (note["expires_ms"], note["hints"]["urgency"]) == (0, 1)
        await server.click(note, "choice-2")
        inputs = test.daemon.registry.shared.asked.inputs
        await until(lambda: inputs.questions.get(found.id).state == "answered")
        assert (inputs.questions.get(found.id).answer, inputs.questions.get(found.id).answered_by) == (
            "2",
            os.getuid(),
        )
    assert len(server.notes) == 1


async def test_a_click_on_the_notification_itself_or_too_early_answers_nothing(
    paths: Paths, session_bus: str
) -> None:
    async with (
        scripted(paths, [ask(choices=["a", "b"])]) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket, guard_s=3600.0),
    ):
        await prompt(test)
        found = await question(test)
        note = await server.has(1)
        await server.click(note, "choice-1")
        note = await server.has(2)  # it is shown again
        await server.click(note, "default")
        assert test.daemon.registry.shared.asked.inputs.questions.get(found.id).state == "waiting"


async def test_without_buttons_the_command_is_said_and_an_answer_closes_it(
    paths: Paths, session_bus: str
) -> None:
    async with (
        scripted(paths, [ask(), say("ok")]) as test,
        notification_server(session_bus) as server,
        notifier(paths.socket),
    ):
        await prompt(test)
        found = await question(test)
        note = await server.has(1)
        assert note["actions"] == []
        assert f"lactl answer {found.id} TEXT" in note["body"]
        await test.daemon.registry.shared.asked.inputs.answer(found.id, "sda", uid=os.getuid())
        await server.until(lambda: server.closed == [note["id"]])


async def test_a_question_that_waits_already_is_shown_when_the_program_starts(
    paths: Paths, session_bus: str
) -> None:
    async with (
        scripted(paths, [ask()]) as test,
        notification_server(session_bus) as server,
    ):
        await prompt(test)
        await question(test)
        async with notifier(paths.socket):
            assert (await server.has(1))["summary"] == "Agent test asks you"
        async with notifier(paths.socket, uid=54321) as other:
            await other.link.tried.wait()
            assert other.board.questions == {}
