"""The worker that may see more than file modes allow: what it answers, and what it must never do.

Only root can give it its rights; elsewhere the worker of the effect answers, and says what it could not see.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from lightagentd.agents.tool_calls.given import given
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.config import configuration
from lightagentd.errors import NotFound, PermissionDenied, Refused, WorkerUnavailable
from lightagentd.host.paths import Paths
from lightagentd.policy.decide import Policy
from lightagentd.policy.rulefiles import RuleSet
from lightagentd.skills import Skill
from lightagentd.tool import Effect, Place
from lightagentd.worker import places, sandbox
from lightagentd.worker.pool import Pool
from tests.policy.calls import a_call as policy_call
from tests.policy.calls import rules as rule_set
from tests.skills.script import SKILLS
from tests.worker import running
from tests.worker.running import a_call, events, until

in_module_loop = pytest.mark.asyncio(loop_scope="module")
SECRET = "the-words-of-a-secret"
CAPABILITIES = 1 << 19 | 1 << 2
"""CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (capabilities(7))."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paths() -> AsyncIterator[Paths]:
    with running.folders() as made:
        (made.config / "skills").mkdir()  # workers get the folders that are there when they start
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(paths: Paths) -> AsyncIterator[Pool]:
    made = Pool(configuration.Worker(), paths)
    await made.start()
    if not places.has_inspect(made.backend):
        await made.close()
        pytest.skip("only root, with bwrap and all its capabilities, can start the worker for inspect")
    for place in (Place.INSPECT, None):  # so that their processes are there before the first test
        await asked(made, "net", "connections", place=place)
    yield made
    await made.close()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[str]]:
    """A process of another user that listens on a port, holds a file open and has a secret."""
    program = (
        "import socket, sys, os; f = open('/etc/hostname'); s = socket.socket(); s.bind(('127.0.0.1', 0));"
        "s.listen(); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"SECRET_TOKEN": SECRET, "PATH": "/usr/bin"},
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that only its owner's rights, or root's, can open, with a file in it."""
    base = Path(tempfile.mkdtemp(prefix="la-closed-"))
    folder = base / "closed"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/diary.txt").write_text(SECRET * 1000)
    (folder / "inner").chmod(0)
    folder.chmod(0)
    base.chmod(0o755)
    yield folder
    folder.chmod(0o700)
    (folder / "inner").chmod(0o700)
    shutil.rmtree(base)


async def asked(
    pool: Pool, tool: str, action: str, *, place: Place | None = Place.INSPECT, **args: Any
) -> dict[str, Any]:
    call = a_call(tool, action, effect=Effect.OBSERVE, agent="ops", timeout_s=30, **args)
    found = [event async for event in pool.call(replace(call, place=place))]
    assert len(found) == 1
    return found[0]


def status_of(pid: int) -> dict[str, str]:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(row.split(":\t", 1) for row in rows if ":\t" in row)


def inspectors(pool: Pool) -> list[psutil.Process]:
    """The processes of the worker for inspect, without bwrap's own."""
    [worker] = [one for one in pool.workers() if one.where is Place.INSPECT]
    return psutil.Process(worker.pid).children(recursive=True)


@in_module_loop
async def test_it_names_the_owners_of_all_sockets(pool: Pool, stranger: subprocess.Popen[str]) -> None:
    assert stranger.stdout is not None
    port = int(stranger.stdout.readline())
    seen = await asked(pool, "net", "connections", kind="tcp", port=port, listening=True)
    assert [row["pid"] for row in seen["metadata"]["connections"]] == [stranger.pid]
    assert seen["metadata"]["owners_not_seen"] == 0
    unseen = await asked(pool, "net", "connections", place=None, kind="tcp", port=port, listening=True)
    assert unseen["metadata"]["owners_not_seen"] == 1
    assert "The owners of 1 could not be seen" in unseen["output"]


@in_module_loop
async def test_it_names_open_files_and_variables_of_others_and_no_content(
    pool: Pool, stranger: subprocess.Popen[str]
) -> None:
    assert stranger.stdout is not None
    stranger.stdout.readline()
    seen = await asked(pool, "proc", "info", pid=stranger.pid)
    assert "/etc/hostname" in seen["metadata"]["open_files"]["paths"]
    assert "SECRET_TOKEN" in seen["metadata"]["environment_names"]
    assert SECRET not in str(seen)
    unseen = await asked(pool, "proc", "info", place=None, pid=stranger.pid)
    assert unseen["metadata"]["hidden"]["open_files"] == "permission denied"
    assert "Not shown:" in unseen["output"]


@in_module_loop
async def test_it_adds_up_folders_that_are_closed_to_others(pool: Pool, closed: Path) -> None:
    seen = await asked(pool, "file", "usage", path=str(closed.parent), depth=2)
    assert seen["metadata"]["complete"] is True
    assert f"{closed}/inner" in seen["output"]
    assert seen["metadata"]["size_bytes"] > len(SECRET) * 1000
    assert "diary" not in str(seen)
    unseen = await asked(pool, "file", "usage", place=None, path=str(closed.parent))
    assert unseen["metadata"]["not_entered"] == 1
    assert f"1 folders could not be entered: {closed}." in unseen["output"]


@in_module_loop
async def test_it_is_no_way_to_ask_for_the_names_of_files(pool: Pool, closed: Path) -> None:
    said = []
    for name in ("diary.txt", "no-such-file"):
        with pytest.raises(NotFound) as caught:
            await asked(pool, "file", "usage", path=f"{closed}/inner/{name}")
        said.append(caught.value.message.replace(name, ""))
    assert said[0] == said[1]


@pytest.fixture
def home() -> Iterator[Path]:
    """A person's closed folder, with an open one in it, and one that is a way into it."""
    base = Path(tempfile.mkdtemp(prefix="la-home-"))
    base.chmod(0o755)
    folder = base / "home"
    (folder / "affairs/deep").mkdir(parents=True)
    (folder / "affairs/deep/diary").write_text("x" * 50_000)
    (base / "way").symlink_to(folder / "affairs")
    for each in (folder, *folder.rglob("*")):
        os.chown(each, 12345, 12345)
    folder.chmod(0o700)
    yield folder
    shutil.rmtree(base)


@in_module_loop
async def test_names_in_a_persons_closed_folder_are_for_that_person_and_root(pool: Pool, home: Path) -> None:
    for owner, knows in ((12345, True), (0, True), (12346, False)):
        seen = await asked(pool, "file", "usage", path=str(home.parent), depth=5, owner=owner)
        assert (f"{home}/affairs" in str(seen)) is knows
        assert str(home) in str(seen)
        assert seen["metadata"]["size_bytes"] > 50_000
    said = set()
    for name in ("home/affairs", "home/affairs/deep", "home/nothing", "home/affairs/nothing", "way/deep"):
        with pytest.raises(Refused) as caught:
            await asked(pool, "file", "usage", path=f"{home.parent}/{name}", owner=12346)
        said.add(caught.value.message)
    assert len(said) == 1
    with (home / "affairs/deep/diary").open() as held:
        program = ["sleep", "600"]
        with subprocess.Popen(program, stdin=held, cwd=home / "affairs", pass_fds=[]) as process:
            for owner, knows in ((12345, True), (12346, False)):
                found = (await asked(pool, "proc", "info", pid=process.pid, owner=owner))["metadata"]
                names = (found["cwd"], *found["open_files"]["paths"])
                assert (f"{home}/affairs" in names) is knows
                assert (f"{home}/affairs/deep/diary" in names) is knows
                assert (f"{home}/..." in names) is not knows
            process.kill()


@in_module_loop
@pytest.mark.parametrize("unshared", [True, False], ids=["other mounts", "under /run"])
async def test_names_that_the_worker_cannot_look_up_are_not_told(pool: Pool, unshared: bool) -> None:
    """The worker sees neither the mounts of containers nor all of /run."""
    where = "/run/la-inspect-test"
    script = f"mkdir {where}; " + (f"mount -t tmpfs none {where}; " if unshared else "")
    script += f"mkdir -m 700 {where}/own; mkdir {where}/own/diary; chown -R 12345 {where}/own; "
    script += f"cd {where}/own/diary; echo; exec setpriv --reuid 12345 sleep 600"
    with subprocess.Popen(
        [*(["unshare", "-m"] if unshared else []), "sh", "-c", script], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            await until(lambda: status_of(process.pid)["Name"] == "sleep", "the program")
            for owner, knows in ((12345, True), (0, True), (12346, False)):
                found = await asked(pool, "proc", "info", pid=process.pid, owner=owner)
                assert (f"{where}/own/diary" in str(found)) is knows
                assert (f"{where}/own/diary" in await pool.survey(owner, files=True)) is knows
        finally:
            process.kill()
            shutil.rmtree(where)


@in_module_loop
async def test_a_survey_has_what_others_hold_and_no_content(
    pool: Pool, stranger: subprocess.Popen[str], home: Path
) -> None:
    assert stranger.stdout is not None
    stranger.stdout.readline()
    (home / "gone").write_text(SECRET)
    with (
        (home / "gone").open() as held,
        subprocess.Popen(
            ["sleep", "9"], stdin=held, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as sleeper,
    ):
        (home / "gone").unlink()
        for owner, name in ((0, f"{home}/gone (deleted)"), (12346, f"{home}/... (deleted)")):
            found = json.loads(await pool.survey(owner, files=False))
            rows = {row["pid"]: row for row in found["processes"]}
            assert (found["left_out"], {os.getpid(), stranger.pid} <= set(rows)) == (0, True)
            assert rows[sleeper.pid]["descriptors"] == {"0": name}
            assert rows[sleeper.pid]["deleted"]["0"][0] == 4096
            sockets = [
                end for end in rows[stranger.pid]["descriptors"].values() if end.startswith("socket:[")
            ]
            assert (len(sockets), rows[stranger.pid]["limit"] > 0) == (1, True)
            assert " / / " in found["mounts"]
            assert SECRET not in str(found)
        files = json.loads(await pool.survey(0, files=True))["processes"]
        assert (
            "/etc/hostname"
            in next(row for row in files if row["pid"] == stranger.pid)["descriptors"].values()
        )
        sleeper.kill()


@in_module_loop
async def test_a_script_gets_a_survey_if_its_skill_asks_and_policy_allows_what_it_tells(pool: Pool) -> None:
    call = policy_call("skill.run", args={"name": "x"}, effect=Effect.OBSERVE)
    rules = rule_set('decision = "ask"\ntool = "net"')
    for sees, ruled, effects, gets in (
        ("processes", RuleSet(), (Effect.OBSERVE,), True),
        ("", RuleSet(), (Effect.OBSERVE,), False),
        ("processes", rules, (Effect.OBSERVE,), False),
        ("processes", RuleSet(), (Effect.REACH,), False),
    ):
        policy = Policy(enforced=lambda: True, trusted_skill=lambda *_: True, rules=ruled)
        asked_by = replace(call, agent_effects=effects)
        skills = {(asked_by.agent, "x"): replace(SKILLS["health"], sees=sees)}
        found = await given(_Known(skills), policy, pool, str, [asked_by], owner=0)
        assert ("survey" in found) is gets


class _Known:
    """What is known of skills, and no tools."""

    def __init__(self, skills: dict[tuple[str, str], Skill]) -> None:
        self._skills, self.toolbox = skills, Toolbox()

    def trusted_skill(self, agent: str, name: str) -> Skill | None:
        return self._skills.get((agent, name))


@in_module_loop
async def test_the_script_of_a_skill_reads_its_survey(pool: Pool, paths: Paths) -> None:
    folder = paths.config / "skills/seeing"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: seeing\ndescription: Sees.\n---\nx\n")
    (folder / "runbook.yaml").write_text("script: scripts/x.sh\nsees: processes\n")
    (folder / "scripts/x.sh").write_text('cat "$LIGHTAGENT_SURVEY"')
    call = a_call("skill", "run", effect=Effect.OBSERVE, agent="ops", timeout_s=30, name="seeing")
    found = [event async for event in pool.call(replace(call, expected={"survey": '{"processes": 1}'}))]
    assert found[-1]["output"] == '{"processes": 1}'


@in_module_loop
async def test_the_state_of_the_daemon_is_not_in_it(pool: Pool, paths: Paths) -> None:
    (paths.state / "history/deep").mkdir(parents=True, exist_ok=True)
    (paths.state / "history/deep/data").write_bytes(bytes(1 << 20))
    seen = await asked(pool, "file", "usage", path=str(paths.state.parent), depth=3)
    assert seen["metadata"]["size_bytes"] < 1 << 20
    assert "history" not in str(seen)
    assert str(paths.state) in seen["metadata"]["other_file_systems"]


@pytest.mark.parametrize(
    ("tool", "action", "args"),
    [
        ("bash", "exec", {"command": "id"}),
        ("file", "read", {"path": "/etc/shadow"}),
        ("file", "grep", {"path": "/etc/shadow", "pattern": "root"}),
        ("file", "list", {"path": "/root"}),
        ("file", "write", {"path": "/tmp/la-inspect-wrote", "content": "x"}),
        ("proc", "signal", {"pid": os.getpid(), "signal": "CONT"}),
        ("journal", "query", {}),
        ("skill", "run", {"name": "disk"}),
    ],
)
@in_module_loop
async def test_it_serves_nothing_but_its_own_questions(
    pool: Pool, tool: str, action: str, args: dict[str, Any]
) -> None:
    with pytest.raises(PermissionDenied):
        await asked(pool, tool, action, **args)
    assert not Path("/tmp/la-inspect-wrote").exists()


@in_module_loop
async def test_it_is_nobody_with_two_capabilities_and_a_filter(pool: Pool) -> None:
    await asked(pool, "net", "connections")
    for process in inspectors(pool):
        status = status_of(process.pid)
        assert set(status["Uid"].split()) == {str(process.uids().real)} != {"0"}
        for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
            assert int(status[name], 16) == CAPABILITIES, name
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)


@in_module_loop
async def test_it_sees_a_file_system_that_cannot_be_written(pool: Pool) -> None:
    await asked(pool, "net", "connections")
    mounts = [
        line.split() for line in Path(f"/proc/{inspectors(pool)[0].pid}/mountinfo").read_text().splitlines()
    ]
    writable = {fields[4] for fields in mounts if "rw" in fields[5].split(",")}
    assert {name for name in writable if not name.startswith(("/dev", "/proc", "/sys"))} == {
        str(sandbox.SCRATCH)
    }


@in_module_loop
async def test_all_agents_share_one(pool: Pool) -> None:
    for agent in ("ops", "other"):
        call = a_call("net", "connections", effect=Effect.OBSERVE, agent=agent, timeout_s=30)
        assert [event async for event in pool.call(replace(call, place=Place.INSPECT))]
    assert len([one for one in pool.workers() if one.where is Place.INSPECT]) == 1


@in_module_loop
async def test_no_command_of_an_agent_can_signal_trace_or_read_it(pool: Pool) -> None:
    await asked(pool, "net", "connections")
    pids = [process.pid for process in inspectors(pool)]
    for pid in pids:
        said = await running.shell(
            pool,
            f"P=/proc/{pid}; kill -9 {pid}; cat $P/environ; ls $P/fd/ $P/cwd/; head -c1 $P/mem",
        )
        assert "Operation not permitted" in said
        assert said.count("ermission denied") + said.count("not permitted") >= 4
    assert [process.pid for process in inspectors(pool)] == pids


@in_module_loop
async def test_arguments_are_checked_in_a_worker_without_its_rights(pool: Pool) -> None:
    checked = await pool.check(
        "ops", Effect.OBSERVE, "file", "usage", {"path": "/var"}, place=Place.INSPECT, preview=True
    )
    assert checked.args == {"path": "/var", "depth": 1, "top": 20}


async def test_a_lost_one_is_started_again() -> None:
    with running.folders() as made:
        pool = Pool(configuration.Worker(), made)
        await pool.start()
        try:
            if not places.has_inspect(pool.backend):
                pytest.skip("only root can start the worker for inspect")
            await asked(pool, "net", "connections")
            [worker] = [one for one in pool.workers() if one.where is Place.INSPECT]
            for process in inspectors(pool):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            await until(lambda: not worker.running, "it stays")
            assert (await asked(pool, "net", "connections"))["kind"] == "result"
        finally:
            await pool.close()


class TestWithoutOne:
    """Where nobody can give a worker these rights."""

    async def test_the_worker_of_the_effect_answers(self) -> None:
        with running.folders() as made:
            pool = Pool(configuration.Worker(sandbox="none"), made)
            await pool.start()
            try:
                assert not places.has_inspect(pool.backend)
                seen = await asked(pool, "file", "usage", path=str(made.config))
                assert seen["metadata"]["path"] == str(made.config)
                assert [worker.where for worker in pool.workers()] == [Effect.OBSERVE]
            finally:
                await pool.close()

    async def test_it_is_never_started_without_a_sandbox(self) -> None:
        with running.folders() as made, socket.socket(socket.AF_UNIX) as listener:
            backend = sandbox.Backend(name="none", enforced=False)
            wanted = sandbox.Wanted(
                where=Place.INSPECT,
                backend=backend,
                paths=made,
                listen_fd=listener.fileno(),
                tools=[],
                extra=[],
                env={},
            )
            with pytest.raises(WorkerUnavailable):
                await places.spawn(wanted)

    async def test_an_ordinary_worker_says_what_it_left_out(self, closed: Path) -> None:
        with running.folders() as made:
            pool = Pool(configuration.Worker(), made)
            await pool.start()
            try:
                if not pool.backend.enforced and os.geteuid() == 0:
                    pytest.skip("a worker of root's without a sandbox sees everything")
                found = await events(pool, "file", "usage", path=str(closed.parent))
            finally:
                await pool.close()
            assert found[-1]["metadata"]["not_entered"] == 1
            assert found[-1]["metadata"]["complete"] is False
