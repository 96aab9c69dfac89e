"""lactl on a terminal, with the versions of rich, click and prompt-toolkit that the distribution has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .debian import CHECKOUT
from .machine import Machine
from .product import lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

FOLDER = "/var/tmp/terminals/cli"
"""Where `tests/cli/terminal.py` is in the machine: a terminal and a model of what is seen on it."""
RENDER = """
import json, sys
from lightagentd.cli.markdown import render
for source, columns in json.load(sys.stdin):
    for colours in (True, False):
        print(json.dumps("".join(render(source, columns, colours=colours))))
"""
SOURCES = (
    "```\n" + "x" * 500 + "\n```",
    "```sh\n" + "x" * 500 + "\n```",
    "- a\n\n  ```\n  " + "x" * 500 + "\n  ```",
    "> " + "x" * 500,
    "- " + "x" * 500,
    "`" + "x" * 500 + "`",
    "|a|b|\n|-|-|\n|" + "x" * 250 + "|" + "x" * 250 + "|",
)
ON_TERMINAL = f"""
import os, sys
sys.path.insert(0, {FOLDER!r})
from terminal import Terminal
session, env = sys.argv[1], dict(os.environ)
with Terminal(["sessions", "show", session], env=env) as terminal:
    assert terminal.finished() == 0, terminal.screen.text
    assert terminal.screen.text.count("x") == 500, terminal.screen.text
    assert "```" not in terminal.screen.text
with Terminal(["prompt", "ops", "check disk", "--new"], env=env) as terminal:
    assert terminal.finished() == 0, terminal.screen.text
    assert "room" in terminal.screen.text and "steps, " in terminal.screen.text, terminal.screen.text
    assert "working" not in terminal.screen.text, terminal.screen.text
with Terminal(["chat", "ops", "--session", session], env=env, rows=60) as terminal:
    terminal.until("ops>")
    assert "x" * 60 in terminal.screen.text, "the recap"
    terminal.send("/his\\t")
    terminal.until("ops> /history")
    terminal.send("\\r")
    terminal.until(lambda text: text.count("x") > 900)
    terminal.send("check disk\\r")
    terminal.until("steps, ")
    terminal.send("\\x04")
    assert terminal.finished() == 0, terminal.screen.text
"""


@pytest.fixture(scope="module")
def terminals(service: Machine) -> Iterator[Machine]:
    service.run(["mkdir", "--parents", FOLDER])
    service.copy_in(CHECKOUT / "tests/cli/terminal.py", f"{FOLDER}/terminal.py")
    service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", "grace"])
    yield service
    service.run(["userdel", "--remove", "grace"])
    service.run(["rm", "--recursive", str(Path(FOLDER).parent)])


def test_no_character_is_lost_where_markdown_is_wrapped(service: Machine) -> None:
    cases = [(source, columns) for source in SOURCES for columns in (80, 60)]
    out = service.run(["python3", "-c", RENDER], input=json.dumps(cases)).stdout
    assert [json.loads(line).count("x") for line in out.splitlines()] == [500] * 2 * len(cases)


def test_sessions_prompts_and_chats_on_a_terminal(terminals: Machine) -> None:
    messages = [{"role": "user", "content": "show it"}, {"role": "assistant", "content": SOURCES[0]}]
    text = f"```json\n{json.dumps(messages)}\n```\n"
    terminals.write("/home/grace/talk.md", text)
    session = lactl_json(terminals, "sessions", "import", "/home/grace/talk.md", "--agent=ops", user="grace")[
        "id"
    ]
    assert SOURCES[0] in lactl(terminals, "sessions", "show", session, user="grace").stdout, "in a pipe"
    terminals.run(["python3", "-c", ON_TERMINAL, session], user="grace", timeout_s=120)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("sta", "plain,status"),
        ("tools show syst", "plain,systemd"),
        ("skills show disk-ch", "plain,disk-check"),
    ],
)
def test_a_shell_completes(service: Machine, line: str, completed: str) -> None:
    words = {"COMP_WORDS": f"lactl {line}", "COMP_CWORD": str(len(line.split()))}
    out = service.run(["lactl"], env={"_LACTL_COMPLETE": "bash_complete", **words}).stdout
    assert out == f"{completed}\n"
