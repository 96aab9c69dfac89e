"""The words of Python do not reach people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightagentd.text.reason import reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ('{"a": }', "a value is missing, line 1, column 7"),
        ("{a: 1}", "a key in double quotes is missing, line 1, column 2"),
        ('{"a" 1}', "a colon is missing, line 1, column 6"),
        ("[1\n2]", "a comma is missing, line 2, column 1"),
        ('["a', "this string does not end, line 1, column 2"),
        ('["a\nb"]', "a string holds a control character, such as the end of a line, line 1, column 4"),
        (
            r'["\d"]',
            "a backslash stands before something unknown, line 1, column 3",
        ),
        ("[] []", "something follows the value, line 1, column 4"),
    ],
)
def test_a_fault_of_json_is_said_in_words(text: str, said: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    assert reason(caught.value) == said


def test_files_and_text_are_told_without_numbers_of_errors(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    with pytest.raises(FileNotFoundError) as missing:
        path.read_text()
    assert reason(missing.value) == "No such file or directory"
    assert reason(missing.value, at=True) == f"{path}: No such file or directory"
    with pytest.raises(UnicodeDecodeError) as foreign:
        b"ab\xff".decode()
    assert reason(foreign.value) == "it is not UTF-8 at byte 3"
    assert reason(OSError("it is a pipe")) == "it is a pipe"
    assert reason(TimeoutError()) == "it took too long"
