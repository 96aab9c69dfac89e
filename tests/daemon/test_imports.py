"""What the daemon's program imports, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.prepared import REPOSITORY

HEAVY = {"aiohttp", "httpx", "httpcore", "rich", "lightagentd.llm.runbook.matching"}


@pytest.mark.parametrize(
    ("program", "not_imported"),
    [
        ("from lightagentd import __main__; __main__.main()", {"pydantic", "asyncio", "lmdb", *HEAVY}),
        ("import lightagentd.daemon.serving", HEAVY),
        ("import lightagentd.llm.http_client", HEAVY - {"httpx"}),
    ],
    ids=["version", "daemon", "models"],
)
def test_nothing_is_imported_before_it_is_needed(program: str, not_imported: set[str]) -> None:
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {program}"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert not not_imported & {*done.stderr.split()}
