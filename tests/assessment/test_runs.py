"""Runs of assessments with lactl against a real daemon: with a model server, and with the built-in model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lightagentd.host.paths import Paths
from tests.agents.scripted import QUICKLY, define
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.scripted_model import Answer, Fault, ScriptedModel, Stream, call, chunk, say

EVIL = "97 <script src='https://evil.example/x.js'>alert(1)</script> &amp; \x1b[2J ]]>"
RESTART = {"tool": "systemd", "action": "restart"}


def case(name: str, *tables: str, **keys: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"prompt": f"say {name}", **keys}.items()]
    return "\n".join(["[[case]]", f'name = "{name}"', *lines, *tables, ""])


ANSWER = '[case.answer]\ncontains = ["97"]'
JUDGE = '[case.judge]\nrubric = "It names a number."\npasses_from = 0.6'
STUB = """[[case.calls.must]]
tool = "systemd"
action = "restart"
args = { unit = "nginx.service" }
[[case.stub]]
tool = "systemd"
action = "restart"
args = { unit = "nginx" }
output = "it runs, 97"
"""
CASES = "\n".join(
    [
        case("good", ANSWER),
        case("flaky", ANSWER),
        case("evil", '[case.answer]\nlacks = ["97"]'),
        case("stubbed", ANSWER, STUB, effects=["change"], max_steps=2),
        case("judged", ANSWER, JUDGE),
        case("judged-badly", ANSWER, JUDGE),
        case("judged-in-prose", ANSWER, JUDGE),
        case("down", ANSWER),
        case("given", ANSWER, '[case.facts]\nlog = "the log says 97"'),
        case("checked", check="grep -q 97"),
        case("hang", ANSWER, max_s=0.1),
        case("not-checked", check="echo why >&2; exit 3"),
        'turns = ["say one", "say good"]'.join(['[[case]]\nname = "two-turns"\n', "\n" + ANSWER + "\n"]),
    ]
)


class Model:
    """Says what the newest prompt asks for."""

    def __init__(self) -> None:
        self.flaky = 0

    def __call__(self, body: dict[str, Any]) -> Answer:
        said = [one["content"] for one in body["messages"] if one["role"] == "user"]
        prompt, last = said[-1], body["messages"][-1]
        if "You judge the answer" in prompt:
            if "say judged-in-prose" in prompt:
                return say("I like it very much.")
            score = 0.9 if "say judged\n" in prompt else 0.2
            return say(json.dumps({"score": score, "reason": "because"}))
        if last["role"] == "tool":
            return say(f"the tool said: {last['content']}")
        if "say stubbed" in prompt:
            return call("systemd_restart", {"unit": "nginx"})
        if "say flaky" in prompt:
            self.flaky += 1
            return say("97" if self.flaky % 2 else "98")
        if "say down" in prompt:
            return Fault(status=400)
        if "say hang" in prompt:
            return Stream(pieces=[chunk({"content": "97"})], hang=True)
        return say(EVIL if "say evil" in prompt else "it is 97")


@pytest.fixture
async def assessed(paths: Paths) -> AsyncIterator[DaemonProcess]:
    async with ScriptedModel(Model()) as model:
        define(paths, model)
        write(paths.config / "lightagentd.toml.d" / "10-retry.toml", QUICKLY)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            yield daemon
        finally:
            await asyncio.to_thread(daemon.close)


async def lactl(daemon: DaemonProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(daemon.lactl, *arguments)


async def as_json(daemon: DaemonProcess, *arguments: str) -> Any:
    return json.loads((await lactl(daemon, *arguments, "--json")).stdout)


class Page(HTMLParser):
    """What a page loads, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


async def test_a_run_is_judged_stored_and_reported(assessed: DaemonProcess, tmp_path: Path) -> None:
    cases = write(tmp_path / "evals" / "all.toml", CASES)
    page, xml = tmp_path / "page.html", tmp_path / "junit.xml"
    options = ("--agent", "test", "--model", "openai/x", "-n", "2", "--html", str(page), "--junit", str(xml))
    done = await lactl(assessed, "eval", "run", str(cases.parent), *options, "--json")
    assert (done.returncode, done.stderr) == (82, "")
    found = json.loads(done.stdout)
    states: dict[str, set[str]] = {}
    for trial in found["trials"]:
        states.setdefault(trial["case"], set()).add(trial["state"])
    assert states == {
        **{name: {"passed"} for name in ("good", "stubbed", "judged", "given", "checked", "two-turns")},
        **{name: {"failed"} for name in ("evil", "hang", "judged-badly", "not-checked")},
        "flaky": {"passed", "failed"},
        "judged-in-prose": {"judge_failed"},
        "down": {"error"},
    }
    trials = {one["case"]: one for one in found["trials"]}
    assert trials["hang"]["code"] == "timeout"
    assert (trials["judged"]["score"], trials["judged"]["reason"]) == (0.9, "because")
    assert "The judge gave 0.2, and 0.6 passes: because" in trials["judged-badly"]["why"]
    assert "why" in trials["not-checked"]["why"][0]
    assert "The judge gave no score." in trials["judged-in-prose"]["why"][0]
    assert trials["stubbed"]["calls"][0] == {
        **RESTART,
        "effect": "change",
        "result": "ok",
        "stub": True,
        "args": trials["stubbed"]["calls"][0]["args"],
        "text": "it runs, 97",
    }
    (figures,) = found["models"]
    assert (figures["pass_1"]["passed"], figures["pass_1"]["of"]) == (13, 22)
    assert (figures["pass_all"]["passed"], figures["pass_all"]["of"]) == (6, 11)
    assert (figures["flaky"], figures["not_judged"]) == (["flaky"], 4)
    assert figures["total_tokens"] > 0
    await _check_stored(assessed, found)
    _check_reports(page, xml, found)


async def _check_stored(daemon: DaemonProcess, found: dict[str, Any]) -> None:
    """The run is in the history, and only the sessions of trials that did not pass are left."""
    run = found["run"]["id"]
    (listed,) = await as_json(daemon, "eval", "list")
    assert (listed["id"], listed["state"], listed["passed"]) == (run, "done", 13)
    assert await as_json(daemon, "eval", "show", run[:10]) == found
    left = {one["id"] for one in await as_json(daemon, "sessions", "list")}
    assert left == {one["session"] for one in found["trials"] if one["state"] != "passed"}
    assert not any(one["current"] for one in await as_json(daemon, "sessions", "list"))
    verified = await lactl(daemon, "audit", "verify")
    assert verified.returncode == 0, verified.stderr


def _check_reports(page: Path, xml: Path, found: dict[str, Any]) -> None:
    text = page.read_text()
    shown = Page(text)
    assert shown.loads == []
    assert not shown.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert "default-src 'none'" in text
    assert any("alert(1)" in one for one in shown.texts)
    assert "\x1b" not in text
    root = ElementTree.parse(xml).getroot()
    (suite,) = root
    assert (suite.get("name"), suite.get("tests")) == ("openai/x", str(len(found["trials"])))
    assert (suite.get("failures"), suite.get("errors")) == ("9", "4")
    assert [one.tag for test in suite for one in test].count("error") == 4


async def test_two_runs_are_compared(assessed: DaemonProcess, tmp_path: Path) -> None:
    good = write(tmp_path / "a.toml", case("one", ANSWER) + case("two", ANSWER))
    bad = write(
        tmp_path / "b.toml", case("one", ANSWER) + case("evil-two", ANSWER).replace("evil-two", "two")
    )
    write(bad, bad.read_text().replace('"say two"', '"say one"').replace('["97"]', '["98"]', 1))
    runs = []
    for path in (good, bad):
        options = ("--agent", "test", "-n", "8", "--name", path.stem)
        runs.append((await as_json(assessed, "eval", "run", str(path), *options))["run"]["id"])
    ((said),) = await as_json(assessed, "eval", "compare", *runs)
    verdicts = {one["case"]: (one["verdict"], one["sure"]) for one in [*said["cases"], said["all"]]}
    assert verdicts == {"one": ("worse", True), "two": ("the same", False), "all": ("worse, not sure", False)}
    shown = (await lactl(assessed, "eval", "compare", f"{runs[1]}:openai/x", runs[0])).stdout
    assert "one\topenai/x\t0/8\t8/8\t+1.00 (+0.54 to +1.00)\tbetter" in shown
    assert (await lactl(assessed, "eval", "compare", runs[0], f"{runs[1]}:nosuch")).returncode == 66


async def test_a_run_whose_client_was_killed_goes_on(assessed: DaemonProcess, tmp_path: Path) -> None:
    """No trial is asked twice, and none is missing. The file of the cases may be gone by then."""
    write(tmp_path / "slow.toml", case("hang", ANSWER))
    cases = write(
        tmp_path / "cases.toml", "".join(case(f"c{n}", ANSWER) for n in range(3)) + case("hang", ANSWER)
    )
    arguments = ["eval", "run", str(cases), "--agent", "test", "-n", "2", "--at-once", "2"]
    client = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-m", "lightagentd.cli.main", *arguments],
        cwd=REPOSITORY,
        env=assessed.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            while True:
                runs = await as_json(assessed, "eval", "list")
                if runs and runs[0]["passed"] == 6:
                    break
                await asyncio.sleep(0.1)
    finally:
        client.kill()
        await asyncio.to_thread(client.wait)
    run = runs[0]["id"]
    assert runs[0]["state"] == "running"
    cases.unlink()
    going = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-m", "lightagentd.cli.main", "eval", "run", "--resume", run],
        cwd=REPOSITORY,
        env=assessed.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            while (
                len([1 for one in await as_json(assessed, "sessions", "list") if one["state"] == "running"])
                < 4
            ):
                await asyncio.sleep(0.1)
        going.send_signal(signal.SIGINT)
        _, said = await asyncio.to_thread(going.communicate)
    finally:
        going.kill()
        await asyncio.to_thread(going.wait)
    assert going.returncode == 130
    assert f"Go on with: lactl eval run --resume {run}" in said.decode()
    shown = await as_json(assessed, "eval", "show", run)
    assert (shown["run"]["state"], [one["number"] for one in shown["trials"]]) == ("left", [0, 1, 2, 3, 4, 5])
    await asyncio.to_thread(assessed.kill)  # to stop it would be to wait for the answers that never come


async def test_a_budget_that_is_used_up_leaves_the_run_to_go_on(paths: Paths, tmp_path: Path) -> None:
    async with ScriptedModel(Model()) as model:
        define(paths, model)
        config = write(paths.config / "lightagentd.toml", "[budgets.owner]\nsteps = 3\n")
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            cases = write(tmp_path / "cases.toml", "".join(case(f"c{n}", ANSWER) for n in range(5)))
            done = await lactl(daemon, "eval", "run", str(cases), "--agent", "test", "--at-once", "1")
            assert (done.returncode, "This user's budget is used up" in done.stderr) == (79, True), (
                done.stderr
            )
            (run,) = await as_json(daemon, "eval", "list")
            assert (run["state"], run["passed"]) == ("left", 3)
            config.unlink()
            await lactl(daemon, "reload")
            again = await lactl(daemon, "eval", "run", "--resume", run["id"], "--json")
            assert again.returncode == 0, again.stderr
            assert [one["number"] for one in json.loads(again.stdout)["trials"]] == [0, 1, 2, 3, 4]
        finally:
            await asyncio.to_thread(daemon.close)


async def test_bad_input_is_an_error_before_anything_runs(assessed: DaemonProcess, tmp_path: Path) -> None:
    good = str(write(tmp_path / "good.toml", case("good", ANSWER)))
    stub = case("s", '[[case.stub]]\ntool = "nosuch"\naction = "x"\noutput = ""\n')
    tool = str(write(tmp_path / "tool.toml", stub))
    broken = str(write(tmp_path / "broken.toml", '[[case]]\nname = "x"\npromt = "y"\n'))
    (tmp_path / "empty").mkdir()
    for arguments, status, said in (
        ((good, "--agent", "nosuch"), 66, "There is no agent 'nosuch'."),
        ((good, "--agent", "test", "--model", "nosuch"), 65, "has no model 'nosuch'"),
        ((good, "--agent", "test", "-n", "0"), 2, "-n takes"),
        ((good,), 2, "--agent"),
        ((good, "--agent", "test", "--case", "x*"), 66, "has such a name"),
        ((tool, "--agent", "test"), 66, "The case s has in stub what does not exist: nosuch.x."),
        ((broken, "--agent", "test"), 78, f"{broken}:3: promt: there is no such key."),
        ((str(tmp_path / "empty"), "--agent", "test"), 66, "has no cases"),
        (("--resume", "eval_0123456789abcdef"), 66, "There is no run"),
    ):
        done = await lactl(assessed, "eval", "run", *arguments)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert await as_json(assessed, "eval", "list") == []


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    base = tmp_path_factory.mktemp("builtin")
    base.chmod(0o755)
    process = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
    try:
        process.start()
        yield process
    finally:
        process.close()


def test_the_shipped_cases_run_with_the_built_in_model(builtin: DaemonProcess) -> None:
    """They ask nobody, and change nothing; most of them need no language model."""
    folder = str(REPOSITORY / "agent" / "ops" / "evals")
    done = builtin.lactl("eval", "run", folder, "--agent", "ops", "--model", "runbook", "--json")
    assert done.returncode == 82, done.stderr
    found = json.loads(done.stdout)
    (figures,) = found["models"]
    assert figures["pass_1"]["of"] >= 60
    assert figures["pass_1"]["passed"] >= 60
    assert not [one for one in found["trials"] if one["state"] not in ("passed", "failed")]


def test_what_a_model_cannot_do_fails_its_trial_and_not_the_run(
    builtin: DaemonProcess, tmp_path: Path
) -> None:
    schema = '[case.schema]\ntype = "object"\n'
    foreign = JUDGE.replace("rubric", 'agent = "nosuch"\nrubric')
    asked = [("json", schema), ("judged", JUDGE), ("judged-by-none", foreign), ("plain", "")]
    text = "\n".join(case(name, more, prompt="check disk") for name, more in asked)
    path = str(write(tmp_path / "cases.toml", text))
    done = builtin.lactl("eval", "run", path, "--agent", "ops", "--json")
    trials = {one["case"]: one for one in json.loads(done.stdout)["trials"]}
    assert {name: (one["state"], one["code"]) for name, one in trials.items()} == {
        "json": ("failed", "schema_unsupported"),
        "judged": ("judge_failed", ""),
        "judged-by-none": ("judge_failed", ""),
        "plain": ("passed", ""),
    }


def test_a_turn_is_rated_and_becomes_a_case(builtin: DaemonProcess, tmp_path: Path) -> None:
    asked = builtin.lactl("prompt", "ops", "how full is /var", "--new", "--json").stdout.splitlines()
    trace, answer = json.loads(asked[-1])["trace_id"], json.loads(asked[-1])["text"]
    for rating in ("good", "bad"):
        assert builtin.lactl("rate", trace, rating, "--note", "wrong unit").returncode == 0
    (rated,) = json.loads(builtin.lactl("eval", "rated", "--json").stdout)
    assert (rated["trace_id"], rated["rating"], rated["note"]) == (trace, "bad", "wrong unit")
    events = json.loads(
        builtin.lactl("history", "--topic", "assessment.rating", "--json").stdout.splitlines()[-1]
    )
    assert (events["trace_id"], events["owner"]) == (trace, os.getuid())
    path = tmp_path / "mine.toml"
    assert builtin.lactl("eval", "add", trace, "--to", str(path)).returncode == 0
    text = path.read_text()
    assert "# Rated: bad. wrong unit" in text
    assert "# It said: **/var is on" in text
    again = builtin.lactl("eval", "add", trace, "--to", str(path))
    assert (again.returncode, "already" in again.stderr) == (65, True)
    done = builtin.lactl("eval", "run", str(path), "--agent", "ops", "--json")
    assert done.returncode == 0, done.stdout
    (trial,) = json.loads(done.stdout)["trials"]
    assert (trial["answer"], trial["calls"][0]["stub"]) == (answer, True)
    assert builtin.lactl("rate", "trace_0123456789abcdef", "bad").returncode == 66
    assert builtin.lactl("rate", trace, "fine").returncode == 2
