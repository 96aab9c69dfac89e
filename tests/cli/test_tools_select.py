"""`lactl tools select`: which functions a model is offered for a prompt."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lightagentd import api
from lightagentd.host.paths import Paths
from tests.cli.conftest import Lactl, on_terminal
from tests.conftest import DaemonProcess
from tests.scripted_daemon import ScriptedDaemon


def choice(
    function: str, why: str = "fits", score: float = 3.25, words: tuple[str, ...] = ()
) -> api.ToolChoice:
    tool, _, action = function.partition("_")
    return api.ToolChoice(
        function=function,
        tool=tool,
        action=action,
        effect="observe",
        description="Do it.",
        why=why,
        score=score,
        words=[*words],
    )


def selection(*choices: api.ToolChoice, **changes: Any) -> dict[str, Any]:
    found = {
        "agent": "ops",
        "functions": 300,
        "max_tools": 64,
        "all_offered": False,
        "offered": 40,
        **changes,
    }
    return {"selection": asdict(api.Selection(choices=[*choices], **found))}


def test_each_line_has_the_score_the_reason_and_the_words(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    fits = choice("udev_block", words=("disk", "drives"))
    scripted.answer("Tools.Select", selection(fits, choice("human_ask", "always", 0.0)))
    done = lactl("tools", "select", "which disks", "--agent", "ops", "--limit", "3")
    assert done.out == "3.25\tfits\tudev_block\tdisk,drives\n0.00\talways\thuman_ask\t-\n"
    assert scripted.parameters("Tools.Select") == {"prompt": "which disks", "agent": "ops", "limit": 3}


def test_without_an_agent_it_is_about_all_tools(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Tools.Select", selection())
    assert lactl("tools", "select", "x").status == 0
    assert scripted.parameters("Tools.Select") == {"prompt": "x", "limit": 10}


def test_json_is_the_whole_answer(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    answer = selection(choice("udev_block"))
    scripted.answer("Tools.Select", answer)
    assert json.loads(lactl("tools", "select", "x", "--json").out) == answer["selection"]


def test_a_person_is_told_how_many_are_offered(scripted: ScriptedDaemon) -> None:
    scripted.answer("Tools.Select", selection(choice("udev_block")))
    assert "40 of 300 functions are offered" in on_terminal(["tools", "select", "x"]).out
    scripted.answer("Tools.Select", selection(all_offered=True, functions=61, offered=61))
    assert "All 61 functions are offered" in on_terminal(["tools", "select", "x"]).out


def test_a_real_daemon_answers(paths: Paths, lactl: Lactl) -> None:
    process = DaemonProcess(paths)
    try:
        process.start()
        socket = ["--socket", str(paths.socket)]
        rows = [
            line.split("\t")
            for line in lactl("tools", "select", "restart nginx.service", *socket).out.splitlines()
        ]
        assert rows[0][2] == "systemd_restart"
        assert "restart" in rows[0][3].split(",")
        assert {row[2] for row in rows if row[1] == "always"} >= {"skill_run", "human_ask"}
        wrong = lactl("tools", "select", "x", "--agent", "nobody", *socket)
        assert wrong.status != 0
        assert "The agents are: ops" in wrong.err
    finally:
        process.close()
