"""A pool with the sandbox of this kernel and with those of older ones, and something to attack."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from lightagentd.config import configuration
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker import landlock, sandbox
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.pool import Pool
from tests.worker import running
from tests.worker.running import shell

CONFINED = (Effect.OBSERVE, Effect.REACH)
KINDS = ("this_kernel", "no_scopes", "no_landlock")
"""The sandbox of this kernel, and those of older ones."""
ABI = {"this_kernel": None, "no_scopes": 3, "no_landlock": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool_paths() -> AsyncIterator[Paths]:
    with running.folders() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def pool(request: pytest.FixtureRequest, pool_paths: Paths) -> AsyncIterator[Pool]:
    """A pool whose worker for each effect runs already, so that its processes do not count as left over."""
    backend = await sandbox.choose("auto", pool_paths, landlock_abi=ABI[request.param])
    if not backend.enforced:
        assert "bwrap" in backend.reason or "processor" in backend.reason
        pytest.skip(f"no sandbox here: {backend.reason}")
    if request.param == "this_kernel" and landlock.scoped():
        assert backend.ends is Ends.DOMAIN
    made = Pool(configuration.Worker(max_per_effect=1), pool_paths)
    await made.start()
    running.local(made).backend = backend
    for effect in CONFINED:
        assert await shell(made, "echo ready", effect) == "ready\n"
    processes = [
        process for one in made.workers() for process in psutil.Process(one.pid).children(recursive=True)
    ]
    yield made
    await made.close()
    assert not [process for process in processes if running.runs(process)]


@pytest.fixture
def victims() -> Iterator[Path]:
    """A folder that everybody may write to, with a file that everybody may write to."""
    folder = Path(tempfile.mkdtemp(prefix="la-victims-"))
    (folder / "file").write_text("as it was\n")
    (folder / "file").chmod(0o666)
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)
