"""A question of an agent, asked and answered with lactl alone, against a real daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from lightagentd.host.paths import Paths
from tests.agents.questions import QUESTION, ask
from tests.agents.scripted import define
from tests.conftest import DaemonProcess
from tests.scripted_model import ScriptedModel, say


@pytest.fixture
async def asking(paths: Paths) -> AsyncIterator[DaemonProcess]:
    async with ScriptedModel([ask(choices=["sda", "sdb"]), say("sdb it is")]) as model:
        define(paths, model)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            yield daemon
        finally:
            await asyncio.to_thread(daemon.close)


async def test_a_question_is_found_shown_and_answered(asking: DaemonProcess) -> None:
    prompt = asyncio.create_task(asyncio.to_thread(asking.lactl, "prompt", "test", "go"))
    async with asyncio.timeout(60):
        while not (listed := await asyncio.to_thread(asking.lactl, "inputs")).stdout:
            await asyncio.sleep(0.1)
    cells = listed.stdout.strip().split("\t")
    assert cells[1:3] == ["waiting", "test"]
    assert cells[4:] == [QUESTION, "sda | sdb", "-"]
    shown = await asyncio.to_thread(asking.lactl, "inputs", "show", cells[0][:10])
    assert "2) sdb" in shown.stdout
    wrong = await asyncio.to_thread(asking.lactl, "answer", cells[0], "sdc")
    assert wrong.returncode == 65
    assert "2 (sdb)" in wrong.stderr
    answered = await asyncio.to_thread(asking.lactl, "answer", cells[0], stdin=b"2\n")
    assert answered.stdout == f"{cells[0]}\tanswered\n"
    done = await prompt
    assert (done.returncode, done.stdout) == (0, "sdb it is\n")
    assert QUESTION in done.stderr
    again = await asyncio.to_thread(asking.lactl, "answer", cells[0], "1")
    assert again.returncode == 73
    assert "answered already" in again.stderr
    (kept,) = json.loads((await asyncio.to_thread(asking.lactl, "inputs", "--all", "--json")).stdout)
    assert (kept["state"], kept["answer"]) == ("answered", "sdb")


async def test_the_tool_is_listed_and_cannot_be_called_by_a_person(asking: DaemonProcess) -> None:
    listed = await asyncio.to_thread(asking.lactl, "tools", "list")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("human\t")]
    assert line.split("\t")[1:3] == ["ask", "(built in)"]
    shown = await asyncio.to_thread(asking.lactl, "tools", "show", "human")
    assert "human.ask  [observe]" in shown.stdout
    assert "choices: array" in shown.stdout
    called = await asyncio.to_thread(asking.lactl, "tools", "call", "test", "human.ask", "question=q")
    assert called.returncode == 77
    assert "belongs to none" in called.stderr
    assert "Prompt the agent test" in called.stderr
