"""What is ours of a skill: the script that answers it, declared in `runbook.yaml` beside the SKILL.md.

    script: scripts/disk_check.py   # below the skill's folder
    effect: observe                 # what the script does to the system: observe (default) or reach
    timeout_s: 30                   # how long the script may take
    sees: processes                 # or files: it gets a survey of all processes, or of all open files too
    compares: true                  # it gets the last snapshot of the machine's state
    args:                           # name -> kind, description, and the effect of a call that gives it
      path: {kind: path, description: "...", effect: observe}

The same keys may stand in the front matter, as the mapping `metadata.lightagentd`. Other keys are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from lightagentd import frontmatter
from lightagentd.errors import ConfigError
from lightagentd.frontmatter import FrontMatterFile
from lightagentd.skills.arguments import ArgSpec

RUNBOOK_FILE = "runbook.yaml"
METADATA_KEY = "lightagentd"


class Runbook(BaseModel):
    """The script of a skill, how it is called and what it does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    script: str
    effect: Literal["observe", "reach"] = "observe"
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    sees: Literal["", "processes", "files"] = ""
    """What the script wants to see beyond file modes (`toolkit.proc.survey`): the file that the variable
    LIGHTAGENT_SURVEY names."""
    compares: bool = False
    """Whether the script gets the last snapshot of the machine's state before its argument `since`: the file
    that the variable LIGHTAGENT_SNAPSHOT names."""
    args: dict[str, ArgSpec] = Field(default_factory=dict)


def read_runbook(front: FrontMatterFile) -> tuple[Runbook, Path] | None:
    """The runbook of the skill with this front matter, and the path of its script; None for text alone.

    Raises ConfigError whose message names the file and the line or the key.
    """
    folder = front.path.parent
    declared = _declared(front, folder / RUNBOOK_FILE)
    if declared is None:
        return None
    runbook = declared.parse(Runbook)
    script = folder / runbook.script
    where = f"{declared.path}, line {declared.lines['script']}"
    if not script.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{where}: the script {runbook.script} is outside of the skill's folder.")
    if not script.is_file():
        raise ConfigError(f"{where}: the script {runbook.script} does not exist in {folder}.")
    return runbook, script


def _declared(front: FrontMatterFile, path: Path) -> FrontMatterFile | None:
    if path.exists():
        return frontmatter.read_yaml(path)
    metadata = front.data.get("metadata")
    if not isinstance(metadata, dict) or METADATA_KEY not in metadata:
        return None
    line, data = front.lines["metadata"], metadata[METADATA_KEY]
    if not isinstance(data, dict):
        raise ConfigError(f"{front.path}, line {line}: metadata.{METADATA_KEY} must be a mapping.")
    return FrontMatterFile(path=front.path, data=data, lines=dict.fromkeys(data, line), body="")
