"""The part of a call for change, or with a key, that the approver signs, where systemd runs its worker.

There the worker believes no word of the daemon: a person answers at the approver, and the call goes to the
worker with the signature of that answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.asking import answer_to
from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.config.terms import TERMS, Terms
from lightagentd.events.model import current_context
from lightagentd.policy.call import PERSON, Decision, Ruling
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.approvals import granted
from lightagentd.policy.questions.inputs import Input
from lightagentd.policy.questions.question import State
from lightagentd.signed.statement import USES_KEY, Statement
from lightagentd.tool import Effect, Place
from lightagentd.worker.call import GOES_ON
from lightagentd.worker.trusted import check_trusted
from lightagentd.worker.ways import must_keep

NO_TERMS = {"confirm_within_s": 0, "check": "", "inverse": ""}


def is_answered_there(dispatcher: Dispatcher, ready: Ready) -> bool:
    """Whether people answer at the approver: all changes, also those that no worker of this machine makes, so
    that one without its signature can only be a lie.
    """
    return dispatcher.pool.source.verifies and (
        ready.effect is Effect.CHANGE or is_verified(dispatcher, ready)
    )


def is_verified(dispatcher: Dispatcher, ready: Ready) -> bool:
    """Whether the worker that runs a call looks for its signature."""
    to_change = ready.effect is Effect.CHANGE and ready.action.place in (None, Place.SERVER)
    uses_key = (ready.action.tool, ready.action.name) in USES_KEY
    return (to_change or uses_key) and dispatcher.pool.source.verifies


async def approval_of(
    dispatcher: Dispatcher,
    origin: Origin,
    ready: Ready,
    ruling: Ruling,
    terms: Terms | None,
    preview: str,
    expected: dict[str, Any],
) -> Approval:
    """A new approval of a call, which is not stored yet. Raises what `Approvals.new` and `_registered` do."""
    asked = dispatcher.asked.approvals.new(
        ready.bound(origin, terms),
        owner=origin.owner,
        trace_id=current_context().trace_id,
        call_id=ready.call_id,
        preview=preview,
        expected=expected,
        rule=ruling.rule,
        reason=f"{origin.chain}: {ruling.reason}" if origin.above is not None else ruling.reason,
        hidden=[each for each in ready.action.hidden if ready.args.get(each) is not None],
        granted=origin.approver is not None,
    )
    return await _registered(dispatcher, origin, ready, asked)


async def _registered(dispatcher: Dispatcher, origin: Origin, ready: Ready, asked: Approval) -> Approval:
    """A new approval, which the approver knows if it has to. Raises PermissionDenied for a tool of a kit
    that is not root's, WorkerUnavailable, and others of the approver.
    """
    if origin.takes_back or not is_answered_there(dispatcher, ready):
        return asked
    tool = dispatcher.toolbox(asked.agent).tools.get(asked.tool)
    kept = dispatcher.pool.own_tools.kit_for(asked.agent, ready.action.place or Effect.CHANGE)
    if tool is not None and kept and Path(tool.path).is_relative_to(kept) and is_verified(dispatcher, ready):
        # Its worker refuses it, too: nobody is asked about what cannot run.
        await asyncio.to_thread(check_trusted, Path(tool.path).parent, f"the kit's tool {tool.name}", owner=0)
    statement = Statement(
        agent=asked.agent,
        tool=asked.tool,
        action=asked.action,
        effect=asked.effect,
        args=asked.args,
        tool_sha256="" if tool is None else tool.sha256,
        call_id=asked.call_id,
        session=asked.session,
        owner=origin.worker_owner,
        trigger=origin.trigger,
        kit=kept,
        above=origin.agents_above,
        expected=asked.expected,
        **{name: getattr(asked, name) for name in TERMS},
    )
    said = {
        "preview": asked.preview,
        "rule": asked.rule,
        "reason": asked.reason,
        "trace_id": asked.trace_id,
        "chain": origin.chain,
        "tainted": origin.tainted,
        "hidden": [*asked.hidden],
    }
    digest = await dispatcher.approver.register(asked.id, statement, said, asked.expires_us)
    return replace(asked, approver=digest)


async def at_once(dispatcher: Dispatcher, origin: Origin, asked: Approval) -> Approval | None:
    """An approval that the approver grants by itself, so that nobody waits for a person; else None."""
    if not asked.approver or origin.session is None or origin.trigger != PERSON:
        return None
    return await dispatcher.approver.at_once(asked)


def on_terms(dispatcher: Dispatcher, ready: Ready, ruling: Ruling, terms: Terms | None) -> Ruling:
    """The ruling on a call on terms. A rule allows only how it says itself that a change is taken back, and
    no longer time: its worker would run nothing else without a signature.
    """
    if ruling.decision is not Decision.ALLOW or terms is None or not is_verified(dispatcher, ready):
        return ruling
    wanted = ruling.terms
    if terms == wanted or not (terms.inverse or (wanted is not None and terms.within_s > wanted.within_s)):
        return ruling
    reason = f"No rule says of {ready.name} that it is taken back like this."
    return replace(ruling, decision=Decision.ASK, rule="unsigned-change", reason=reason)


async def answered(dispatcher: Dispatcher, origin: Origin, approval: str, stream: TurnStream) -> Approval:
    """As `answer_to`, also for one that is answered at the approver."""
    questions = dispatcher.asked.approvals.questions
    async with dispatcher.approver.following(questions.find(approval)):
        found = await answer_to(questions, approval, origin, stream)
    if not found.approver or found.state is not State.GRANTED:
        return found
    return replace(found, signed=await dispatcher.approver.signature(found.id))


async def rest_signed(
    dispatcher: Dispatcher, origin: Origin, ready: Ready, ruling: Ruling, stream: TurnStream, found: Input
) -> Approval | None:
    """The used approval of a call that goes on with a person's answer, which the approver shows and signs as
    it does the call; None where its worker looks for none. Raises as `run` does for a call that waits.
    """
    if not is_verified(dispatcher, ready) or ruling.decision is Decision.ALLOW:
        return None
    approvals, facts = dispatcher.asked.approvals, rest_of(origin, found)
    preview = f"It goes on after its question: {found.question}\nwith the answer: {found.answer}\n"
    asked = await approval_of(dispatcher, origin, ready, ruling, None, preview, facts)
    answer = await at_once(dispatcher, origin, asked)
    await approvals.request(asked, *origin.asking(asked.id), changes=origin.asks(asked.id), answered=answer)
    yes = granted(await answered(dispatcher, origin, asked.id, stream))
    await approvals.use(yes.id, ready.bound(origin), ready.call_id, changes=origin.running())
    return yes


def rest_of(origin: Origin, found: Input) -> dict[str, Any]:
    """What a signature expects under which a call goes on with a person's answer."""
    question = found.question
    if origin.above is not None:
        question = question.removeprefix(f"{origin.chain}: ")
    return {GOES_ON: {"question": question, "answer": found.answer}}


def sent(
    origin: Origin,
    tool: str,
    expected: dict[str, Any],
    given: dict[str, Any],
    approval: Approval | None,
    terms: Terms | None,
) -> dict[str, Any]:
    """The fields of `worker.call.Call` that a signature is about, and those beside them."""
    return {
        "trigger": origin.trigger,
        "above": origin.agents_above,
        "takes_back": origin.takes_back,
        "terms": NO_TERMS if terms is None else terms.fields(),
        "signed": {} if approval is None else approval.signed,
        "expected": expected,
        "given": given | ({"must_keep": True} if must_keep(terms, tool) else {}),
    }
