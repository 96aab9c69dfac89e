"""The embedded model: matches a prompt to a skill, has its script run, and answers with the report.

It is a model client like any other, so that its calls go through the same turn loop, policy, workers and
history. It needs no network and no key. Where nothing fits it fails, and never guesses.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightagentd.errors import NoRunbook
from lightagentd.events.model import new_id
from lightagentd.llm.protocol import Finish, Message, Part, Request, TextDelta, ToolCall, Usage
from lightagentd.llm.retry import NEVER
from lightagentd.llm.runbook.names import Names
from lightagentd.skills import SkillCatalog

if TYPE_CHECKING:
    from lightagentd.llm.runbook.machine_names import MachineNames
    from lightagentd.llm.runbook.matching import Match, SkillIndex

RUN, TRANSFER = "skill_run", "agent_transfer"
"""The functions that run a skill's script, and hand the conversation to another agent."""
_ASK_OTHERWISE = "See what can be asked: lactl skills list. To have a language model answer: lactl setup"
NO_REPORT = "The runbook ended without a report."
_NOTHING = Usage()
"""What an answer takes: it is counted, and there are no tokens."""


class RunbookClient:
    """`catalog` returns the installed skills; the index is rebuilt when they change. `names` is shared with
    other clients; without it no name of this machine is known. `team` returns the skills of the agents that
    the conversation can be handed to.
    """

    name = "runbook"
    context_tokens = 0
    window_known = True
    retry = NEVER

    def __init__(
        self,
        catalog: Callable[[], SkillCatalog],
        names: MachineNames | None = None,
        agent: str = "AGENT",
        team: Callable[[], Mapping[str, SkillCatalog]] = dict,
    ) -> None:
        self._catalog = catalog
        self._names = names
        self._agent = agent
        self._team = team
        self._indexed: dict[str, tuple[SkillCatalog, SkillIndex]] = {}

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """Answer the newest prompt: with a call, or, after that call, with its report. Raises NoRunbook.

        In the middle of another model's turn, the results of that model's calls are not the answer, unless
        they are just that report.
        """
        ran = _run_before(request.messages)
        found = None if ran is not None and not ran.skill else await self._match(request)
        if ran is not None and (found is None or found.skill == ran.skill or not ran.skill):
            yield TextDelta(ran.report if ran.report.strip() else NO_REPORT)
            yield Finish(reason="stop", usage=_NOTHING)
            return
        if found is None and ran is None and (member := await self._member(request)):
            name, skill = member
            yield TextDelta(f"The agent {name} has a skill for that: {skill}.")
            arguments: dict[str, Any] = {"agent": name, "note": f"It fits your skill {skill}."}
            yield ToolCall(id=new_id("call"), name=TRANSFER, arguments=json.dumps(arguments))
            yield Finish(reason="tool_calls", usage=_NOTHING)
            return
        if not _can_run(request):
            raise NoRunbook(
                "The tool that runs runbooks, skill, is not there for this agent.",
                suggestion="'lactl status' and the agent's list of tools say why.",
            )
        if found is None:
            raise NoRunbook("No runbook fits this prompt.", suggestion=await self._suggestion(request))
        arguments = {"name": found.skill, "args": found.args, "effect": found.effect}
        yield ToolCall(id=new_id("call"), name=RUN, arguments=json.dumps(arguments))
        yield Finish(reason="tool_calls", usage=_NOTHING)

    async def _member(self, request: Request) -> tuple[str, str] | None:
        """The agent of the team whose skill fits the newest prompt best, and that skill."""
        if not any(function.name == TRANSFER for function in request.functions):
            return None
        names = Names() if self._names is None else await self._names.current()
        found: list[tuple[float, str, str]] = []
        for name, catalog in sorted(self._team().items()):
            index = await self._index_of(name, catalog)
            if (match := index.match(_newest(request), names=names)) is not None:
                found.append((match.confidence, name, match.skill))
        return max(found)[1:] if found else None

    async def knows(self, request: Request) -> bool:
        """Whether it has a runbook for the newest prompt, and may run it."""
        return _can_run(request) and await self._match(request) is not None

    async def _match(self, request: Request) -> Match | None:
        """The runbook for the newest prompt."""
        index = await self._index()
        names = Names() if self._names is None else await self._names.current()
        return index.match(_newest(request), names=names)

    async def _suggestion(self, request: Request) -> str:
        """What to ask instead: prompts of the skills that are nearest to the newest one."""
        near = (await self._index()).nearest(_newest(request))
        commands = [f"lactl prompt {self._agent} {shlex.quote(prompt)}" for prompt in near]
        return f"Did you mean {' or '.join(commands)}? {_ASK_OTHERWISE}" if near else _ASK_OTHERWISE

    async def _index(self) -> SkillIndex:
        return await self._index_of("", self._catalog())

    async def _index_of(self, name: str, catalog: SkillCatalog) -> SkillIndex:
        """An index, which agents with the same skills share."""
        for known, index in self._indexed.values():
            if known is catalog:
                return index
        # Off the event loop: it takes as long as many small turns.
        self._indexed[name] = catalog, await asyncio.to_thread(_index_of, catalog)
        return self._indexed[name][1]

    async def close(self) -> None:
        """End what collects the names; clients that share it start it anew."""
        if self._names is not None:
            await self._names.close()


@dataclass(frozen=True, kw_only=True)
class _Ran:
    """A runbook that ran as the last step of the turn, and its report."""

    skill: str
    """Empty when the call does not say it."""
    report: str


def _newest(request: Request) -> str:
    """The newest prompt, without what is attached to it: text from outside chooses no skill."""
    return next((message.question for message in reversed(request.messages) if message.role == "user"), "")


def _run_before(messages: Sequence[Message]) -> _Ran | None:
    """The run whose result is the last message, if it is one."""
    if not messages or messages[-1].role != "tool":
        return None
    result = messages[-1]
    for message in reversed(messages):
        for call in message.tool_calls:
            if call.id == result.tool_call_id:
                return (
                    _Ran(skill=_skill_in(call.arguments), report=result.content) if call.name == RUN else None
                )
    return None


def _skill_in(arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""


def _can_run(request: Request) -> bool:
    return any(function.name == RUN for function in request.functions)


def _index_of(catalog: SkillCatalog) -> SkillIndex:
    """The index of the skills that have a script, warmed up: the first match compiles expressions."""
    from lightagentd.llm.runbook.matching import SkillIndex  # 0.1 s: it reads weights, compiles patterns

    index = SkillIndex(skill for skill in catalog.skills.values() if skill.runbook)
    index.match("check disk")
    return index
