"""What policy is told of a call, and what the history is told of the grounds of its decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.policy.decide import STRICTEST_FIRST, Decision, Policy, PolicyCall, Ruling
from lightagentd.tool import Effect

HasChange = Callable[[str], bool]
"""Whether an agent has a worker for change."""


def decide(policy: Policy, ready: Ready, origin: Origin, *, has_change: HasChange) -> Ruling:
    """The strictest ruling of those for the call's agent and for each agent above it, as if it made the call:
    a child can do nothing that its parent could not do now.
    """
    found = strictest(policy, policy_calls(ready, origin, has_change=has_change))
    if origin.needs_approval and found.decision is Decision.ALLOW:
        return Ruling(decision=Decision.ASK, rule="flow", reason="The step of the flow requires an approval.")
    return found


def strictest(policy: Policy, calls: Sequence[PolicyCall]) -> Ruling:
    """The strictest ruling on a call as it is judged for each agent."""
    rulings = [policy.decide(call) for call in calls]
    return min(rulings, key=lambda ruling: STRICTEST_FIRST.index(ruling.decision))


def policy_calls(ready: Ready, origin: Origin, *, has_change: HasChange) -> list[PolicyCall]:
    """The call as policy judges it: for its own agent, then for each agent above it."""
    return [_policy_call(ready, origin, of.agent, has_change(of.agent.name)) for of in origin.line]


def _policy_call(ready: Ready, origin: Origin, agent: AgentDefinition, has_change: bool) -> PolicyCall:
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
        change_enabled=has_change,
        plan=origin.plan,
        waits=origin.can_ask,
        takes_back=bool(origin.takes_back),
    )


def grounds(ready: Ready, origin: Origin) -> dict[str, Any]:
    """The grounds of the decision beside the call, where they differ from an ordinary prompt."""
    found: dict[str, Any] = {"tainted": True} if origin.tainted else {}
    if origin.plan:
        found["plan"] = origin.plan
    if ready.effect is Effect.REACH and ready.host:
        found |= {"host": ready.host, "known_host": origin.knows(ready.host)}
    return found
