"""Previews by the worker for observe, and approved changes by the one for change, as the pool runs them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lightagentd.config import configuration
from lightagentd.errors import Conflict, NotFound
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker.pool import Checked, Pool
from tests.worker import running
from tests.worker.running import a_call

ROOT = os.geteuid() == 0
in_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paths() -> AsyncIterator[Paths]:
    with running.folders() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(paths: Paths) -> AsyncIterator[Pool]:
    made = Pool(configuration.Worker(change_agents=["ops"]), paths)
    await made.start()
    with tempfile.NamedTemporaryFile(prefix="la-warm-") as file:
        await changed(
            made, "write", Path(file.name), await checked(made, "write", Path(file.name), content="x")
        )
    yield made
    await made.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may look into, below one that they may too."""
    made = Path(tempfile.mkdtemp(prefix="la-preview-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


async def checked(pool: Pool, action: str, path: Path, **args: Any) -> Checked:
    return await pool.check("ops", Effect.CHANGE, "file", action, {"path": str(path), **args}, preview=True)


async def changed(pool: Pool, action: str, path: Path, approved: Checked) -> dict[str, Any]:
    """Run what was approved, exactly."""
    call = a_call("file", action, effect=Effect.CHANGE, agent="ops", timeout_s=30, **approved.args)
    found = [event async for event in pool.call(replace(call, expected=approved.expected))]
    assert approved.args["path"] == str(path)
    return found[-1]


@in_module_loop
async def test_an_undo_shows_the_path_and_the_difference_and_only_to_the_owner(
    pool: Pool, folder: Path
) -> None:
    """What it takes back lies where only the worker for change can read it."""
    (folder / "f").write_text("old\n")
    seen = await checked(pool, "write", folder / "f", content="new\n")
    call = a_call("file", "write", effect=Effect.CHANGE, agent="ops", timeout_s=30, **seen.args)
    async for _ in pool.call(replace(call, expected=seen.expected, owner=1000)):
        pass
    args = {"call_id": call.call_id}
    undo = await pool.check("ops", Effect.CHANGE, "file", "undo", args, owner=1000, preview=True)
    assert str(folder / "f") in undo.preview
    assert "-new\n+old\n" in undo.preview
    assert undo.expected
    with pytest.raises(NotFound):
        await pool.check("ops", Effect.CHANGE, "file", "undo", args, owner=1001, preview=True)
    assert (folder / "f").read_text() == "new\n"


@in_module_loop
async def test_a_diff_is_approved_and_then_made(pool: Pool, paths: Paths, folder: Path) -> None:
    (folder / "f").write_text("old\n")
    seen = await checked(pool, "write", folder / "f", content="new\n")
    assert "-old\n+new\n" in seen.preview
    assert (folder / "f").read_text() == "old\n"
    done = await changed(pool, "write", folder / "f", seen)
    assert (folder / "f").read_text() == "new\n"
    assert done["metadata"]["previous_kept"] is True
    assert paths.undo("ops").stat().st_mode & 0o777 == 0o700


@in_module_loop
async def test_what_changed_after_the_preview_is_left_as_it_is(pool: Pool, folder: Path) -> None:
    (folder / "f").write_text("old\n")
    seen = await checked(pool, "edit", folder / "f", old="old", new="new")
    (folder / "f").write_text("old but other\n")
    with pytest.raises(Conflict, match="changed since it was approved"):
        await changed(pool, "edit", folder / "f", seen)
    assert (folder / "f").read_text() == "old but other\n"


@pytest.mark.skipif(not ROOT, reason="observe and change are the same user")
@in_module_loop
async def test_a_file_that_observe_may_not_read_is_not_shown_and_still_bound(
    pool: Pool, folder: Path
) -> None:
    (folder / "f").write_text("a secret\n")
    (folder / "f").chmod(0o600)
    seen = await checked(pool, "write", folder / "f", content="new\n")
    if pool.backend.enforced:
        assert "may not be read with the effect observe" in seen.preview
        assert "secret" not in seen.preview
    (folder / "f").write_text("another secret\n")
    with pytest.raises(Conflict):
        await changed(pool, "write", folder / "f", seen)
    await changed(pool, "write", folder / "f", await checked(pool, "write", folder / "f", content="new\n"))
    assert (folder / "f").read_text() == "new\n"
    assert (folder / "f").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not ROOT, reason="observe and change are the same user")
@in_module_loop
async def test_a_file_in_a_closed_folder_is_not_shown_and_can_be_changed(pool: Pool, folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    (folder / "closed/f").write_text("a secret\n")
    seen = await checked(pool, "delete", folder / "closed/f")
    if pool.backend.enforced:
        assert "may not be seen with the effect observe" in seen.preview
        assert seen.expected == {}
    await changed(pool, "delete", folder / "closed/f", seen)
    assert not (folder / "closed/f").exists()


@pytest.mark.skipif(not ROOT, reason="an ordinary user cannot write there")
@in_module_loop
async def test_a_file_where_the_sandbox_shows_an_empty_folder_can_be_changed(pool: Pool) -> None:
    made = Path(tempfile.mkdtemp(prefix="la-preview-", dir="/run"))
    try:
        (made / "f").write_text("old\n")
        seen = await checked(pool, "write", made / "f", content="new\n")
        if pool.backend.enforced:
            assert "is hidden from the effect observe" in seen.preview
            assert seen.expected == {}
        await changed(pool, "write", made / "f", seen)
        assert (made / "f").read_text() == "new\n"
    finally:
        shutil.rmtree(made)


@in_module_loop
async def test_the_arguments_come_back_as_the_action_gets_them(pool: Pool, folder: Path) -> None:
    seen = await checked(pool, "write", folder / "f", content="x")
    assert seen.args == {
        "path": f"{folder}/f",
        "content": "x",
        "mode": "",
        "encoding": "utf-8",
        "expect_sha256": "",
        "parents": False,
    }
    assert seen.expected == {"kind": "nothing"}
