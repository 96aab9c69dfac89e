"""Agents for tests whose model is a scripted one."""

from __future__ import annotations

from lightagentd.host.paths import Paths
from tests.conftest import write
from tests.scripted_model import ScriptedModel


def talker(paths: Paths, model: ScriptedModel, name: str = "talker", extra: str = "") -> None:
    """Define an agent that talks to a scripted model; before the daemon starts, or before a reload."""
    front = f"---\ndescription: talks\nmodel: openai/x\nbase_url: {model.base_url}\n{extra}---\nTalk.\n"
    write(paths.config / "agent" / name / "AGENT.md", front)
