"""The generated files of the repository are those that the code makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

FOLDERS = ("packaging/varlink",)
"""Here every file is generated."""


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_no_generated_file_is_stale(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "packaging/generate.py"), "--checkout", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, env=environment, cwd="/", check=True, timeout=120)
    made = files_of(tmp_path)
    assert {"packaging/journal/lightagentd.catalog", "tests/data/dbus.txt"} < made.keys()
    there = {name: path.read_bytes() for name in made if (path := REPOSITORY / name).exists()}
    there |= {f"{name}/{one}": text for name in FOLDERS for one, text in files_of(REPOSITORY / name).items()}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    assert not stale, f"Stale: {', '.join(stale)}. To write them anew: make generate"
