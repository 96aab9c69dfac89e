from __future__ import annotations

import pytest

from lightagentd.quoted import fenced, question_of


@pytest.mark.parametrize("text", ["", "one", "```", "a\n````\nb", "`" * 50])
def test_a_text_cannot_close_its_fence(text: str) -> None:
    first, *middle, last = fenced("a.log", text).split("\n")
    assert "\n".join(middle) == text
    assert first == f"{last}a.log"
    assert last not in text


def test_the_question_is_what_stands_before_the_first_fence() -> None:
    prompt = f"why?\n\n{fenced('a', 'x')}\n\n{fenced('b', 'y')}"
    assert question_of(prompt) == "why?"
    assert question_of("one\n\ntwo") == "one\n\ntwo"


def test_without_a_question_it_is_all_of_it() -> None:
    assert question_of("\n\n```a\nx\n```") == "\n\n```a\nx\n```"
