"""Applies the guards of policy.d where text comes in, goes out, or is kept, and records what they did.

Each decision is an event (`GuardActed`) without the text. Where no guard is about a text, nothing is made for
it: callers ask `Policy.rules.guards` first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.guard_stages import AnswerGuard, instead
from lightagentd.errors import PolicyDenied
from lightagentd.events.history import History, NewEvent
from lightagentd.events.types.policy import GuardActed
from lightagentd.llm.protocol import ToolCall
from lightagentd.memory.wanted import Wanted
from lightagentd.policy.decide import Policy
from lightagentd.policy.guards import GuardAction, LoadedGuard, On, covering
from lightagentd.policy.looking import Verdict, judge
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.model_calls.call import Reply
    from lightagentd.agents.parts import AgentParts, SharedParts
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.turn import Asked

_NOUNS = {
    On.PROMPT: "prompt",
    On.ATTACHMENT: "attachment",
    On.TOOL_RESULT: "result",
    On.MEMORY: "memory",
    On.EVENT: "event",
}


def acted(on: On, verdict: Verdict) -> list[NewEvent]:
    """The events that tell what guards did."""
    events = []
    for hit in verdict.hits:
        action = hit.guard.guard.action
        more: dict[str, Any] = {"unsure": True} if hit.unsure else {}
        if action is GuardAction.TAG:
            more["tag"] = hit.guard.tag
        count, label = len(hit.found), hit.guard.label
        told = GuardActed(
            guard=label, on=on.value, action=action.value, count=count, sha256=verdict.sha256, **more
        )
        events.append(told.event())
    return events


def blocked(on: On, guard: LoadedGuard) -> PolicyDenied:
    """The error for a text that may not go on."""
    reason = f": {guard.guard.reason}" if guard.guard.reason else "."
    return PolicyDenied(
        f"The guard {guard.label} blocks this {_NOUNS[on]}{reason}",
        suggestion=f"See what it looks for: lactl policy guards, and {guard.origin}.",
        field="text" if on is On.PROMPT else "attachments" if on is On.ATTACHMENT else "",
    )


async def guard_prompt(shared: SharedParts, session: Session, asked: Asked, prompt: Prompt) -> Prompt:
    """A prompt, with its attachments, or an event, as the agent may get it. Raises PolicyDenied, and
    StorageError.
    """
    policy, history, record = shared.policy, shared.history, session.record
    first, rest = (On.EVENT,) * 2 if asked.trigger or asked.aside else (On.PROMPT, On.ATTACHMENT)
    texts = [(first, prompt.question), (rest, prompt.text[len(prompt.question) :])]
    seen: list[str] = []
    for on, text in texts:
        guards = covering(policy.rules.guards, on, record.agent, record.owner) if text else ()
        verdict = judge(guards, text, history.redactor) if guards else Verdict(text=text)
        if verdict.hits:
            with session.context():
                await history.append(*acted(on, verdict))
            if (guard := verdict.first(GuardAction.BLOCK)) is not None:
                raise blocked(on, guard)
        seen.append(verdict.text)
    text = "".join(seen)
    if text == prompt.text:
        return prompt
    return Prompt(text, len(seen[0]) if prompt.question_chars else 0)


def answer_guard(parts: AgentParts, session: Session) -> AnswerGuard | None:
    """What the next answer of an agent in a session goes through; None where no guard is about it."""
    guards = parts.shared.policy.rules.guards
    found = covering(guards, On.ANSWER, parts.definition.name, session.record.owner) if guards else ()
    return AnswerGuard(found, parts.shared.history.redactor) if found else None


async def guard_reply(
    guard: AnswerGuard, history: History, reply: Reply, native: tuple[ToolCall, ...]
) -> Reply:
    """A model's reply as it is stored. Of a blocked one only the `native` calls stay, which policy judges.
    Raises StorageError.
    """
    reasoning = tuple(block for block in reply.reasoning if guard.whole(block.text) == block.text)
    verdict = judge(guard.guards, reply.text, history.redactor)
    if verdict.hits:
        await history.append(*acted(On.ANSWER, verdict))
    blocks = verdict.first(GuardAction.BLOCK)
    if blocks is not None:
        return replace(reply, text=instead(blocks), calls=native, reasoning=())
    return replace(reply, text=verdict.text, reasoning=reasoning)


async def guard_memory(policy: Policy, history: History, wanted: Wanted) -> Wanted:
    """A memory as it may be kept. Raises PolicyDenied, and StorageError."""
    guards = policy.rules.guards
    found = covering(guards, On.MEMORY, wanted.maker or wanted.agent, wanted.owner) if guards else ()
    verdict = judge(found, wanted.text, history.redactor) if found else Verdict(text=wanted.text)
    if verdict.hits:
        await history.append(*acted(On.MEMORY, verdict))
        if (guard := verdict.first(GuardAction.BLOCK)) is not None:
            raise blocked(On.MEMORY, guard)
    return wanted if verdict.text == wanted.text else replace(wanted, text=verdict.text)
