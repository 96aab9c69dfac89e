"""`deliberate` in an AGENT.md: how drafts of a plan are made before a turn (`agents.deliberation`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lightagentd.config.models import wrong_model
from lightagentd.llm.providers import RUNBOOK

CHECKS = "checks"
SELF = "self"


class Deliberate(BaseModel):
    """How an agent deliberates; all keys are optional."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    breadth: int = Field(default=3, ge=1, le=8)
    """How many drafts are made."""
    depth: int = Field(default=1, ge=0, le=4)
    """How many times the best is refined."""
    judge: str = SELF
    """`self` for the model that is asked, PROVIDER/MODEL for another, `checks` for checks without a model."""
    when: Literal["asked", "always"] = "asked"

    @property
    def judge_model(self) -> str:
        """The judge, if it is a model of its own."""
        return "" if self.judge in (SELF, CHECKS) else self.judge

    @field_validator("judge")
    @classmethod
    def _judge(cls, value: str) -> str:
        if value == RUNBOOK:
            raise ValueError("the runbook judges nothing: write self, checks, or PROVIDER/MODEL")
        if value not in (SELF, CHECKS) and (why := wrong_model(value)):
            raise ValueError(f"{why}, self or checks")
        return value
