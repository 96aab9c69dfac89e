"""Runs a file as `python FILE` does, forked (tests/prepared.py) with all imported that the file uses."""

from __future__ import annotations

import runpy
import sys

import lightagentd.embed.assembly  # noqa: F401


def main() -> None:
    runpy.run_path(sys.argv[1], run_name="__main__")
