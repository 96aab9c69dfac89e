"""Kits in a real daemon with real workers: what is an agent's own is used by that agent alone."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from lightagentd.agents.kits.folder import check_owned
from lightagentd.agents.kits.kits import Kits
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    AgentBroken,
    AgentExists,
    AgentNotFound,
    ConfigError,
    Conflict,
    InvalidArgument,
    MessageTooLarge,
    ToolNotFound,
)
from lightagentd.host.paths import Paths
from lightagentd.worker import own_tools
from tests.agents.kits.made import SKILL, dba, everything, folder, path_mode, tarred, tool
from tests.agents.scripted import ME, scripted, until, watch
from tests.conftest import write
from tests.scripted_model import Stream, call, say

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def kits(daemon: Daemon) -> Kits:
    return Kits(daemon.registry)


async def outcome(daemon: Daemon, agent: str, action: str, **args: str) -> str:
    """The output of a call, or the code of its error."""
    tool_name, _, name = action.partition(".")
    found = ""
    async for event in call_as_person(daemon.registry.get(agent), ME.uid, tool_name, name, args):
        if event["type"] == "tool_result":
            found = event["text"] if event["result"] == "ok" else event["result"]
    return found


async def test_what_is_in_a_kit_is_for_its_agent_alone(daemon: Daemon, kits: Kits) -> None:
    write(daemon.paths.config / "agent" / "own" / "AGENT.md", "---\n---\nx\n")
    await daemon.registry.read_content()
    await daemon.registry.sync()
    await kits.add(tarred(dba()), "")
    said = await outcome(daemon, "dba", "dbstat.show", what="locks")
    assert said.startswith("locks for dba in ")
    with pytest.raises(ToolNotFound, match="There is no tool"):
        await outcome(daemon, "dba", "dbstat.drop")
    for other in ("ops", "own", "dba.reader"):
        with pytest.raises(ToolNotFound, match=r"There is no tool 'dbstat\.show'"):
            await outcome(daemon, other, "dbstat.show")
        assert await outcome(daemon, other, "skill.run", name="db-check") == "skill_not_found"
    assert "The database is fine" in await outcome(daemon, "dba", "skill.run", name="db-check")
    await outcome(daemon, "ops", "skill.list")
    pids = {worker.agent: worker.pid for worker in daemon.pool.workers()}
    assert len({pids["dba"], pids["ops"], pids["own"]}) == 3


async def test_a_model_is_offered_its_own_tools_and_no_others(paths: Paths) -> None:
    script = [call("dbstat_show", {"what": "x"}), say("done"), call("dbstat_show", {}), say("no")]
    async with scripted(paths, script) as test:
        front = f"---\nmodel: openai/x\nbase_url: {test.model.base_url}\n---\nBe brief.\n"
        kits = Kits(test.daemon.registry)
        await kits.add(tarred(dba(**{"AGENT.md": front})), "")
        agent = test.daemon.registry.get("dba")
        made = await test.daemon.service.sessions.create(ME, "dba", "")
        await watch(await agent.prompt(agent.sessions[made.id], "go"))
        names = {one["function"]["name"] for one in test.model.requests[0].body["tools"]}
        assert {"dbstat_show", "skill_load"} <= names
        assert "db-check" in test.model.requests[0].body["messages"][0]["content"]
        assert "x for dba" in test.model.requests[1].body["messages"][-1]["content"]
        await test.prompt(await test.session())
        names = {one["function"]["name"] for one in test.model.requests[2].body["tools"]}
        assert "dbstat_show" not in names
        assert "db-check" not in test.model.requests[2].body["messages"][0]["content"]
        assert "tool_not_found" in test.model.requests[3].body["messages"][-1]["content"]


async def test_an_own_skill_wins_and_the_agent_says_so(daemon: Daemon, kits: Kits) -> None:
    mine = {
        "skills__disk-check__SKILL.md": SKILL.format(name="disk-check"),
        "skills__disk-check__runbook.yaml": "script: scripts/x.sh\n",
        "skills__disk-check__examples.txt": "check disk\n",
        "skills__disk-check__scripts__x.sh": "#!/bin/sh\necho mine\n",
    }
    await kits.add(tarred(dba(**mine)), "")
    shown = await daemon.service.agents.get(ME, "dba")
    assert (shown.own_skills, shown.covered_skills) == (["db-check", "disk-check"], ["disk-check"])
    assert shown.own_tools == ["dbstat"]
    assert await outcome(daemon, "dba", "skill.run", name="disk-check") == "mine\n"
    assert "mine" not in await outcome(daemon, "ops", "skill.run", name="disk-check")


async def test_members_belong_to_their_kit(daemon: Daemon, kits: Kits) -> None:
    await kits.add(tarred(dba()), "")
    definitions = daemon.registry.shared.content.definitions
    shown = {one.name: one for one in await daemon.service.agents.listed(ME)}
    assert (shown["dba.reader"].kit, shown["dba"].kit, shown["dba.reader"].state) == ("dba", "", "running")
    assert definitions.askable(definitions.agents["ops"]) == {"dba": "dba"}
    assert definitions.askable(definitions.agents["dba"])["reader"] == "dba.reader"
    assert definitions.askable(definitions.agents["dba.reader"]) == {"dba": "dba", "ops": "ops"}
    for name in ("dba", "dba.reader"):
        with pytest.raises(Conflict, match="belongs to the kit dba"):
            await daemon.registry.delete(name)


async def test_a_kit_is_replaced_on_request_and_its_workers_with_it(daemon: Daemon, kits: Kits) -> None:
    await kits.add(tarred(dba()), "")
    before = await outcome(daemon, "dba", "dbstat.show")
    with pytest.raises(AgentExists, match="There is a kit dba already"):
        await kits.add(tarred(dba()), "")
    with pytest.raises(AgentExists, match="There is an agent ops already"):
        await kits.add(tarred(dba()), "ops", replace=True)
    files = {name: text for name, text in dba().items() if not name.startswith("agents/")}
    files["AGENT.md"] = "---\n---\nx\n"
    files["tools/dbstat.py"] = tool("dbstat").replace("{args.what} for", "NEW for")
    with pytest.raises(ConfigError, match="broken"):
        await kits.add(tarred({**files, "tools/broken.py": "raise OSError('broken')"}), "", replace=True)
    assert (await outcome(daemon, "dba", "dbstat.show")) == before
    await kits.add(tarred(files), "", replace=True)
    assert (await outcome(daemon, "dba", "dbstat.show")).startswith("NEW for dba")
    assert sorted(daemon.registry.agents) == ["dba", "ops"]


async def test_a_removed_kit_is_gone_and_a_running_turn_with_it(paths: Paths) -> None:
    script: list[Stream] = [say("never", pause_s=3600)]
    async with scripted(paths, script) as test:
        front = f"---\nmodel: openai/x\nbase_url: {test.model.base_url}\n---\nBe brief.\n"
        kits = Kits(test.daemon.registry)
        await kits.add(tarred(dba(**{"AGENT.md": front})), "")
        agent = test.daemon.registry.get("dba")
        made = await test.daemon.service.sessions.create(ME, "dba", "")
        turn = await agent.prompt(agent.sessions[made.id], "go")
        await until(lambda: test.model.requests)
        await kits.remove("dba")
        assert (await watch(turn))[-1]["type"] == "error"
        assert sorted(test.daemon.registry.agents) == ["ops", "test"]
        assert everything(paths.kits) == [".new"]
        assert [*test.daemon.pool.own_tools.kits] == []
        with pytest.raises(AgentNotFound):
            await kits.remove("dba")
        with pytest.raises(Conflict, match="The kit ops was not added"):
            await kits.remove("ops")


SCHEMA = tool("odd").replace('what: str = "all"', "what: type = int").replace("args.what", "args")
PLACE = tool("odd").replace("@action(clean", "@action(place=Place.KEYS, clean")
PLACE = PLACE.replace("import Args,", "import Place, Args,")
SWALLOW = (
    "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass\n"
)
BROKEN: dict[str, tuple[dict[str, str], str]] = {
    "import": (
        {"tools__odd.py": "import os\nimport nosuch\n"},
        "tools/odd.py, line 2: ModuleNotFoundError: No module named 'nosuch'",
    ),
    "syntax": ({"tools__odd.py": "\n\nx = (\n"}, "tools/odd.py, line 3: SyntaxError"),
    "no tool": ({"tools__odd.py": "x = 1\n"}, "tools/odd.py: TypeError: the file must define one class"),
    "schema": ({"tools__odd.py": SCHEMA}, "tools/odd.py, line 17: show: "),
    "place": ({"tools__odd.py": PLACE}, "tools/odd.py: the action show has a place"),
    "exit": ({"tools__odd.py": "import os\nos._exit(0)\n"}, "tools/odd.py: it ended the worker"),
    "built in": ({"tools__memory.py": tool("memory")}, "tools/memory.py, line 12: there is a tool memory"),
    "shipped": ({"tools__bash.py": tool("bash")}, "tools/bash.py, line 12: there is a tool bash"),
    "function": (
        {"tools__proc_x.py": tool("proc_x"), "tools__proc.py": "x"},
        "tools/proc.py: there is a tool proc",
    ),
    "name": ({"tools__Odd.py": "x = 1\n"}, "tools/Odd.py: ValueError: 'Odd' must be lower-case"),
    "skill": ({"skills__odd__SKILL.md": "x"}, "skills/odd/SKILL.md, line 1: the file must begin"),
    "member": ({"agents__odd__x": ""}, "agents/odd/AGENT.md is missing"),
    "members": ({"agents__reader__agents__x__AGENT.md": "---\n---\n"}, "has no agents of its own"),
    "front matter": (
        {"AGENT.md": "---\ncolour: red\n---\n"},
        "AGENT.md, line 2: the key colour is not known",
    ),
    "huge front matter": ({"AGENT.md": "---\nx: " + "[" * 500 + "\n---\n"}, "AGENT.md"),
    "bomb": (
        {
            "AGENT.md": "---\n"
            + "".join(f"k{n}: &a{n} [{f'*a{n - 1}, ' * 9}1]\n" for n in range(1, 20))
            + "---\n"
        },
        "AGENT.md",
    ),
    "names": (
        {
            "AGENT.md": "---\ntools: [skill, dbstatt, nosuch, dbstat.show]\nskills: [db-chek]\n"
            "agents: [raeder, reader, opps]\n---\n"
        },
        "The agent dba names tools that do not exist: dbstatt, nosuch. Did you mean dbstat? "
        "The agent dba names skills that do not exist: db-chek. Did you mean db-check? "
        "The agent dba names agents that do not exist: raeder, opps. Did you mean reader, ops?",
    ),
    "role": ({"AGENT.md": "---\nrole: nosuch\n---\n"}, "AGENT.md: there is no role 'nosuch'"),
    "model": ({"AGENT.md": "---\nmodel: nowhere/x\n---\n"}, "nowhere"),
}


async def test_a_kit_that_could_not_work_is_refused_with_file_line_and_reason(
    daemon: Daemon, kits: Kits
) -> None:
    for name, (files, said) in BROKEN.items():
        archive = tarred(dba(**files))
        with pytest.raises((ConfigError, InvalidArgument)) as caught:
            await kits.add(archive, "")
        assert "The kit dba cannot be used" in caught.value.message, name
        assert said in caught.value.message, name
        assert str(daemon.paths.kits) not in caught.value.message, name
        assert sorted(daemon.registry.agents) == ["ops"], name
    assert everything(daemon.paths.kits) == [".new"]


async def test_a_tool_that_does_not_end_to_load_is_a_problem_of_its_file(
    daemon: Daemon, kits: Kits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_tools, "DESCRIBE_S", 1.0)
    looked = await kits.check(tarred(dba(**{"tools__odd.py": SWALLOW})), "")
    assert looked.problems == ["tools/odd.py: it ended the worker that loaded it, or kept it from answering."]
    assert everything(daemon.paths.kits) == [".new"]


LIES: dict[str, tuple[str, str]] = {
    "another tool": ('found["name"] = "bash"', "it says that it is the tool 'bash'"),
    "another place": ('found["actions"][0]["place"] = "keys"', "actions.0.place"),
    "no actions": ('found["actions"] = None', "actions: Input should be a valid list"),
    "no tool": ('found = {"problem": ""}', "Field required"),
    "a schema that is none": ('found["actions"][0]["schema"] = []', "actions.0.schema"),
    "properties": ('found["actions"][0]["schema"]["properties"] = [1]', "dbstat.py"),
    "endless": ('found["actions"][0]["timeout_s"] = 1e300', "actions.0.timeout_s"),
    "name": ('found["actions"][0]["name"] = "a.b"', "actions.0.name"),
    "deep": ('found["actions"][0]["schema"]["properties"]["what"] = deep', ""),
    "long": ('found["description"] = "x" * (1 << 20)', "description"),
    "line": ('found["problem"], found["line"] = "\\x1b[2J", "x"', "tools/dbstat.py: [2J."),
}


async def test_a_file_that_has_its_worker_lie_is_not_believed(daemon: Daemon, kits: Kits) -> None:
    for name, (lie, said) in LIES.items():
        lines = ["import lightagentd.worker.interface as interface", "real = interface.describe", "deep = {}"]
        lines += ["for _ in range(300): deep = {'properties': {'x': deep}}", "def told(loaded):"]
        lines += ["    found = real(loaded)", f"    {lie}", "    return found", "interface.describe = told"]
        text = tool("alie") + "\n".join(lines) + "\n"
        looked = await kits.check(tarred(dba(**{"tools__alie.py": text})), "")
        assert said in " ".join(looked.problems), name
    assert daemon.problems() == [*daemon.pool.backend.limits]


async def test_a_module_of_the_same_name_stays_what_it_is(daemon: Daemon, kits: Kits) -> None:
    await kits.add(tarred(dba(**{"tools__json.py": tool("json"), "tools__os.py": tool("os")})), "")
    assert (await outcome(daemon, "dba", "json.show")).startswith("all for dba")
    assert (await outcome(daemon, "dba", "os.show")).startswith("all for dba")
    assert "The database is fine" in await outcome(daemon, "dba", "skill.run", name="db-check")


async def test_a_worker_reads_kits_of_a_state_that_all_may_enter() -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        async with Daemon(paths) as daemon:
            paths.state.chmod(0o755)
            await Kits(daemon.registry).add(tarred(dba()), "")
            assert (await outcome(daemon, "dba", "dbstat.show")).startswith("all for dba")


async def test_a_tool_cannot_write_into_its_kit(daemon: Daemon, kits: Kits) -> None:
    if not daemon.pool.backend.enforced:
        pytest.skip("no sandbox here")
    writes = tool("dbstat").replace(
        'return Result(output=f"{args.what} for {ctx.agent} in {os.getpid()}"',
        "open(__file__, 'a').write('#')\n        return Result(output=''",
    )
    await kits.add(tarred(dba(**{"tools__dbstat.py": writes})), "")
    before = everything(daemon.paths.kits)
    assert await outcome(daemon, "dba", "dbstat.show") == "tool_failed"
    assert everything(daemon.paths.kits) == before


async def test_too_much_for_the_configuration_is_refused(paths: Paths) -> None:
    write(paths.config / "lightagentd.toml", "[limits]\nmax_kit_files = 3\nmax_kit_bytes = 100000\n")
    async with Daemon(paths) as daemon:
        with pytest.raises(MessageTooLarge, match=r"100000 bytes or 3 files: 'dba/.*' is beyond that"):
            await Kits(daemon.registry).add(tarred(dba()), "")


# Kits in folders of the administrator


async def test_a_broken_tool_breaks_its_agent_and_its_members_and_no_other(paths: Paths) -> None:
    top = folder(paths.config / "agent", dba(**{"tools__odd.py": "import nosuch\n"}))
    async with Daemon(paths) as daemon:
        why = f"{top}/tools/odd.py, line 1: ModuleNotFoundError: No module named 'nosuch'."
        for name, said in (("dba", why), ("dba.reader", "It is a member of the kit dba, which is disabled.")):
            with pytest.raises(AgentBroken) as caught:
                daemon.registry.get(name)
            assert caught.value.message == f"The agent {name} is disabled: {said}"
            assert f"The agent {name} is disabled: {said}" in daemon.problems()
            shown = await daemon.service.agents.get(ME, name)
            assert (shown.state, shown.problem) == ("broken", said)
        assert (await daemon.service.kits.get(ME, "dba")).problems[0] == why
        assert daemon.registry.get("ops").state == "running"
        (top / "tools" / "odd.py").unlink()
        assert {"started agent dba", "started agent dba.reader"} <= {*(await daemon.reload()).applied}
        assert (await outcome(daemon, "dba", "dbstat.show")).startswith("all for dba")


async def test_a_reload_takes_kits_that_came_and_went(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        top = folder(paths.config / "agent", dba())
        assert "started agent dba" in (await daemon.reload()).applied
        assert (await outcome(daemon, "dba", "dbstat.show")).startswith("all for dba")
        path_mode(write(top / "tools" / "dbstat.py", tool("dbstat").replace("{args.what} for", "NEW for")))
        await daemon.reload()
        assert (await outcome(daemon, "dba", "dbstat.show")).startswith("NEW for dba")
        (top / "tools" / "dbstat.py").unlink()
        await daemon.reload()
        with pytest.raises(ToolNotFound):
            await outcome(daemon, "dba", "dbstat.show")
        with pytest.raises(Conflict, match="was not added"):
            await Kits(daemon.registry).remove("dba")
        for path in sorted(top.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        top.rmdir()
        assert {"stopped agent dba", "stopped agent dba.reader"} <= {*(await daemon.reload()).applied}


def loosened(path: Path) -> str:
    path.chmod(0o664)
    return "can be written by others than its owner"


def linked(path: Path) -> str:
    path.unlink()
    path.symlink_to("/etc/passwd")
    return "is a link, and a kit has none"


def fifo(path: Path) -> str:
    path.unlink()
    os.mkfifo(path, 0o600)
    return "is not a file or folder"


def given_away(path: Path) -> str:
    os.chown(path, 12345, -1)
    return "belongs to uid 12345, not to root"


@pytest.mark.parametrize("spoil", [loosened, linked, fifo, pytest.param(given_away, marks=needs_root)])
@pytest.mark.parametrize("name", ["tools/dbstat.py", "references/tables.md", "agents/reader/AGENT.md"])
async def test_what_others_could_have_written_is_refused_by_its_name(
    paths: Paths, name: str, spoil: object
) -> None:
    top = folder(paths.config / "agent", dba())
    assert callable(spoil)
    said = spoil(top / name)
    async with Daemon(paths) as daemon:
        with pytest.raises(AgentBroken) as caught:
            daemon.registry.get("dba")
        assert f"{top / name} {said}" in caught.value.message
        assert daemon.registry.get("ops").state == "running"
        outside = folder(paths.config.parent / "else", dba())
        said = spoil(outside / name)
        with pytest.raises(ConfigError) as refused:
            await Kits(daemon.registry).create_from("other", str(outside))
        assert f"{outside / name} {said}" in refused.value.message


async def test_an_agent_of_a_folder_stays_there_and_is_found_again(paths: Paths) -> None:
    outside = folder(paths.config.parent / "else", dba())
    async with Daemon(paths) as daemon:
        await Kits(daemon.registry).create_from("db", str(outside))
        assert (await outcome(daemon, "db", "dbstat.show")).startswith("all for db in")
        with pytest.raises(AgentExists):
            await Kits(daemon.registry).create_from("db", str(outside))
    async with Daemon(paths) as daemon:
        assert (await outcome(daemon, "db", "dbstat.show")).startswith("all for db in")
        assert (await daemon.service.agents.get(ME, "db.reader")).kit == "db"
        (outside / "AGENT.md").rename(outside / "AGENT.txt")
        moved = outside.rename(outside.with_name("moved"))
        await daemon.reload()
        with pytest.raises(AgentBroken, match="which is not there"):
            daemon.registry.get("db")
        await daemon.registry.delete("db")
        assert moved.is_dir()
        assert not os.path.lexists(paths.own_agents / "db")


async def test_a_folder_that_others_could_exchange_is_refused(paths: Paths) -> None:
    outside = folder(paths.config.parent / "else", dba())
    outside.parent.chmod(0o777)
    async with Daemon(paths) as daemon:
        kits = Kits(daemon.registry)
        with pytest.raises(ConfigError, match="could exchange"):
            await kits.create_from("db", str(outside))
        for wrong in ("", "relative", "/nosuch", "/etc/passwd", "a\0b", "/proc/self/root/nosuch"):
            with pytest.raises(InvalidArgument, match="finds no folder"):
                await kits.create_from("db", wrong)
        with pytest.raises(InvalidArgument, match="is not an agent's name"):
            await kits.create_from("../x", str(outside))
        empty = folder(paths.config.parent, {"references/x": "x"})
        with pytest.raises(ConfigError, match=r"AGENT\.md is missing"):
            await kits.create_from("db", str(empty))
        assert list(paths.own_agents.glob("*")) == []


async def test_adding_twice_at_once_adds_once(daemon: Daemon, kits: Kits) -> None:
    adding = (kits.add(tarred(dba()), "") for _ in range(2))
    done = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["AgentExists", "Checked"]


def test_what_the_product_brings_may_be_written_by_whoever_may_write_the_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = folder(tmp_path / "agent", dba())
    monkeypatch.setattr("lightagentd.agents.kits.folder.share_folder", lambda: tmp_path)
    (top / "AGENT.md").chmod(0o664)
    with pytest.raises(ConfigError, match="can be written by others"):
        check_owned(top)
    tmp_path.chmod(0o775)
    check_owned(top)
    (top / "AGENT.md").chmod(0o666)
    with pytest.raises(ConfigError, match="can be written by others"):
        check_owned(top)
