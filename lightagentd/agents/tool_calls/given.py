"""What a call of the tool `skill` is given beside its arguments, as `Context.expected`.

It gets the skills that the agent may use, and the folder of the agent's own ones. `skill.run` also gets,
where the skill's `runbook.yaml` says so, a survey of all processes, and the last snapshot of the machine's
state before the time that it asks about. The survey tells what `proc.info` and `net.connections` would, so
policy must allow both to that agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lightagentd.agents.kits.folder import SKILLS
from lightagentd.policy.decide import Decision, Policy, PolicyCall
from lightagentd.skills import Skill
from lightagentd.tool import Effect
from lightagentd.worker.pool import Pool

_TELLS = (("proc", "info"), ("net", "connections"))


async def given(
    trusted_skill: Callable[[str, str], Skill | None],
    policy: Policy,
    pool: Pool,
    snapshot_before: Callable[[str], str],
    calls: Sequence[PolicyCall],
    *,
    owner: int,
) -> dict[str, Any]:
    """`calls` are the call as it is judged for its agent, and for each agent above it. `trusted_skill`
    gives a skill of an agent by its name if nobody but root and the daemon's user can write it; `owner` is
    on whose behalf the call runs.
    """
    call = calls[0]
    if call.tool != "skill":
        return {}
    skills = [set(one.agent_skills) for one in calls if one.agent_skills is not None]
    found: dict[str, Any] = {"skills": sorted(set.intersection(*skills))} if skills else {}
    if kit := pool.own_tools.kits.get(call.agent):
        found["own_skills"] = f"{kit}/{SKILLS}"
    skill = trusted_skill(call.agent, str(call.args.get("name", "")))
    if call.action != "run" or call.effect is Effect.CHANGE or skill is None:
        return found
    if skill.sees and all(_may(one, policy, tool, action) for one in calls for tool, action in _TELLS):
        found["survey"] = await pool.survey(owner, files=skill.sees == "files")
    if skill.compares:
        args = call.args.get("args")
        since = args.get("since") if isinstance(args, dict) else None
        found["snapshot"] = snapshot_before(since if isinstance(since, str) else "yesterday")
    return found


def _may(call: PolicyCall, policy: Policy, tool: str, action: str) -> bool:
    asked = replace(call, tool=tool, action=action, args={}, effect=Effect.OBSERVE, offered=True, host="")
    return policy.decide(asked).decision is Decision.ALLOW
