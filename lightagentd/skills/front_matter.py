"""The front matter of a SKILL.md, as https://agentskills.io/specification has it.

Keys that published skills use beside those of the standard are kept. Any other key is kept too, with a
warning: it may be a typing error, or a key of a newer standard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lightagentd.frontmatter import FrontMatterFile

NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
"""The standard's names, and those with `_`."""
RUNBOOK_KEYS = frozenset(("runbook", "script", "effect", "timeout_s", "args", "words", "prompts"))
"""Keys of ours that stood in the front matter before they had files of their own."""
_BESIDE = (
    "agent argument-hint arguments author category color dependencies disable-model-invocation "
    "disallowed-tools effort homepage hooks keywords model paths requires shell source tags title tools "
    "triggers user-invocable version when_to_use"
)
PUBLISHED_KEYS = frozenset(_BESIDE.split())
"""What published skills use beside the keys of the standard."""


class FrontMatter(BaseModel):
    """The YAML at the top of a SKILL.md."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    description: str = Field(min_length=1)
    license: str = ""
    compatibility: str = ""
    metadata: Any = None
    allowed_tools: str = Field(default="", alias="allowed-tools")
    """What the author would allow without a question: a hint, which never widens what an agent may do."""
    context: str = ""
    """`fork`: where it works in a context of its own, it gets the conversation."""

    @field_validator("license", "compatibility", "allowed_tools", "context", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Published skills write lists of tools, numbers, and now and then no value."""
        words = value if isinstance(value, list) else [value]
        return " ".join(str(each) for each in words if isinstance(each, str | int | float))

    @property
    def extra(self) -> Mapping[str, Any]:
        """The keys that the standard does not have."""
        return self.model_extra or {}


def warnings_of(front: FrontMatterFile, matter: FrontMatter) -> list[str]:
    """What is odd about it, as sentences with file and line."""
    found = [
        f"{front.path}, line {line}: the value has a colon in it, so YAML wants it in quotes."
        for line in front.quoted
    ]
    for key in matter.extra:
        where = f"{front.path}, line {front.lines[key]}"
        if key in ("words", "prompts"):
            found.append(f"{where}: the key {key} is not used any more: write prompts into examples.txt.")
        elif key in RUNBOOK_KEYS:
            found.append(f"{where}: the key {key} is not used here: it belongs into runbook.yaml.")
        elif key not in PUBLISHED_KEYS:
            found.append(f"{where}: the key {key} is not known; it is kept.")
    return found
