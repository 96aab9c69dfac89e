"""Texts of megabytes: looked at in parts and in a thread, with the same result, and only once."""

from __future__ import annotations

import random
import threading

import pytest

from lightagentd.host.paths import Paths
from lightagentd.redaction import Redactor, off_loop
from lightagentd.redaction.redactor import LONG
from tests.agents.scripted import scripted
from tests.redaction.test_redaction import BODY, PEM
from tests.scripted_model import say

KEY = bytes(range(32))
LINES = [
    "the disk is full, and nobody knows why",
    "password=Tr0ub4dor&3 in a line of its own",
    "curl -u admin:hunter2hunter2 https://example.org/ | token",
    "machine example.org login admin password s3cr3t-w0rd",
    "Authorization: Basic YWRtaW46aHVudGVyMg==",
    "db.example.org:5432:shop:admin:hunter2hunter2",
    "ghp_" + "a1B2" * 9,
    "password",
    "",
]


@pytest.mark.parametrize("seed", range(6))
def test_a_long_text_is_cleaned_as_its_lines_are(seed: int) -> None:
    chosen = random.Random(seed)
    lines = [chosen.choice(LINES) + chosen.choice(["\n", "\r\n", "\n\n"]) for _ in range(8000)]
    text = "".join(lines)
    assert len(text) > 3 * LONG
    redactor = Redactor(key=KEY)
    assert redactor.text(text) == "".join(redactor.text(line) for line in lines)


@pytest.mark.parametrize("before", range(LONG - 1200, LONG + 100, 100))
def test_a_key_that_lies_over_a_cut_is_removed_whole(before: int) -> None:
    filling = ("x" * 99 + "\n") * (before // 100 + 1)
    text = f"{filling[:before]}\n{PEM}\npassword=Tr0ub4dor&3\n{filling}"
    cleaned = Redactor().text(text)
    assert "[removed: private-key]\npassword=[removed: password]" in cleaned
    assert BODY[:20] not in cleaned


def test_a_line_that_is_longer_than_a_part_is_looked_at_whole() -> None:
    line = f"password={'y ' * LONG}and token=a1B2c3D4e5F6g7H8 {'z' * LONG}"
    for text in (line, f"{line}\n{line}\n", f"first\n{line}"):
        cleaned = Redactor().text(text)
        assert "a1B2c3D4e5F6g7H8" not in cleaned
        assert cleaned.count("token=[removed: token]") == text.count("token=")


@pytest.mark.parametrize("lines", [40, 4000])
def test_what_came_out_is_known_again_until_another_value_is(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    redactor = Redactor(key=KEY)
    cleaned = redactor.text("password=Tr0ub4dor&3 and the-fine-words\n" * lines)
    with monkeypatch.context() as patch:
        patch.setattr(redactor, "_looked_at", lambda text: pytest.fail("it was looked at again"))
        assert redactor.text(cleaned) == cleaned
        assert redactor.text(cleaned.rstrip("\n")) == cleaned.rstrip("\n")
        assert redactor.value({"content": cleaned}) == {"content": cleaned}
    redactor.add("the-fine-words")
    assert "the-fine-words" not in redactor.text(cleaned)


def test_only_so_many_are_known_again() -> None:
    redactor = Redactor()
    for number in range(140):
        redactor.text(f"{number} the disk is full\n" * 100 + "password=Tr0ub4dor&3\n")
    assert len(vars(redactor)["_clean"]) == 256


async def test_a_long_text_is_looked_at_in_a_thread_and_a_short_one_at_once() -> None:
    threads: list[threading.Thread] = []

    def clean(text: str) -> str:
        threads.append(threading.current_thread())
        return text[:1]

    assert await off_loop(clean, "a" * LONG) == "a"
    assert await off_loop(clean, "b" * (LONG + 1)) == "b"
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


async def test_a_long_prompt_does_not_hold_up_the_loop(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = Redactor._looked_at

    def not_in_the_loop(redactor: Redactor, text: str) -> str:
        if len(text) > LONG and threading.current_thread() is threading.main_thread():
            pytest.fail("a long text holds up the loop")
        return looked_at(redactor, text)

    long = "password=Tr0ub4dor&3 \n" * 10_000
    async with scripted(paths, [say("fine")]) as test:
        monkeypatch.setattr(Redactor, "_looked_at", not_in_the_loop)
        session = await test.session()
        events = await test.prompt(session, long)
        assert events[-1]["text"] == "fine", events[-1]
        prompt = test.conversation(session)[0].content
        assert prompt.count("[removed: password") == 10_000
        assert "Tr0ub4dor" not in prompt + str(test.model.requests[0].body)
