"""One task of a plan: the prompt of its turn, its check, and why it failed.

The check is a shell command that observes. It runs in the task's turn, after the model's answer, through the
same policy, worker and history as every call. The model did not ask for it, so it is not part of the
conversation. Nobody is asked to approve it: if policy would ask, the check fails.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd.agents.planning.plan import Plan, Task
from lightagentd.agents.tool_calls.results import Outcome, Results, cap_text
from lightagentd.agents.tool_calls.run import ToolRun
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.events.model import new_id, within
from lightagentd.events.queries import Filter, Queries
from lightagentd.llm.protocol import ToolCall
from lightagentd.quoted import Prompt, quoted
from lightagentd.redaction import Redactor
from lightagentd.tool import Effect

if TYPE_CHECKING:
    from lightagentd.agents.parts import AgentParts
    from lightagentd.agents.turn import Turn

NOTE_BYTES = 1000
"""How much a note says on why a task failed."""
STOPPED = "The daemon stopped in the middle; look at what the task did until then before you try it again."


def prompt_of(plan: Plan, task: Task) -> Prompt:
    """The prompt of a task's turn. The task is the question, and a block says the rest about it."""
    number = [one.id for one in plan.tasks].index(task.id) + 1
    lines = [
        f"This is task {task.id}, {number} of {len(plan.tasks)}, of the plan {plan.title!r}."
        " Do it, and nothing of the other tasks; then say what you did.",
    ]
    if task.check:
        lines.append(f"It is done when this command, run afterwards, ends with status 0: {task.check}")
    if task.note:
        lines.append(f"It was tried before, and failed: {task.note}")
    return Prompt(task.text).with_blocks(quoted("plan", "\n".join(lines)))


async def check(task: Task, turn: Turn, parts: AgentParts) -> str:
    """Run the check of a task at the end of its turn; gives the reason of a failure, else an empty string.

    Raises StorageError, Suspended.
    """
    args = {"command": task.check, "effect": Effect.OBSERVE.value}
    call = ToolCall(id=new_id("call"), name="bash_exec", arguments=json.dumps(args))
    assert turn.origin is not None
    origin = replace(turn.origin, own="check")
    results = Results(turn.stream, parts.history.hurry)
    with within(request_id=new_id("req")):
        try:
            outcome = await ToolRun(call, parts.dispatcher, origin, results).run()
        finally:
            await uninterrupted(results.settle())
    return _verdict(outcome)


def note(text: str, redactor: Redactor) -> str:
    """A note as it will be stored: short, and without secrets."""
    return str(redactor.value(cap_text(text, NOTE_BYTES)))


def ended_with(queries: Queries, trace_id: str) -> str:
    """Why a task's turn ended, when the plan was not told."""
    errors = queries.select(Filter(trace=trace_id, topic="agent.error"), limit=1000)
    last = next((event for event in reversed(errors) if event.data and event.type != "fallback"), None)
    if last is None or last.data is None or last.type == "interrupted":
        return STOPPED
    return str(last.data.get("message", "")) or STOPPED


def _verdict(outcome: Outcome) -> str:
    if outcome.result != "ok":
        said = outcome.text.removeprefix(f"Error ({outcome.result}): ")
        return cap_text(f"Its check could not run ({outcome.result}): {said}", NOTE_BYTES)
    if outcome.metadata.get("exit_status") == 0:
        return ""
    return cap_text(f"Its check did not pass: {outcome.text.strip()}", NOTE_BYTES)
