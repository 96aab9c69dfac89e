"""The base class of all sections of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """A table of the configuration: unknown keys are refused, and nothing changes once it is read."""

    # The input may hold a key that somebody wrote where none belongs: never show it.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
