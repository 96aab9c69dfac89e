"""`lactl sessions replay`: the requests of a session, one of them whole, and answers side by side."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.cli.difference import side_by_side
from lightagentd.host.paths import Paths
from tests.agents.scripted import define
from tests.cli.conftest import environment, on_terminal
from tests.cli.test_models_with_daemon import Running
from tests.conftest import DaemonProcess
from tests.scripted_model import Answer, ScriptedModel, call, say

LINES = "The disk is full.\nNothing else is wrong.\nLook at /var/log."
OTHER = "The disk is fine.\nNothing else is wrong.\nLook at /var/log.\nAnd 日本 " + "x" * 60


@pytest.fixture
async def running(paths: Paths) -> AsyncIterator[Running]:
    """A session with three requests, of which two call; all but the second are answered otherwise later."""
    script: list[Answer] = [
        call("proc_info", {"pid": 1}),
        call("proc_list", {}),
        say(LINES),
        call("proc_info", {"pid": 2}),
        call("proc_list", "{ }", text="Look."),
        say(OTHER),
    ]
    async with ScriptedModel(script) as model:
        define(paths, model, front="tools: [proc]")
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            done = await asyncio.to_thread(daemon.lactl, "prompt", "test", "how is it?")
            assert done.returncode == 0, done.stderr
            yield Running(daemon, model)
        finally:
            await asyncio.to_thread(daemon.close)


async def replay(running: Running, *arguments: str) -> tuple[str, str]:
    done = await running.lactl("sessions", "replay", "test", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


async def test_requests_are_listed_and_shown(running: Running) -> None:
    listed, err = await replay(running)
    rows = [line.split("\t") for line in listed.splitlines()]
    assert [(row[0], row[1], *row[3:]) for row in rows] == [
        ("1", "1", "test", "openai/x", "1", "10+5", '→ proc_info {"pid": 1}'),
        ("2", "1", "test", "openai/x", "3", "10+5", "→ proc_list {}"),
        ("3", "1", "test", "openai/x", "5", "10+5", LINES.replace("\n", " ")),
    ]
    assert err == ""
    shown, _ = await replay(running, "--to", "2")
    assert shown.startswith("request\t2 of 3\nturn\t1 trace_")
    order = [
        "System prompt, as it would be made now",
        "Be brief.",
        "Functions",
        "proc_info, ",
        "Message 1: user",
    ]
    order += ["how is it?", "Message 2: assistant", "→ proc_info {", '"pid": 1', "Message 3: tool proc_info"]
    order += ["The stored answer", "→ proc_list {}"]
    places = [shown.index(one) for one in order]
    assert places == sorted(places)
    (one,) = [json.loads(line) for line in (await replay(running, "--to", "3", "--json"))[0].splitlines()]
    assert (one["number"], one["requests"], one["message_count"], one["again"]) == (3, 3, 5, None)
    assert [message["role"] for message in one["request"]["messages"]] == [
        *["user", "assistant", "tool", "assistant", "tool"]
    ]
    assert len(running.model.requests) == 3
    done = await running.lactl("sessions", "replay", "test", "--to", "4")
    assert done.returncode == 65
    assert "has the requests 1 to 3, and none with the number 4." in done.stderr
    done = await running.lactl("sessions", "replay", "test", "--model", "openai/y")
    assert (done.returncode, done.stdout) == (65, "")
    assert "The agent test has no model 'openai/y'." in done.stderr


async def test_answers_stand_in_a_unified_diff_in_a_pipe(running: Running) -> None:
    out, err = await replay(running, "--model", "openai/x")
    assert err == "lactl: 1 of 3 answers are the same.\n"
    lines = out.splitlines()
    assert [line.split("  ")[-1] for line in lines if line.startswith("request ")] == [
        "differs",
        "same",
        "differs",
    ]
    assert lines[1].startswith("tokens 10+5 → 10+5, cost ")
    assert [line for line in lines if '"pid"' in line] == ['-  "pid": 1', '+  "pid": 2']
    assert [line for line in lines[-8:] if line.startswith(("---", "+++"))] == [
        "--- stored: openai/x",
        "+++ now: openai/x",
    ]
    assert lines[-5:] == [
        "-The disk is full.",
        "+The disk is fine.",
        *[f" {line}" for line in LINES.splitlines()[1:]],
        f"+{OTHER.splitlines()[-1]}",
    ]


async def test_answers_stand_in_two_columns_on_a_terminal(running: Running) -> None:
    env = environment(**running.daemon.env, NO_COLOR="1")
    done = await asyncio.to_thread(
        on_terminal, ["sessions", "replay", "test", "--model", "openai/x"], width=80, env=env
    )
    assert done.status == 0, done.err
    rows = done.out.splitlines()
    assert f"{'stored: openai/x':38}   now: openai/x" in rows
    assert f"{'The disk is full.':38} | The disk is fine." in rows
    assert f"{'Nothing else is wrong.':38}   Nothing else is wrong." in rows
    assert [row for row in rows if row.startswith(f"{'':38} > And 日本 xxx")]
    assert max(map(len, rows)) <= 80
    shown = await asyncio.to_thread(on_terminal, ["sessions", "replay", "test"], width=60, env=env)
    assert max(map(len, shown.out.splitlines())) <= 60
    assert "→ proc_info" in shown.out


async def test_one_object_for_each_request(running: Running) -> None:
    out, err = await replay(running, "--model", "openai/x", "--json")
    found: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert [(one["number"], one["same"]) for one in found] == [(1, False), (2, True), (3, False)]
    assert found[2]["stored"]["text"] == LINES
    assert found[2]["again"]["text"] == OTHER
    assert err == ""
    rows = await running.json("usage", "--by", "owner")
    assert [row["steps"] for row in rows if str(os.getuid()) in row["name"]] == [6]


def test_the_rows_of_two_columns() -> None:
    assert [*side_by_side(["a", "b", "c"], ["a", "x", "c", "d"])] == [
        ("a", " ", "a"),
        ("b", "|", "x"),
        ("c", " ", "c"),
        ("", ">", "d"),
    ]
    assert [*side_by_side(["a", "b"], [])] == [("a", "<", ""), ("b", "<", "")]
    assert [*side_by_side([], [])] == []
