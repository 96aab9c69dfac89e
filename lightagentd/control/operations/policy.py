"""The operations on policy: the rules and guards in force, their decisions, and the effect of other rules.

No operation changes a rule or opens a file that a caller names: rules come from policy.d alone, and callers
pass rules to be tried as text.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from lightagentd import api
from lightagentd.agents.registry import Registry
from lightagentd.agents.tool_calls.calls import parse_call
from lightagentd.agents.tool_calls.origin import host_of
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method, stream
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument, LimitExceeded
from lightagentd.events.history import History
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.call import PolicyCall, plan_gate
from lightagentd.policy.decide import Explanation
from lightagentd.policy.guards import GuardAction, LoadedGuard, On, covering
from lightagentd.policy.in_force import not_in_force
from lightagentd.policy.looking import Verdict, judge, strictest, texts_of
from lightagentd.policy.operation import Operation
from lightagentd.policy.replay import Judged, Replay
from lightagentd.policy.rulefiles import POLICY_FOLDER, load_texts
from lightagentd.policy.rules import LoadedRule

MAX_RULES_CHARS = 256 << 10
"""How much text of rules to be tried the daemon takes; they are read in its event loop."""
_PAGE = 200
"""Stored calls that are in memory at once."""
_JUDGING_CPU_S = 0.25
"""Rules to be tried that take longer on one call are not tried any further: others wait meanwhile."""
_DISPATCH, _MESSAGE = "agent.tool_dispatch", "agent.message"


class Policy(Operations, interface="org.lightagent1.Policy"):
    """The rules that say which calls run, which are asked for and which are refused. They come from policy.d
    alone: no method changes them.
    """

    def __init__(self, access: Access, registry: Registry, history: History) -> None:
        self._access, self._registry, self._history = access, registry, history
        self._shared = registry.shared

    @method("List", returns="rules")
    async def listed(self, caller: Caller) -> list[api.PolicyRule]:
        """The rules in force, in the order of their files."""
        caller = await self._access.admit(caller, Operation.INSPECT)
        return [_rule(rule) for rule in self._shared.policy.rules.rules]

    @method("Explain", returns="explanation")
    async def explain(
        self,
        caller: Caller,
        *,
        agent: str,
        tool: str,
        action: str,
        args: Any,
        trigger: str = "person",
        tainted: bool = False,
        caller_: int | None = None,
        plan: str = "",
    ) -> api.PolicyExplanation:
        """What policy would say to a call, and which rule decides. args is an object, trigger is person
        unless another is named, caller the uid that owns the session, by default that of the peer. plan is
        observe or none, what may run while a plan is drafted; without it none is. Nothing is called.
        """
        # The arguments get the defaults of the action's schema, but the tool does not check them. In a
        # tainted session the host is taken to be new.
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent)
        if not isinstance(args, dict):
            raise InvalidArgument("args must be an object.", field="args")
        if not 0 < len(trigger) <= 64 or not trigger.isprintable():
            raise InvalidArgument("trigger must be a word such as person or timer.", field="trigger")
        try:
            gate = plan_gate(plan)
        except ValueError as err:
            raise InvalidArgument("plan must be observe or none.", field="plan") from err
        self._registry.get(agent)
        definition = self._shared.content.definitions.agents[agent]
        toolbox = self._shared.content.toolbox_of(agent)
        named = toolbox.find(tool, action)
        info, args = parse_call(ToolCall(id="", name=named.function, arguments=json.dumps(args)), toolbox)
        properties = info.schema.get("properties", {})
        defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
        front = definition.front
        explained = self._shared.policy.explain(
            PolicyCall(
                agent=agent,
                tool=tool,
                action=action,
                args=defaults | args,
                effect=info.effect_of(args),
                agent_effects=tuple(front.effects),
                offered=definition.offers(tool, action),
                agent_skills=None if front.skills is None else tuple(front.skills),
                caller=caller.uid if caller_ is None else caller_,
                trigger=trigger,
                tainted=tainted,
                host=host_of(args.get(info.host)) if info.host else "",
                known_host=False,
                change_enabled=self._shared.pool.has_change(agent),
                plan=gate,
            )
        )
        stale = await not_in_force(self._shared.policy, self._shared.paths.config / POLICY_FOLDER)
        found = _explanation(explained)
        return replace(found, notes=[*found.notes, *([stale] if stale else [])])

    @method("ListGuards", returns="guards")
    async def guards(self, caller: Caller) -> list[api.PolicyGuard]:
        """The guards in force, the rules for text, in the order of their files."""
        caller = await self._access.admit(caller, Operation.INSPECT)
        return [_guard(one) for one in self._shared.policy.rules.guards]

    @method("ExplainText", returns="explanation")
    async def explain_text(
        self, caller: Caller, *, agent: str, on: str, text: str, caller_: int | None = None
    ) -> api.PolicyTextExplanation:
        """What guards would do to a text of an agent, and which. on is prompt, attachment, answer,
        tool_result, memory or event, caller the uid for whom it would be, by default that of the peer.
        Nothing is stored.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent)
        self._registry.get(agent)
        if on not in list(On):
            raise InvalidArgument(f"on must be one of {', '.join(On)}.", field="on")
        if len(text) > MAX_RULES_CHARS:
            raise InvalidArgument(f"The text is longer than {MAX_RULES_CHARS} characters.", field="text")
        owner = caller.uid if caller_ is None else caller_
        guards = covering(self._shared.policy.rules.guards, On(on), agent, owner)
        verdict = judge(guards, text, self._history.redactor)
        action = strictest(verdict)
        stale = await not_in_force(self._shared.policy, self._shared.paths.config / POLICY_FOLDER)
        return api.PolicyTextExplanation(
            action=action,
            text="" if action == GuardAction.BLOCK else verdict.text,
            hits=_hits(verdict),
            notes=[stale] if stale else [],
        )

    @stream("ReplayTexts", returns="replay", is_last=lambda replay: replay.change is None)
    async def replay_texts(
        self, caller: Caller, *, files: Any, agent: str = "", since_us: int = 0
    ) -> AsyncGenerator[api.PolicyTextReplay, None]:
        """Judge the stored prompts, answers and results that the caller may see by the guards in files, and
        stream those on which a guard would act. The last reply has no change, and the counts of all.
        """
        caller = await self._access.admit(caller, Operation.ADMINISTER)
        if agent:
            await self._access.admit(caller, Operation.INSPECT, agent=agent)
        guards, redactor = load_texts(_texts(files)).guards, self._history.redactor
        agents = await self._access.readable(caller, agent)
        wanted = Filter(agent=agent, topic=_MESSAGE, since_us=since_us, viewer=caller.viewer, agents=agents)
        judged = changed = 0
        async for event in self._events(wanted if guards else None):
            for on, text in texts_of(event):
                began_s = time.thread_time()
                verdict = judge(covering(guards, on, event.agent, event.owner), text, redactor)
                if time.thread_time() - began_s > _JUDGING_CPU_S:
                    raise _too_slow(event)
                judged += 1
                if verdict.hits:
                    changed += 1
                    change = shown(
                        api.PolicyTextChange,
                        event,
                        on=on.value,
                        action=strictest(verdict),
                        hits=_hits(verdict),
                    )
                    yield api.PolicyTextReplay(judged=judged, changed=changed, change=change)
        yield api.PolicyTextReplay(judged=judged, changed=changed, change=None)

    async def _events(self, wanted: Filter | None) -> AsyncGenerator[Event, None]:
        """The events until now, without holding others up; none for None."""
        seq, last = 1, self._history.head_seq
        while wanted is not None and (
            events := await asyncio.to_thread(self._history.queries.select, wanted, from_seq=seq, limit=_PAGE)
        ):
            for event in events:
                if event.seq > last:
                    return
                await asyncio.sleep(0)  # a replay is never more urgent than what agents do
                yield event
            seq = events[-1].seq + 1

    @stream("Replay", returns="replay", is_last=lambda replay: replay.change is None)
    async def replay(
        self, caller: Caller, *, files: Any, agent: str = "", since_us: int = 0
    ) -> AsyncGenerator[api.PolicyReplay, None]:
        """Judge the stored calls that the caller may see by the rules in files, an object of names and texts,
        and stream those whose decision would change. The last reply has no change, and the counts of all.
        """
        # Rules of a caller's own can keep the daemon's event loop busy, so it is for administrators.
        caller = await self._access.admit(caller, Operation.ADMINISTER)
        if agent:
            await self._access.admit(caller, Operation.INSPECT, agent=agent)
        agents = await self._access.readable(caller, agent)
        replay = Replay(load_texts(_texts(files)), self._shared.policy)
        wanted = Filter(agent=agent, topic=_DISPATCH, since_us=since_us, viewer=caller.viewer, agents=agents)
        judged = changed = skipped = 0
        async for event in self._events(wanted):
            began_s = time.thread_time()
            found = replay.judge(event.agent, event.owner, event.data or {})
            if time.thread_time() - began_s > _JUDGING_CPU_S:
                raise _too_slow(event)
            judged, skipped = judged + (found is not None), skipped + (found is None)
            if found is not None and found.changed:
                changed += 1
                change = policy_change(event, found)
                yield api.PolicyReplay(judged=judged, changed=changed, skipped=skipped, change=change)
        yield api.PolicyReplay(judged=judged, changed=changed, skipped=skipped, change=None)


def _texts(files: Any) -> dict[str, str]:
    """Raises InvalidArgument."""
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise InvalidArgument("files must be an object of names and texts.", field="files")
    if sum(len(name) + len(text) for name, text in files.items()) > MAX_RULES_CHARS:
        raise InvalidArgument(
            f"The files hold more than {MAX_RULES_CHARS} characters.",
            field="files",
            suggestion="Replay fewer files at once.",
        )
    return files


def _too_slow(event: Event) -> LimitExceeded:
    return LimitExceeded(
        f"These rules take more than {_JUDGING_CPU_S:g} s for the call of event {event.seq}.",
        suggestion="Write regular expressions in which only one part can match any text.",
    )


def _explanation(explained: Explanation) -> api.PolicyExplanation:
    ruling, decided = explained.ruling, explained.decided
    return shown(
        api.PolicyExplanation,
        explained,
        decision=ruling.decision.value,
        rule=decided.name if decided else ruling.rule,
        origin=decided.origin if decided else "",
        reason=ruling.reason,
        message=ruling.error.message if ruling.error else "",
        suggestion=ruling.error.suggestion if ruling.error else "",
        matched=[_rule(rule) for rule in explained.matched],
    )


def _hits(verdict: Verdict) -> list[api.PolicyGuardHit]:
    return [
        api.PolicyGuardHit(
            name=hit.guard.name,
            action=hit.guard.guard.action.value,
            origin=hit.guard.origin,
            count=len(hit.found),
            unsure=hit.unsure,
        )
        for hit in verdict.hits
    ]


def _guard(loaded: LoadedGuard) -> api.PolicyGuard:
    guard = loaded.guard
    conditions = guard.model_dump(mode="json", include={"agent", "caller"}, exclude_none=True)
    lists = {"match": [*(guard.match or ())], "pattern": [*(guard.pattern or ())]}
    return shown(api.PolicyGuard, guard, conditions=conditions, origin=loaded.origin, **lists)


def _rule(loaded: LoadedRule) -> api.PolicyRule:
    return shown(api.PolicyRule, loaded.rule, conditions=loaded.rule.conditions(), origin=loaded.origin)


def policy_change(event: Event, judged: Judged) -> api.PolicyChange:
    """A stored call that other rules decide otherwise."""
    return shown(
        api.PolicyChange,
        event,
        call_id=str((event.data or {}).get("call_id", "")),
        tool=judged.call.tool,
        action=judged.call.action,
        effect=judged.call.effect.value,
        args=judged.call.args,
        before=judged.before.value,
        before_rule=judged.before_rule,
        after=judged.after.decision.value,
        after_rule=judged.after.rule,
    )
