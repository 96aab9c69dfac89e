"""The action `skill.activate` of the tool `skill`, whose others are in its file: has a skill work in a
context of its own.

That is a child session with the same agent (`agents.team.children`), whose system prompt ends with the
skill's text. It has that skill alone, and of the agent's tools those that the skill's `allowed-tools` names;
nothing that the agent does not have. Its answer is data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from lightagentd.agents.builtin.running import NO_TIME_LIMIT_S, BuiltinContext, builtin_action
from lightagentd.agents.builtin.team import TEXT_CHARS, joined
from lightagentd.agents.choosing import Choice
from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.team.children import Children
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.turn import Child
from lightagentd.errors import SkillNotFound
from lightagentd.skills import Skill, SkillCatalog
from lightagentd.tool import Args, Result, Tool

_OWN = ("skill.run", "skill.load")
"""What a skill always has: its scripts and its files."""


class ActivateArgs(Args):
    """The arguments of `skill.activate`."""

    name: str = Field(min_length=1, max_length=64, description="The skill.")
    task: str = Field(
        min_length=1, max_length=TEXT_CHARS, description="What it shall do, with all that it must know."
    )
    context: Literal["", "empty", "forked"] = Field(
        default="", description="forked: it also gets this conversation. Left out, the skill says it."
    )


class SkillTool(Tool):
    """Skills in a context of their own."""

    name = "skill"

    def __init__(
        self,
        children: Children,
        catalog: Callable[[AgentDefinition], Callable[[], SkillCatalog]],
        toolbox: Callable[[str], Toolbox],
    ) -> None:
        """`catalog` gives the skills of an agent, `toolbox` its tools."""
        self._children, self._catalog, self._toolbox = children, catalog, toolbox

    @builtin_action(timeout_s=NO_TIME_LIMIT_S)
    async def activate(self, ctx: BuiltinContext, args: ActivateArgs) -> Result:
        """Have one of your skills do a task aside, by its instructions and in a context of its own, and wait
        for its answer.
        """
        agent = ctx.origin.agent
        skills = self._catalog(agent)().skills
        if (skill := skills.get(args.name)) is None:
            names = ", ".join(sorted(skills)[:50]) or "none"
            raise SkillNotFound(
                f"The agent {agent.name} has no skill {args.name!r}.",
                suggestion=f"It has: {names}.",
                field="name",
            )
        forked = args.context == "forked" or (not args.context and skill.front.context == "fork")
        choice = Choice(
            skills=(skill.name,),
            tools=_allowed(skill, agent, self._toolbox(agent.name)),
            system=f"# You work by this skill alone: {skill.name}\n\n{skill.body}",
        )

        async def made() -> list[Child]:
            about = ctx.origin, ctx.call_id, agent.name, args.task
            return [await self._children.make(*about, forked=forked, choice=choice)]

        [child] = await joined(self._children, ctx, made)
        answer = await self._children.answer(child)
        return Result(output=answer, metadata={"skill": skill.name, "session": child.session.id})


def _allowed(skill: Skill, agent: AgentDefinition, toolbox: Toolbox) -> tuple[str, ...] | None:
    """The tools of the agent that the skill names, in any case of letters, and its own; None for all that the
    agent has. What stands in parentheses behind a name narrows nothing further.
    """
    if not skill.front.allowed_tools:
        return None
    words = skill.front.allowed_tools.replace(",", " ").split()
    named = {word.partition("(")[0].lower().replace("_", ".", 1) for word in words}
    found = [
        f"{action.tool}.{action.name}"
        for action in toolbox.functions.values()
        if agent.offers(action.tool, action.name)
        if named & {action.tool, f"{action.tool}.{action.name}"} or f"{action.tool}.{action.name}" in _OWN
    ]
    return tuple(found)
