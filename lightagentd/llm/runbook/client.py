"""The embedded model: matches a prompt to a skill, has its script run, and answers with the report.

It is a model client like any other, so that its calls go through the same turn loop, policy, workers and
history. It needs no network and no key. Where nothing fits it says what can be asked, and never guesses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable

from lightagentd.events.model import new_id
from lightagentd.fenced import question_of
from lightagentd.llm.protocol import Finish, Message, Part, Request, TextDelta, ToolCall, Usage
from lightagentd.llm.runbook.matching import SkillIndex, abilities
from lightagentd.skills import SkillCatalog

RUN = "skill_run"
"""The function that runs a skill's script."""
NO_TOOL = (
    "I answer from runbooks, and the tool that runs them is not there for this agent. "
    "`lactl status` and the agent's list of tools say why."
)
_NOTHING = Usage()
"""What an answer takes: it is counted, and there are no tokens."""
_LOOKED_AT_CHARS = 2000
"""How much of a question is matched. What is attached to it is not: text from outside chooses no skill."""


class RunbookClient:
    """`catalog` gives the skills that are installed now; the index is made again when they changed."""

    name = "runbook"
    context_tokens = 0
    window_known = True

    def __init__(self, catalog: Callable[[], SkillCatalog]) -> None:
        self._catalog = catalog
        self._indexed: SkillCatalog | None = None
        self._index = SkillIndex(())

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """Answer the newest prompt: with a call, or, once that was made, with its report."""
        last = request.messages[-1] if request.messages else Message(role="user", content="")
        if last.role == "tool":
            yield TextDelta(last.content)
            yield Finish(reason="stop", usage=_NOTHING)
            return
        if not any(function.name == RUN for function in request.functions):
            yield TextDelta(NO_TOOL)
            yield Finish(reason="stop", usage=_NOTHING)
            return
        catalog = self._catalog()
        if catalog is not self._indexed:
            # Off the event loop: it takes as long as many small turns.
            self._index = await asyncio.to_thread(_index_of, catalog)
            self._indexed = catalog
        found = self._index.match(question_of(last.content)[:_LOOKED_AT_CHARS])
        if found is None:
            yield TextDelta(abilities(catalog.skills.values()))
            yield Finish(reason="stop", usage=_NOTHING)
            return
        arguments = {"name": found.skill, "args": found.args, "effect": found.effect}
        yield ToolCall(id=new_id("call"), name=RUN, arguments=json.dumps(arguments))
        yield Finish(reason="tool_calls", usage=_NOTHING)

    async def close(self) -> None:
        """Nothing is held."""


def _index_of(catalog: SkillCatalog) -> SkillIndex:
    """The index of the skills that have a script, warmed up: the first match compiles expressions."""
    index = SkillIndex(skill for skill in catalog.skills.values() if skill.runbook)
    index.match("check disk")
    return index
