from __future__ import annotations

import pytest

from lightagentd.cli.terminal import Cleaner, clean

HOSTILE = [
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;a title\x07text", "text"),
    ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bP+q544e\x1b\\text", "text"),
    ("\x1b[2J\x1b[Hgone", "gone"),
    ("\x1bcreset", "reset"),
    ("a\x9b31mb", "ab"),
    ("\x9d0;title\x9ctext", "text"),
    ("over\rwritten\x08\x7f", "overwritten"),
    ("line\r\nnext\tcell", "line\nnext\tcell"),
    ("safe\u202eexe.txt", "safeexe.txt"),
    ("grüße 😀 日本", "grüße 😀 日本"),
    ("un\u200bseen\U000e0041", "un\\u200bseen\\U000e0041"),
    ("ends with \x1b", "ends with "),
    ("ends with \x1b[3", "ends with "),
    ("a\udcffb", "ab"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE[:-3] + HOSTILE[-1:])
def test_clean_takes_sequences_and_control_characters_out(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_pieces_are_cleaned_as_the_whole(text: str, shown: str, length: int) -> None:
    cleaner = Cleaner()
    pieces = [cleaner.feed(text[i : i + length]) for i in range(0, len(text), length)]
    assert "\x1b" not in "".join([*pieces, cleaner.flush()])
    assert "".join(pieces).startswith(shown.rstrip())


def test_a_sequence_that_never_ends_does_not_hide_the_text_after_it() -> None:
    cleaner = Cleaner()
    shown = "".join(cleaner.feed(piece) for piece in ["\x1b]0;", *["words "] * 100])
    assert shown.count("words") == 100
    assert "\x1b" not in shown


def test_text_without_sequences_is_shown_at_once() -> None:
    assert Cleaner().feed("as it comes") == "as it comes"


def test_cleaning_hostile_text_takes_linear_time() -> None:
    for text in ("\x1b]" * 200_000, "\x1b[1" * 200_000, "\x9d" * 200_000, "\x1b[" + "1;" * 200_000):
        assert "\x1b" not in clean(text)
