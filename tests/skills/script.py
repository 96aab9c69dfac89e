"""Runs the script of a shipped skill as a worker would: as a process of its own, with a clean environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lightagentd.host.process import clean_environment
from lightagentd.skills import Skill, load_skills

SKILLS = load_skills([Path(__file__).parents[2] / "skills"]).skills


def skill(name: str) -> Skill:
    return SKILLS[name]


def report(
    name: str, *extra: str, search_path: str | None = None, survey: Path | None = None, **args: str
) -> str:
    """The whole report of a run that must end with status 0 (or 4: nothing there), begin with a finding and
    have no traceback.

    `extra` are options of the script that are no arguments of the skill; `search_path` replaces PATH,
    `survey` is the file with what a worker found out.
    """
    environment = clean_environment({} if search_path is None else {"PATH": search_path})
    environment |= {"LIGHTAGENT_SURVEY": str(survey)} if survey else {}
    argv = [*skill(name).command(args), "--full", *extra]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode in (0, 4), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "stopped early" not in done.stdout
    assert done.stderr == ""
    first = done.stdout.splitlines()[0]
    assert first.startswith("**")
    assert first.endswith(".**")
    return done.stdout


def finding(text: str) -> str:
    return text.splitlines()[0].strip("*")
