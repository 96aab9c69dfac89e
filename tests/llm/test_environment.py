"""What is taken from the environment and from `.env`, and that a key and its address come from one place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightagentd.errors import ConfigError
from lightagentd.llm.environment import VARIABLES, own_environment, parse, read_environment, read_file
from tests.conftest import write

KEY = "sk-very-secret-key-0123456789"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("API_KEY=plain", "plain"),
        ("  API_KEY = spaced  ", "spaced"),
        ("export API_KEY=exported", "exported"),
        ("API_KEY='single # quoted'", "single # quoted"),
        ("API_KEY='no \\n escapes'", "no \\n escapes"),
        ('API_KEY="double # quoted"', "double # quoted"),
        ('API_KEY="a \\"b\\" \\\\ c"', 'a "b" \\ c'),
        ('API_KEY="quoted" # a comment', "quoted"),
        ("API_KEY=word # a comment", "word"),
        ("API_KEY=with#hash", "with#hash"),
        ("API_KEY=$HOME/${X}", "$HOME/${X}"),
        ("API_KEY=a=b", "a=b"),
        ("API_KEY=", ""),
        ("API_KEY= # nothing", ""),
        ("API_KEY=first\nAPI_KEY=second", "second"),
        ("\ufeffAPI_KEY=behind a mark".replace(" ", "-"), "behind-a-mark"),
        ("API_KEY=dos\r\n", "dos"),
    ],
)
def test_the_ways_in_which_a_value_is_written(line: str, value: str) -> None:
    assert parse(line, Path(".env")) == {"API_KEY": value}


@pytest.mark.parametrize(
    "text",
    [
        "# API_KEY=x",
        "API_KEYS=x",
        "PATH=/evil",
        "LD_PRELOAD=/evil.so",
        "LIGHTAGENT_CONFIG_DIR=/evil",
        "https_proxy=http://evil",
        "API_KEY",
        "not a line at all",
        "set API_KEY=x",
        "\n\n",
        "api_key=x",
    ],
)
def test_nothing_else_is_taken(text: str) -> None:
    assert parse(text, Path(".env")) == {}


@pytest.mark.parametrize(
    "text", ["API_KEY='open", 'API_KEY="open', "API_KEY=two words", "API_KEY='a' b", 'API_KEY=a"b"']
)
def test_a_value_that_is_not_clear_is_refused_by_its_line_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"# a comment\n{text}\n", Path("/x/.env"))
    assert "/x/.env" in caught.value.message
    assert "line 2" in caught.value.message
    assert "open" not in caught.value.message.replace("/x/.env", "")


def test_a_file_counts_only_when_it_is_the_users_own_and_nobody_elses_to_write(tmp_path: Path) -> None:
    path = write(tmp_path / ".env", f"API_KEY={KEY}\n")
    path.chmod(0o600)
    assert read_file(path) == {"API_KEY": KEY}
    path.chmod(0o644)
    assert read_file(path) == {"API_KEY": KEY}
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="others can write it"):
            read_file(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "long", "#" * (65 << 10))
    (tmp_path / "bytes").write_bytes(b"API_KEY=\xff\n")
    for name in ("link", "pipe", "folder", "long", "bytes"):
        (tmp_path / name).chmod(0o600)
        with pytest.raises(ConfigError, match=name):
            read_file(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    path = write(tmp_path / ".env", f"API_KEY={KEY}\n")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    found = read_environment({}, path)
    assert dict(found.values) == {}
    assert "belongs to another user" in found.problems[0]


def test_a_key_goes_only_with_an_address_from_the_same_place(tmp_path: Path) -> None:
    path = write(
        tmp_path / ".env",
        "OPENAI_BASE_URL=https://evil.example/v1\nBASE_URL=https://evil.example/v1\nMODEL=m\n"
        "ANTHROPIC_API_KEY=from-file\nANTHROPIC_BASE_URL=https://gateway.example\n",
    )
    path.chmod(0o600)
    found = read_environment({"OPENAI_API_KEY": KEY, "API_KEY": KEY, "MODEL": "", "HOME": "/x"}, path)
    assert dict(found.values) == {
        "OPENAI_API_KEY": KEY,
        "API_KEY": KEY,
        "MODEL": "m",
        "ANTHROPIC_API_KEY": "from-file",
        "ANTHROPIC_BASE_URL": "https://gateway.example",
    }
    assert found.origins["API_KEY"] == "environment"
    assert found.origins["ANTHROPIC_API_KEY"] == str(path)
    assert [problem.partition(" ")[0] for problem in found.problems] == ["BASE_URL", "OPENAI_BASE_URL"]
    assert KEY not in repr(found) + "".join(found.problems)


def test_without_a_file_there_is_no_problem(tmp_path: Path) -> None:
    assert read_environment({}, tmp_path / ".env").problems == ()


@pytest.mark.parametrize("system", [True, False])
def test_the_daemon_of_the_system_reads_no_file_that_lies_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, system: bool
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    write(tmp_path / ".env", f"OPENAI_API_KEY={KEY}\n").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    if system:
        monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/lightagentd")
    own = not system and os.geteuid() != 0
    found = own_environment()
    assert found.get("OPENAI_API_KEY") == (KEY if own else "")
    told = f"{tmp_path}/.env is not read: for root and the system's daemon, set the variables in their"
    assert found.problems == (() if own else (f"{told} environment.",))
    write(tmp_path / ".env", "COLOUR=red\n").chmod(0o600)
    assert own_environment().problems == ()


def test_a_working_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    folder.rmdir()
    assert own_environment().get("OPENAI_API_KEY") == KEY
