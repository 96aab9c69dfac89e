"""How tools, skills and events of the daemon's inside are shown to callers, as types of `api`."""

from __future__ import annotations

from lightagentd import api
from lightagentd.agents.tool_calls.toolbox import ToolInfo
from lightagentd.events.model import Event
from lightagentd.skills import Skill


def stored_event(event: Event) -> api.StoredEvent:
    return api.StoredEvent(**event.to_dict())


def tool_info(tool: ToolInfo) -> api.Tool:
    return api.Tool(
        name=tool.name,
        description=tool.description,
        origin=tool.path,
        problem=tool.problem,
        actions=[
            api.Action(
                name=action.name,
                description=action.description,
                effect=action.effect.value if action.effect else "",
                taints=action.taints,
                timeout_s=action.timeout_s,
                schema=action.schema,
            )
            for action in tool.actions
        ],
    )


def skill_info(skill: Skill, *, body: str) -> api.Skill:
    return api.Skill(
        name=skill.name,
        description=skill.description,
        prompts=list(skill.prompts),
        args=list(skill.args),
        effect=skill.effect,
        runbook=skill.runbook is not None,
        origin=str(skill.folder),
        problem="",
        body=body,
    )


def broken_skill_info(name: str, why: str) -> api.Skill:
    return api.Skill(
        name=name,
        description="",
        prompts=[],
        args=[],
        effect="",
        runbook=False,
        origin="",
        problem=why,
        body="",
    )
