"""The section of the system prompt about a session's plan, while it is drafted or applied."""

from __future__ import annotations

import json

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.planning.plan import DRAFTING, Plan
from lightagentd.agents.planning.proposal import MAX_TASKS

SHAPE = '{"title": "...", "tasks": [{"id": "1", "text": "...", "check": "..."}]}'
_LINE_CHARS = 200
"""How much each turn is told of each of up to MAX_TASKS tasks, which may be long."""


def plan_section(plan: Plan | None, agent: AgentDefinition) -> str:
    """The section of the prompt; empty where no plan is drafted or applied."""
    if plan is None or plan.phase == "completed":
        return ""
    if plan.phase in DRAFTING:
        return _drafting(plan, agent)
    states = "\n".join(
        f"- {task.id} ({task.state}): {task.text.splitlines()[0][:_LINE_CHARS]}" for task in plan.tasks
    )
    return f"# The plan {plan.title!r} is being applied, one task after the other\n\n{states}"


def _drafting(plan: Plan, agent: AgentDefinition) -> str:
    calls = agent.front.plan_tools != "none"
    may = "Only calls that observe run" if calls else "No call runs"
    look = " Look at the machine as far as the plan needs it." if calls else ""
    if calls and agent.offers("plan", "propose"):
        how = f"call plan_propose with a title and tasks, as in {SHAPE}"
    else:
        how = f"answer with exactly one JSON object and nothing else: {SHAPE}"
    parts = [
        "# Plan mode",
        f"You and your user draft a plan. {may} until they apply it: do not try to change anything, and do"
        f" not ask whether to begin.{look} When you know what is to be done, {how}. Do the same to revise"
        " the plan.",
        "Later each task is a turn of its own, one after the other, in which you do what its text says; so"
        " the text says all that it takes. The check may be left out: it is a shell command that only reads"
        " the state of this machine, and ends with status 0 when the task is done. A plan has at most"
        f" {MAX_TASKS} tasks.",
    ]
    if plan.tasks:
        tasks = [{"id": task.id, "text": task.text, "check": task.check} for task in plan.tasks]
        now = json.dumps({"title": plan.title, "tasks": tasks}, ensure_ascii=False)
        parts.append(f"The plan as it is now: {now}")
    if plan.problem:
        parts.append(plan.problem)
    return "\n\n".join(parts)
