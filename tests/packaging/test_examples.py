"""The examples that are installed, and that the man pages show: they load by the real loaders, and run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from lightagentd.agents.definition import AgentFrontMatter, AgentLimits, load_definition
from lightagentd.assessment.cases import read_cases
from lightagentd.config.flows.checking import check_flow, read_flow
from lightagentd.config.flows.conditions import Condition
from lightagentd.config.flows.definition import Flow, FlowInput, Step
from lightagentd.config.triggers import check_trigger
from lightagentd.config.unattended import PromptFile, check
from lightagentd.host.paths import Paths
from lightagentd.policy.rulefiles import load_texts, read_files
from lightagentd.policy.rules import Rule
from lightagentd.skills import FrontMatter, Runbook, load_skill
from lightagentd.worker.hooks import load_hook
from lightagentd.worker.loader import load_tool
from tests.agents.asking import FRONT, TOML, asked
from tests.agents.questions import prompted
from tests.agents.questions import question as asked_by_tool
from tests.agents.scripted import ME, scripted
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.scripted_model import call, say

EXAMPLES = REPOSITORY / "packaging/examples"
_CHARACTERS = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ha": "^", r"\(ti": "~", r"\&": "", r"\e": "\\"}


def plain(page: Path) -> str:
    text = page.read_text()
    for sequence, char in _CHARACTERS.items():
        text = text.replace(sequence, char)
    return text


def files(pattern: str) -> list[Path]:
    found = sorted(EXAMPLES.glob(pattern))
    assert found
    return found


def test_every_example_loads_as_what_it_is() -> None:
    rules = load_texts(read_files(files("policy.d/*.toml"))).rules
    assert all(one.rule.match for one in rules)
    for prompt in files("prompts/*.toml"):
        check(prompt)
    for trigger in files("triggers/*.toml"):
        check_trigger(trigger)
    for flow in files("flows/*.toml"):
        checked = read_flow(flow)
        assert (checked.faults, checked.warnings) == ((), ())
    for cases in files("evals/*.toml"):
        assert read_cases(cases)
    agents = [load_definition(path) for path in files("agent/*/AGENT.md")]
    assert {one.name for one in agents} >= {one.rule.agent[0] for one in rules if one.rule.agent} - {"ops"}
    skills = [load_skill(path.parent) for path in files("skills/*/SKILL.md")]
    assert {one.runbook.suffix for one in skills if one.runbook} == {".py", ".sh"}
    for tool in files("tools/*.py"):
        assert load_tool(tool).error == ""
    for hook in files("hooks/*.py"):
        assert load_hook(hook).problem == ""


def test_every_example_is_told_of_where_they_lie() -> None:
    told = (EXAMPLES / "README").read_text()
    folders = {path.relative_to(EXAMPLES).parts[0] for path in EXAMPLES.rglob("*") if path.is_file()}
    assert {folder for folder in folders if f"{folder}/" not in told} == {"README"}


def test_the_flow_that_the_document_shows_is_one() -> None:
    text = (REPOSITORY / "docs/flows.md").read_text()
    shown = text.partition("    # /etc/lightagentd/flows/")[2].partition("    lactl flows check")[0]
    checked = check_flow("#" + shown.replace("\n    ", "\n"), "docs/flows.md")
    assert (checked.faults, checked.warnings) == ((), ())
    assert len(checked.usable().step) == 3
    built = text.partition("    from lightagentd.client")[2]
    done: dict[str, object] = {}
    exec("from lightagentd.client" + built.replace("\n    ", "\n").rpartition("print(")[0], done)
    assert done["flow"].check() == []  # type: ignore[attr-defined]


def test_systemd_takes_every_drop_in(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    shutil.copytree(EXAMPLES / "systemd", tmp_path, dirs_exist_ok=True)
    for unit in (REPOSITORY / "units").glob("lightagent-change@.*"):
        text = unit.read_text().replace("Before=lightagentd.service\nPartOf=lightagentd.service\n", "")
        write(tmp_path / unit.name, text)
    units = [folder.name.removesuffix(".d") for folder in tmp_path.glob("*.d")]
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if ".d/" in line] == []


@pytest.mark.usefixtures("sandboxed")
def test_they_run_in_the_sandbox_by_the_lines_that_the_pages_give(
    daemon_process: DaemonProcess, tmp_path: Path
) -> None:
    config = daemon_process.paths.config
    for kind in ("skills", "tools"):
        shutil.copytree(EXAMPLES / kind, config / kind)
    tmp_path.chmod(0o755)
    daemon_process.start()
    called = daemon_process.lactl("tools", "call", "ops", "uptime.show", "unit=days")
    assert (called.returncode, called.stderr) == (0, "")
    assert re.fullmatch(r"[\d.]+ days", called.stdout.strip())
    answer = daemon_process.lactl("prompt", "ops", "which files in /etc are the oldest")
    assert answer.returncode == 0
    assert answer.stdout.startswith("The oldest file in /etc is ")
    answer = daemon_process.lactl("prompt", "ops", "which log files are the largest")
    assert answer.stdout.startswith(
        ("The largest file below /var/log is ", "There are no files below /var/log")
    )


async def test_a_person_picks_what_the_tool_that_asks_may_remove(paths: Paths, open_folder: Path) -> None:
    for number, name in enumerate(("new", "old", "older")):
        write(open_folder / name, "x")
        os.utime(open_folder / name, (2e9 - number, 1e9 - number if number else 4e9))
    wanted = call("tidy_remove", {"folder": str(open_folder)})
    write(paths.config / "tools" / "tidy.py", (EXAMPLES / "tools/tidy.py").read_text())
    async with scripted(paths, [wanted, wanted, say("done")], front=FRONT, toml=TOML) as test:
        async with prompted(test, await test.session()) as (_, events):
            for picked in ("old", "none of them"):
                approval = await asked(test)
                await test.daemon.service.approvals.approve(ME, approval.id, "", approval.digest)
                question = await asked_by_tool(test)
                assert question.question == f"Which file of {open_folder} may go?"
                assert question.choices[0] == "older"
                await test.daemon.service.inputs.answer(ME, question.id, picked)
            await events
        assert sorted(path.name for path in open_folder.iterdir()) == ["new", "older"]
        said = [(event.data or {})["result"] for event in test.stored(topic="tool.tidy")]
        assert said == ["ok", "ok"]


@pytest.mark.usefixtures("sandboxed")
def test_the_tutorial_can_be_followed(generated: Path, daemon_process: DaemonProcess) -> None:
    page = plain(generated / "man/lightagent-intro.7")
    blocks = re.findall(r"^\.EX\n(.*?)^\.EE$", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    daemon_process.start()
    for line in lines:
        command, *words = shlex.split(line)
        assert command == "lactl"
        done = daemon_process.lactl(*words)
        # What is missing on this machine is no fault of the tutorial.
        assert done.returncode in ((0, 1) if words == ["doctor"] else (0,)), (line, done.stdout, done.stderr)


def test_every_key_that_a_page_describes_exists_and_the_other_way_round(generated: Path) -> None:
    page = plain(generated / "man/lightagent-skill.5")
    for section, model in (("FRONT MATTER", FrontMatter), ("RUNBOOK.YAML", Runbook)):
        keys = page.partition(f'.SH "{section}"')[2].partition(".SH")[0]
        described = [field.alias or name for name, field in model.model_fields.items()]
        assert re.findall(r"^\.TP\n\\fB([\w-]+)\\fR$", keys, re.MULTILINE) == described
    pages = {
        "lightagent-agent.5": (*AgentFrontMatter.model_fields, *AgentLimits.model_fields),
        "lightagent-policy.5": Rule.model_fields,
        "lightagent-flow.5": [
            field.alias or name
            for model in (Flow, FlowInput, Step, Condition)
            for name, field in model.model_fields.items()
        ],
    }
    for name, fields in pages.items():
        keys = plain(generated / "man" / name).partition('.SH "')[2].partition('.SH "EXAMPLES')[0]
        assert [field for field in fields if rf"\fB{field}\fR" not in keys] == []
    daemon = plain(generated / "man/lightagentd.8")
    prompts = daemon.partition('.SH "PROMPTS ON A CALENDAR"')[2].partition(".SH")[0]
    for name in PromptFile.model_fields:
        assert re.search(rf"\b{name}\b", prompts)
