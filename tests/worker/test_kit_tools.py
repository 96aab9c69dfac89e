"""The tools of kits in workers: one kit for each, and for change only what is trusted."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config import configuration
from lightagentd.errors import LightagentError, PermissionDenied, ToolNotFound
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker.kit_tools import KitTools
from lightagentd.worker.pool import Pool
from tests.agents.kits.made import dba, folder
from tests.worker.running import a_call, folders, local

AGENTS = ("dba", "web")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def paths() -> Iterator[Paths]:
    with folders() as made:
        for name in AGENTS:
            folder(made.config / "agent", dba(), name)
        yield made


@pytest.fixture
async def pool(paths: Paths) -> AsyncIterator[Pool]:
    """A pool with room for one worker, so that it hands over what it can."""
    made = Pool(configuration.Worker(max_workers=4, change_agents=["dba"]), paths)
    await made.start()
    for name in AGENTS:
        made.own_tools.kits[name] = str(paths.config / "agent" / name)
    yield made
    await made.close()


async def said(pool: Pool, agent: str, tool: str, action: str, effect: Effect = Effect.OBSERVE) -> Any:
    call = a_call(tool, action, effect=effect, agent=agent, timeout_s=20, owner=1234)
    return [event async for event in pool.call(call)][-1]["output"]


def pids(pool: Pool) -> dict[str, int]:
    return {worker.agent: worker.pid for worker in pool.workers()}


async def test_a_worker_is_handed_over_neither_from_nor_to_an_agent_with_a_kit(pool: Pool) -> None:
    for name in ("plain-0", "plain-1"):
        await said(pool, name, "skill", "list")
    first = {*pids(pool).values()}
    await said(pool, "other", "skill", "list")
    assert pids(pool)["other"] in first, "without kits one is handed over"
    assert "for dba in" in await said(pool, "dba", "dbstat", "show")
    dba = pids(pool)["dba"]
    assert "for web in" in await said(pool, "web", "dbstat", "show")
    own = {dba, pids(pool)["web"]}
    assert len(own - first) == 2
    for number in range(10, 14):
        await said(pool, f"plain-{number}", "skill", "list")
        assert pids(pool)[f"plain-{number}"] not in own
    with pytest.raises(ToolNotFound, match="There is no tool 'dbstat'"):
        await said(pool, "plain-13", "dbstat", "show")


async def test_a_worker_takes_one_kit_for_its_life(pool: Pool, paths: Paths) -> None:
    await said(pool, "dba", "dbstat", "show")
    for other in (str(paths.config / "agent" / "web"), ""):
        pool.own_tools.kits["dba"] = other
        with pytest.raises(PermissionDenied, match=r"serves the kit in .*/dba alone"):
            await said(pool, "dba", "dbstat", "show")
        with pytest.raises(PermissionDenied, match=r"serves the kit in .*/dba alone"):
            await said(pool, "dba", "skill", "list")


async def test_a_kit_cannot_take_the_place_of_a_tool_of_all_agents(pool: Pool, paths: Paths) -> None:
    tools = paths.config / "agent" / "dba" / "tools"
    shutil.copy(tools / "dbstat.py", tools / "skill.py")
    assert "db-check" not in await said(pool, "dba", "skill", "list")
    assert "disk-check" in await said(pool, "dba", "skill", "list")


async def test_the_worker_for_change_loads_what_is_roots_or_its_own_users(pool: Pool) -> None:
    assert await said(pool, "dba", "dbstat", "vacuum", Effect.CHANGE) == "vacuumed"
    assert local(pool).backend is pool.backend


@needs_root
async def test_the_worker_for_change_refuses_what_the_daemons_user_wrote(pool: Pool, paths: Paths) -> None:
    """As in a unit, where the worker is root and the daemon is not."""
    kit = paths.config / "agent" / "dba"
    os.chown(kit / "tools" / "dbstat.py", 65534, -1)
    os.chown(kit / "tools", 65534, -1)
    assert "for dba" in await said(pool, "dba", "dbstat", "show")
    with pytest.raises(PermissionDenied, match=r"does not load the kit's tool dbstat: .* belongs to nobody"):
        await said(pool, "dba", "dbstat", "vacuum", Effect.CHANGE)


@pytest.mark.parametrize(
    "name", ["tools/dbstat.py", "tools", ".", "..", "tools/__pycache__", "tools/_lib.py"]
)
def test_for_change_nobody_else_may_be_able_to_write_any_of_it(paths: Paths, name: str) -> None:
    kit = paths.config / "agent" / "dba"
    (kit / "tools" / "__pycache__").mkdir(mode=0o755)
    (kit / "tools" / "_lib.py").touch(0o644)
    trusted = KitTools().get("dbstat", str(kit), change=True)
    assert trusted is not None
    assert trusted.error == ""
    path = (kit / name).resolve()
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(PermissionDenied, match="can write or exchange"):
        KitTools().get("dbstat", str(kit), change=True)
    assert KitTools().get("dbstat", str(kit), change=False) is not None


def test_for_change_no_link_is_followed(paths: Paths, tmp_path: Path) -> None:
    kit = paths.config / "agent" / "dba"
    (kit / "tools" / "linked.py").symlink_to(kit / "tools" / "dbstat.py")
    with pytest.raises(LightagentError, match="can write or exchange"):
        KitTools().get("linked", str(kit), change=True)
