"""Front matter: YAML between two lines, with the line of every mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightagentd import frontmatter
from lightagentd.errors import ConfigError
from lightagentd.skills import read_examples
from tests.conftest import write


def problem(folder: Path, text: str | bytes) -> str:
    path = folder / "X.md"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        frontmatter.read(path)
    assert str(path) in caught.value.message
    return caught.value.message


def test_data_lines_and_body_are_read(tmp_path: Path) -> None:
    found = frontmatter.read(write(tmp_path / "X.md", "---\na: 1\n\nb: [x]\n---\n\n# Body\n---\nend\n"))
    assert found.data == {"a": 1, "b": ["x"]}
    assert found.lines == {"a": 2, "b": 4}
    assert found.body == "# Body\n---\nend"


@pytest.mark.parametrize("text", ["---\n---\n", "---\n# nothing\n---\nbody", "---\n\n---"])
def test_empty_front_matter_is_no_data(tmp_path: Path, text: str) -> None:
    assert frontmatter.read(write(tmp_path / "X.md", text)).data == {}


@pytest.mark.parametrize(
    "text", ["---\r\na: 1\r\n---\r\nbody\r\n", "\ufeff---\na: 1\n---\nbody", "--- \na: 1\n--- \nbody"]
)
def test_other_editors_files_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "X.md"
    path.write_bytes(text.encode())
    found = frontmatter.read(path)
    assert (found.data, found.body) == ({"a": 1}, "body")


def test_an_indented_line_of_dashes_belongs_to_its_value(tmp_path: Path) -> None:
    found = frontmatter.read(write(tmp_path / "X.md", "---\na: |\n  one\n  ---\n  two\n---\nbody"))
    assert found.data == {"a": "one\n---\ntwo\n"}


MERGED = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 20))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1"),
        ("a: 1\n", "line 1"),
        ("---\na: 1\n", "no closing line"),
        ("---\na: [1\nb: 2\n---\n", "line 3"),
        ("---\n- a\n---\n", "mapping"),
        ("---\njust text\n---\n", "mapping"),
        ("---\na: 1\nb: 2\na: 3\n---\n", "line 4: the key a stands in line 2 already"),
        ("---\na: 2025-13-45\n---\n", "not YAML"),
        ("---\na: !!int x\n---\n", "not YAML"),
        ("---\na: !!timestamp x\n---\n", "not YAML"),
        ("---\na: !!python/name:os.system\n---\n", "line 2"),
        ("---\na: &a [*a, *b]\n---\n", "line 2"),
        ("---\n? [1]\n: x\n---\n", "line 2"),
        (b"---\na: \xff\n---\n", "cannot be read"),
        ("---\na: \x00\n---\n", "YAML"),
        ("---\na: " + "[" * 5000 + "\n---\n", "line 2: the YAML is nested more than 100 deep"),
        ("---\na: 1\nb: " + "[" * 500_000 + "\n---\n", "line 3: the YAML is nested more than 100 deep"),
        ("---\na:\n" + "- " * 5000 + "\n---\n", "line 3: the YAML is nested more than 100 deep"),
        (f"---\na0: &a0 {{k: 1}}\n{MERGED}---\n", "line 7: the YAML is larger than 100000 values"),
        ("---\na: " + "x" * (1 << 20) + "\n---\n", "cannot be read: it has more than 1 MiB"),
    ],
)
def test_a_mistake_is_told_with_its_file_and_line(tmp_path: Path, text: str | bytes, told: str) -> None:
    assert told in problem(tmp_path, text)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is missing"):
        frontmatter.read(tmp_path / "X.md")


def test_what_is_no_file_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("fifo", "zero"):
        with pytest.raises(ConfigError, match="it is not a file"):
            frontmatter.read(tmp_path / name)
        with pytest.raises(ConfigError, match="it is not a file"):
            read_examples(tmp_path / name, {})


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "X.md").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        frontmatter.read(tmp_path / "X.md")
