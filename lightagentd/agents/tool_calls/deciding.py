"""What policy is told of a call, and what the history is told of the grounds of its decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.policy.decide import PolicyCall
from lightagentd.tool import Effect


def policy_call(ready: Ready, origin: Origin, *, has_change: Callable[[str], bool]) -> PolicyCall:
    """The call as policy judges it. `has_change` says whether an agent has a worker for change."""
    agent = origin.definition
    return PolicyCall(
        agent=agent.name,
        tool=ready.action.tool,
        action=ready.action.name,
        args=ready.args,
        effect=ready.effect,
        agent_effects=tuple(agent.front.effects),
        offered=agent.offers(ready.action.tool, ready.action.name),
        agent_skills=None if agent.front.skills is None else tuple(agent.front.skills),
        caller=origin.owner,
        trigger=origin.trigger,
        tainted=origin.tainted,
        host=ready.host,
        known_host=origin.knows(ready.host),
        change_enabled=has_change(agent.name),
        plan=origin.plan,
    )


def grounds(ready: Ready, origin: Origin) -> dict[str, Any]:
    """The grounds of the decision beside the call, where they differ from an ordinary prompt."""
    found: dict[str, Any] = {"tainted": True} if origin.tainted else {}
    if origin.plan:
        found["plan"] = origin.plan
    if ready.effect is Effect.REACH and ready.host:
        found |= {"host": ready.host, "known_host": origin.knows(ready.host)}
    return found
