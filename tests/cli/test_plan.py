"""`lactl plan`: its files, and the command against a real daemon whose model is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.cli.plan_file import read_plan
from lightagentd.errors import InvalidArgument, LightagentError, MessageTooLarge, NotFound, PlanInvalid
from lightagentd.host.paths import Paths
from tests.agents.asking import add, lines, prepare
from tests.agents.planning import TWO, propose
from tests.agents.test_approvals_restart import process
from tests.cli.conftest import Finished, Lactl
from tests.cli.test_approvals import at_terminal
from tests.conftest import DaemonProcess
from tests.scripted_model import Answer, Fault, Script, ScriptedModel, Stream, call, say

MARKDOWN = """# Move the logs

- [ ] Stop nginx
  and wait for it
  check: `! systemctl is-active nginx`

* [ ] Move /var/log/nginx
1. Start nginx
    - check: systemctl is-active nginx
"""


def plan_of(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / "plan"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_plan(str(path))


def test_a_plan_is_read_from_markdown(tmp_path: Path) -> None:
    assert plan_of(tmp_path, MARKDOWN) == {
        "title": "Move the logs",
        "tasks": [
            {"text": "Stop nginx\nand wait for it", "check": "! systemctl is-active nginx"},
            {"text": "Move /var/log/nginx"},
            {"text": "Start nginx", "check": "systemctl is-active nginx"},
        ],
    }


def test_a_plan_is_read_from_json_as_it_is(tmp_path: Path) -> None:
    assert plan_of(tmp_path, json.dumps(TWO)) == TWO
    assert plan_of(tmp_path, "\ufeff" + json.dumps(TWO)) == TWO
    assert plan_of(tmp_path, "[1]") == [1]
    assert plan_of(tmp_path, "") == {"title": "", "tasks": []}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('{"tasks": [}', PlanInvalid, "plan:1: this is not JSON"),
        ("{" * 100_000 + "[" * 100_000, PlanInvalid, "JSON"),
        ("[" * 100_000 + "]" * 100_000, PlanInvalid, "nested too deep"),
        ("Some prose\n", PlanInvalid, "plan:1: this is neither"),
        ("- [ ] a\n\nprose\n", PlanInvalid, "plan:3: this is neither"),
        ("- [ ] a\n# late title\n", PlanInvalid, "plan:2: this is neither"),
        ("- [x] a\n", PlanInvalid, "not ticked off"),
        ("- [ ] a\n  check: b\n  check: c\n", PlanInvalid, "one check"),
        (b"\xff\xfe", PlanInvalid, "not UTF-8 at byte 1"),
        (bytes(64 << 20), MessageTooLarge, "larger than"),
    ],
    ids=lambda value: str(value[:20] if isinstance(value, bytes) else value)[:20],
)
def test_what_is_none_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, kind: type[LightagentError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        plan_of(tmp_path, text)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        read_plan(str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_plan(str(tmp_path))


def test_only_one_way_on_can_be_chosen(lactl: Lactl) -> None:
    for others in (("--retry", "--skip"), ("--abort", "--retry"), ("--skip", "--abort")):
        done = lactl("plan", "apply", "test", *others)
        assert (done.status, "cannot be used together" in done.err) == (2, True)


class Running:
    """A daemon process, and lactl against it."""

    def __init__(self, daemon: DaemonProcess, model: ScriptedModel, folder: Path) -> None:
        self.model = model
        self._daemon = daemon
        self._folder = folder

    async def lactl(self, *arguments: str, stdin: str = "") -> Finished:
        done = await asyncio.to_thread(self._daemon.lactl, *arguments, stdin=stdin.encode())
        return Finished(status=done.returncode, out=done.stdout, err=done.stderr)

    async def ok(self, *arguments: str, stdin: str = "") -> str:
        done = await self.lactl(*arguments, stdin=stdin)
        assert done.status == 0, done
        return done.out

    async def plan(self) -> dict[str, Any]:
        return dict(json.loads(await self.ok("plan", "show", "test", "--json")))


@contextlib.asynccontextmanager
async def running(paths: Paths, script: Script) -> AsyncIterator[Running]:
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        yield Running(daemon, model, paths.config)


async def test_a_plan_is_drafted_looked_at_and_applied(paths: Paths) -> None:
    async with running(paths, [propose(TWO), say("look"), say("did a"), say("did b")]) as here:
        missing = await here.lactl("plan", "show", "test")
        assert (missing.status, "no session" in missing.err) == (66, True)
        begun = (await here.ok("plan", "begin", "test")).splitlines()
        assert begun[1] == "phase\tdrafting"
        assert (await here.ok("prompt", "test", "plan it")) == "look\n"
        shown = (await here.ok("plan", "show", "test")).splitlines()
        assert shown[1:3] == ["phase\tready", "title\tTwo things"]
        assert shown[-2:] == ["task\ta\tpending\tdo a\t-\t-", "task\tb\tpending\tdo b\t-\t-"]
        done = await here.lactl("plan", "apply", "test")
        assert done.status == 0
        told = [line.split("\t") for line in done.out.splitlines()]
        assert [(line[0], line[1], line[-1]) for line in told[:4]] == [
            ("a", "running", "do a"),
            ("a", "done", "do a"),
            ("b", "running", "do b"),
            ("b", "done", "do b"),
        ]
        assert told[0][2] == "-"
        assert told[1][2].endswith("s")
        assert told[4] == ["Tasks: 2 done."]
        assert (await here.plan())["phase"] == "completed"
        again = await here.lactl("plan", "apply", "test")
        assert (again.status, "completed" in again.err, "lactl plan begin" in again.err) == (73, True, True)
        assert "phase\toff" in await here.ok("plan", "end", "test")


async def test_it_stops_at_a_task_that_failed_and_goes_on_as_told(paths: Paths) -> None:
    fails = Fault(status=400)
    script: list[Answer] = [say("did 1"), fails, fails, say("did 3"), fails]
    async with running(paths, script) as here:
        text = "- [ ] one\n- [ ] two\n- [ ] three\n- [ ] four\n"
        assert "4 tasks wait" in await here.ok("plan", "set", "test", "-", stdin=text)
        stopped = await here.lactl("plan", "apply", "test")
        assert stopped.status == 73
        assert "2\tfailed\t" in stopped.out
        assert "lactl plan apply" in stopped.err
        assert "--retry" in stopped.err
        refused = await here.lactl("plan", "apply", "test")
        assert (refused.status, refused.out) == (73, "")
        retried = await here.lactl("plan", "apply", "test", "--retry")
        assert retried.status == 73
        assert retried.out.startswith("2\trunning\t-\ttwo\n2\tfailed\t")
        skipped = await here.lactl("plan", "apply", "test", "--skip", "--json")
        assert skipped.status == 73
        plan = json.loads(skipped.out)
        assert [task["state"] for task in plan["tasks"]] == ["done", "skipped", "done", "failed"]
        assert json.loads(await here.ok("plan", "apply", "test", "--abort", "--json"))["phase"] == "off"


async def test_errors_say_which_field_and_what_to_do(paths: Paths) -> None:
    async with running(paths, [say("x")]) as here:
        wrong = json.dumps({"tasks": [{"id": "1", "text": "a"}, {"id": "1", "text": "b"}]})
        done = await here.lactl("plan", "set", "test", "-", "--json", stdin=wrong)
        error = json.loads(done.err)["error"]
        assert (done.status, error["code"], error["field"]) == (65, "plan_invalid", "tasks[1].id")
        none = await here.lactl("plan", "begin", "nobody")
        assert none.status == 66


async def test_without_waiting_it_only_begins(paths: Paths) -> None:
    async with running(paths, [Stream(pieces=[], hang=True)]) as here:
        await here.ok("plan", "set", "test", "-", stdin="- [ ] one\n")
        begun = json.loads(await here.ok("plan", "apply", "test", "--no-wait", "--json"))
        assert (begun["phase"], begun["tasks"][0]["state"]) == ("applying", "running")
        assert "phase\toff" in await here.ok("plan", "end", "test")


async def test_an_end_from_elsewhere_ends_the_watching(paths: Paths) -> None:
    async with running(paths, [Stream(pieces=[], hang=True)]) as here:
        await here.ok("plan", "set", "test", "-", stdin="- [ ] one\n")
        watching = asyncio.create_task(here.lactl("plan", "apply", "test"))
        while not here.model.open_requests:
            await asyncio.sleep(0.02)
        await here.ok("plan", "end", "test")
        done = await watching
        assert done.status == 130
        assert "ended before it was completed" in done.err


async def test_on_a_terminal_an_approval_is_asked_for(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("did it")]
    async with running(paths, script) as here:
        monkeypatch.setenv("LIGHTAGENT_SOCKET", str(paths.socket))
        await here.ok("plan", "set", "test", "-", stdin="# Add\n- [ ] add a line\n")
        status, shown = await asyncio.to_thread(at_terminal, ["plan", "apply", "test"], ("[y/N] ", b"y\n"))
        assert status == 0, shown
        assert "+ran" in shown
        assert shown.index("running") < shown.index("[y/N]") < shown.index("done")
        assert lines(out) == ["ran"]


async def test_in_a_pipe_it_says_what_it_waits_for(paths: Paths) -> None:
    script = [call("probe_add", add(prepare(paths))), say("did it")]
    async with running(paths, script) as here:
        await here.ok("plan", "set", "test", "-", stdin="- [ ] add a line\n")
        watching = asyncio.create_task(here.lactl("plan", "apply", "test"))
        while not (open_ones := json.loads(await here.ok("approvals", "list", "--json"))):
            await asyncio.sleep(0.02)
        await here.ok("deny", open_ones[0]["id"])
        done = await watching
        assert done.status == 0
        assert "lactl approve" in done.err
