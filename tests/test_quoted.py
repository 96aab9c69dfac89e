from __future__ import annotations

import pytest

from lightagentd.quoted import INSTRUCTIONS, STANDARD_INPUT, Prompt, quoted, sent

FENCE = "look:\n\n```\nmine\n```\n\nwhy?"
"""A question with a fence of its own."""


@pytest.mark.parametrize("text", ["", "one", "```", "a\n````\nb", "`" * 50])
def test_a_text_cannot_close_its_fence(text: str) -> None:
    first, *middle, last = quoted("a.log", text).split("\n")
    assert "\n".join(middle) == text
    assert first == f"{last}a.log"
    assert last not in text


def test_a_prompt_keeps_its_question_whatever_comes_behind_it() -> None:
    for question in ("why?", FENCE):
        alone = Prompt(question)
        prompt = alone.with_blocks(quoted("a", "x")).with_blocks(quoted("b", "y"))
        assert prompt.text == f"{question}\n\n{quoted('a', 'x')}\n\n{quoted('b', 'y')}"
        assert alone.question == prompt.question == question


def test_a_secret_that_goes_leaves_the_question_where_it_was() -> None:
    def clean(text: str) -> str:
        return text.replace("secret", "[removed]").replace("over\n\n```a\nthe edge", "[gone]")

    prompt = Prompt("my secret?").with_blocks(quoted("a", "secret"))
    assert prompt.cleaned(clean) == Prompt("my [removed]?").with_blocks(quoted("a", "[removed]"))
    across = Prompt("over").with_blocks(quoted("a", "the edge")).cleaned(clean)
    assert (across.text, len(across.question)) == ("[gone]\n```", 1)
    assert Prompt("my secret").cleaned(clean) == Prompt("my [removed]")


@pytest.mark.parametrize("piped", ["a log", "a\n````\nb", f"{quoted(STANDARD_INPUT, 'inner')}\n"])
@pytest.mark.parametrize("question", ["why?", FENCE, f"why?\n\n{quoted(STANDARD_INPUT, 'mine')}"])
def test_standard_input_is_found_behind_any_question(question: str, piped: str) -> None:
    text = f"{question}\n\n{quoted(STANDARD_INPUT, piped)}"
    assert sent(text, outside=True) == Prompt(text, len(question))
    assert sent(text, outside=False) == Prompt(text), "only lactl puts it there, and says so"


@pytest.mark.parametrize(
    "text", ["", "why?", FENCE, "x\n```", "\n\n```standard input\nx\n```", "why?\n\n```a.log\nx\n```"]
)
def test_what_has_no_standard_input_is_a_question(text: str) -> None:
    assert sent(text, outside=True) == Prompt(text)


def test_instructions_of_a_client_are_no_part_of_the_question() -> None:
    text = f"why?\n\n{quoted(INSTRUCTIONS, 'Be brief.')}"
    for outside in (False, True):
        assert sent(text, outside=outside) == Prompt(text, len("why?"))
