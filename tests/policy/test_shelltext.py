"""Shell text: what is certainly one simple command, and what may be hidden in a text."""

from __future__ import annotations

import random
import shlex
import subprocess

import pytest

from lightagentd.policy.shelltext import commands_in, simple_command

SIMPLE = {
    "systemctl status nginx.service": ["systemctl", "status", "nginx.service"],
    "  df\t-h  ": ["df", "-h"],
    "cat '/srv/a b' \"it's\"": ["cat", "/srv/a b", "it's"],
    "grep -F 'a;b|c>d$e`f' /etc/fstab": ["grep", "-F", "a;b|c>d$e`f", "/etc/fstab"],
    "echo '' x''y": ["echo", "", "xy"],
    "sort --key=2 a": ["sort", "--key=2", "a"],
    "echo 'ä'": ["echo", "ä"],
}

NOT_SIMPLE = [
    "",
    " ",
    "''",
    "a; b",
    "a && b",
    "a || b",
    "a & b",
    "a | b",
    "a\nb",
    "a\r\nb",
    "a\n",
    "a > /etc/passwd",
    "a < b",
    "a 2>&1",
    "a $(b)",
    "a `b`",
    "a $HOME",
    "a ${x}",
    'a "$(b)"',
    'a "`b`"',
    'a "\\"',
    "a \\; b",
    "a \\\nb",
    "a $'x'",
    "a 'b",
    'a "b',
    "a *",
    "a ?",
    "a [ab]",
    "a {b,c}",
    "a ~",
    "a ~root",
    "a # b",
    "#a",
    "! a",
    "{ a; }",
    "(a)",
    "[[ a ]]",
    "if a",
    "time a",
    "coproc a",
    "function a",
    "A=b",
    "A=b c",
    "LD_PRELOAD=/tmp/x.so ls",
    "A'='b c",
    "a\0b",
    "a 'b\nc'",
    "a\x0bb",
    "a\xa0b",
    "a\u2028b",
    "é",
    "a \udc80",
]


@pytest.mark.parametrize("text", SIMPLE)
def test_the_words_of_a_simple_command_are_those_of_the_shell(text: str) -> None:
    assert simple_command(text) == SIMPLE[text] == shlex.split(text)


@pytest.mark.parametrize("text", NOT_SIMPLE)
def test_what_may_be_more_than_one_simple_command_is_none(text: str) -> None:
    assert simple_command(text) is None


def test_bash_reads_the_same_words_from_whatever_counts_as_simple() -> None:
    """Random texts, most of them hostile: bash's own words, of those that are taken for simple ones."""
    pieces = [
        *"ab.-/=:@%+,",
        *" \t\n;&|<>()$`\\\"'*?[]{}~#!^",
        "''",
        "'b c'",
        '"d"',
        "if",
        "x=",
        "\r",
        "$IFS",
    ]
    chance = random.Random(7)
    texts = ["".join(chance.choice(pieces) for _ in range(chance.randint(1, 7))) for _ in range(60_000)]
    found = [(text, words) for text in dict.fromkeys(texts) if (words := simple_command(text)) is not None]
    assert len(found) > 300
    script = "".join(f"printf '%s\\0' {text}; printf '\\n'\n" for text, _ in found)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd="/", text=True)
    assert done.stderr == ""
    printed = [line.removesuffix("\0").split("\0") for line in done.stdout.splitlines()]
    assert printed == [words for _, words in found]


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf /",
        "  rm   -rf\t/",
        "/bin/rm -rf /",
        "true; rm -rf /",
        "true\nrm -rf /",
        "true && rm -rf /",
        "true | rm -rf /",
        "(rm -rf /)",
        "echo $(rm -rf /)",
        "echo `rm -rf /`",
        "{ rm -rf /; }",
        "r''m -rf /",
        '"rm" -rf /',
        "r\\m -rf /",
        "r\\\nm -rf /",
        "$'rm' -rf /",
        "rm${IFS}-rf /",
        "A=b rm -rf /",
        "sudo rm -rf /",
        "sudo -n env A=b nice -n 5 rm -rf /",
        "if true; then rm -rf /; fi",
        "! rm -rf /",
        "bash -c 'rm -rf /'",
        "xargs -n 1 rm -rf < x",
        "find / -exec rm -rf {} +",
    ],
)
def test_a_command_is_found_in_the_ways_to_write_it(text: str) -> None:
    found = commands_in(text)
    assert found is not None
    assert any(command.startswith("rm -rf") for command in found), found


def test_a_word_that_is_not_a_command_is_not_taken_for_one() -> None:
    assert not [found for found in commands_in("grep rm /etc/fstab") or [] if found.startswith("rm")]


def test_a_text_that_is_too_much_to_take_apart_is_none() -> None:
    assert commands_in("x" * 20_000) is None
    assert commands_in("sudo " * 3000) is None
    assert commands_in(";".join(f"a{n}" for n in range(1500))) is None
