"""Imports modules of `skills/_lib` as the scripts do."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.conftest import REPOSITORY


def module(name: str) -> Any:
    """A module of the library, such as `areas.mounts`; no bytecode is written beside it."""
    folder, before = str(REPOSITORY / "skills/_lib"), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        sys.dont_write_bytecode = before
