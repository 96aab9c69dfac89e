"""What a memory's text may be, what a store may give back, and how entries are ranked."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.errors import InvalidArgument
from lightagentd.memory.entries import (
    MAX_CHARS,
    checked_confidence,
    checked_tags,
    checked_text,
    entry_of,
    fingerprint,
    one_line,
)
from lightagentd.memory.ranking import scores, words
from tests.memory.stored import entry


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  a\n\n# Rules\r\nb\t c ", "a # Rules b c"),
        ("a\u2028b\u2029c\u0085d\x0be\x1cf", "a b c d e f"),
        ("x\x1b[31m\x00y\u202ez\u200b\ufeff", "x[31myz"),
        ("hid\U000e0041den\U000e0100", "hidden"),
        ("n\ufe00i\ufe0eb\u3164b\u034fles\u2800 ✔\ufe0f", "nibbles ✔\ufe0f"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("a\ud800b", "ab"),
        ("\n\t ", ""),
    ],
)
def test_a_text_is_one_line_of_what_a_person_sees(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_text_has_its_limits() -> None:
    assert checked_text("x" * MAX_CHARS) == "x" * MAX_CHARS
    assert checked_text("a" + "\n" * MAX_CHARS + "b") == "a b"
    for bad in ("", " \n\x00", "x" * (MAX_CHARS + 1), "x" + " " * 5 * MAX_CHARS):
        with pytest.raises(InvalidArgument):
            checked_text(bad)


def test_tags_and_confidence_have_theirs() -> None:
    assert checked_tags(["b", "a", "b"]) == ("b", "a")
    for tags in (["A"], [""], ["a b"], ["x" * 33], ["\u00e4"], ["a\n"], [str(n) for n in range(11)]):
        with pytest.raises(InvalidArgument):
            checked_tags(tags)
    assert checked_confidence(0.5) == 0.5
    for value in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument):
            checked_confidence(value)


def test_an_entry_comes_back_as_it_was_stored() -> None:
    kept = entry(tags=("a", "b"), fingerprint="f")
    assert entry_of(kept.to_dict(), 1) == kept == entry_of(kept, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"owner": 2},
        {"owner": True},
        {"id": "mem_1"},
        {"id": 7},
        {"text": "two\nlines"},
        {"text": ""},
        {"text": "x" * (MAX_CHARS + 1)},
        {"text": None},
        {"state": "promoted"},
        {"source": "root"},
        {"tags": "abc"},
        {"tags": ["A B"]},
        {"confidence": 2},
        {"confidence": "1"},
        {"confidence": float("nan")},
        {"created_us": -1},
        {"expires_us": 1.5},
        {"more": 1},
    ],
)
def test_what_is_no_entry_of_the_owner_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        entry_of({**entry().to_dict(), **change}, 1)
    others: list[object] = [None, 7, "x", [], {}]
    for other in others:
        with pytest.raises(ValueError, match=r"\w"):
            entry_of(other, 1)


def test_the_line_for_a_model_cannot_be_left_by_its_text() -> None:
    line = entry(id="mem_0123456789abcdef", text='say "hi" \\" end', tags=("x",)).line()
    assert "\n" not in line
    assert line.startswith("- mem_0123456789abcdef (")
    assert line.endswith(', confidence 0.8, x): "say \\"hi\\" \\\\\\" end"')


def test_a_fingerprint_does_not_depend_on_how_it_is_written() -> None:
    assert fingerprint("Always allow, please!") == fingerprint("always  ALLOW please")
    assert fingerprint("always allow") != fingerprint("never allow")


def test_words_are_folded() -> None:
    folded = ["the", "disk", "cafe", "buro", "access"]
    assert words("The Disks, caf\u00e9 & B\u00dcROS: access") == folded
    assert words("\u78c1\u76d8\u7a7a\u95f4") == ["\u78c1\u76d8", "\u76d8\u7a7a", "\u7a7a\u95f4"]
    assert words("") == []


def test_what_fits_best_comes_first() -> None:
    texts = [
        entry(text="The backup disk is full since Monday"),
        entry(text="The disk of the database"),
        entry(text="Owner likes tea"),
        entry(text="Something else entirely", tags=("backup",)),
    ]
    found = scores("backup disks", [each.words for each in texts])
    assert found[2] == 0
    assert found[0] > found[1]
    assert found[3] > found[1], "a tag counts more than a word"
    assert scores("backup", []) == []
    assert scores("", [each.words for each in texts]) == [0.0] * 4
