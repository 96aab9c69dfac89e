"""The operations on policy, a part of `Service`: which rules are in force, why, and what others would do.

No operation changes a rule, and none opens a file that a caller names: rules come from policy.d alone, and
those to be tried come as text.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.agents.tool_calls.calls import parse_call
from lightagentd.agents.tool_calls.origin import host_of
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations
from lightagentd.errors import InvalidArgument, LimitExceeded
from lightagentd.events.history import History
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.call import PolicyCall, plan_gate
from lightagentd.policy.replay import Judged, Replay
from lightagentd.policy.rulefiles import load_texts
from lightagentd.policy.rules import LoadedRule

if TYPE_CHECKING:
    from lightagentd.agents.registry import Registry

MAX_RULES_CHARS = 256 << 10
"""How much text of rules to be tried the daemon takes; they are read in its event loop."""
_PAGE = 200
"""Stored calls that are in memory at once."""
_JUDGING_CPU_S = 0.25
"""Rules to be tried that take longer on one call are not tried any further: others wait meanwhile."""
_DISPATCH = "agent.tool_dispatch"


class PolicyOperations(Operations):
    """List the rules, explain a decision, and replay past calls."""

    _registry: Registry
    _history: History

    async def list_rules(self, caller: Caller) -> list[api.PolicyRule]:
        """The rules of policy.d that are in force."""
        caller = await self._admit(caller, Operation.INSPECT)
        return [_rule(rule) for rule in self._registry.policy.rules.rules]

    async def explain_policy(
        self,
        caller: Caller,
        *,
        agent: str,
        tool: str,
        action: str,
        args: Any,
        trigger: str,
        tainted: bool,
        uid: int | None,
        plan: str = "",
    ) -> api.PolicyExplanation:
        """What policy would say to a call of an agent. Nothing is called, asked or stored.

        The arguments get the defaults that the action's schema names, but are not checked by the tool. In a
        tainted session the host is taken to be new.
        """
        caller = await self._admit(caller, Operation.INSPECT, agent=agent)
        if not isinstance(args, dict):
            raise InvalidArgument("args must be an object.", field="args")
        if not 0 < len(trigger) <= 64 or not trigger.isprintable():
            raise InvalidArgument("trigger must be a word such as person or timer.", field="trigger")
        try:
            gate = plan_gate(plan)
        except ValueError as err:
            raise InvalidArgument("plan must be observe or none.", field="plan") from err
        self._registry.get(agent)
        definition = self._registry.definitions.agents[agent]
        toolbox = self._registry.toolbox
        named = toolbox.find(tool, action)
        info, args = parse_call(ToolCall(id="", name=named.function, arguments=json.dumps(args)), toolbox)
        properties = info.schema.get("properties", {})
        defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
        front = definition.front
        explained = self._registry.policy.explain(
            PolicyCall(
                agent=agent,
                tool=tool,
                action=action,
                args=defaults | args,
                effect=info.effect_of(args),
                agent_effects=tuple(front.effects),
                offered=definition.offers(tool, action),
                agent_skills=None if front.skills is None else tuple(front.skills),
                caller=caller.uid if uid is None else uid,
                trigger=trigger,
                tainted=tainted,
                host=host_of(args.get(info.host)) if info.host else "",
                known_host=False,
                change_enabled=self._registry.pool.has_change(agent),
                plan=gate,
            )
        )
        ruling, decided = explained.ruling, explained.decided
        return api.PolicyExplanation(
            decision=ruling.decision.value,
            rule=decided.name if decided else ruling.rule,
            origin=decided.origin if decided else "",
            reason=ruling.reason,
            effect=explained.effect.value,
            message=ruling.error.message if ruling.error else "",
            suggestion=ruling.error.suggestion if ruling.error else "",
            matched=[_rule(rule) for rule in explained.matched],
            notes=list(explained.notes),
        )

    async def replay_policy(
        self, caller: Caller, *, files: Any, agent: str, since_us: int
    ) -> AsyncGenerator[api.PolicyReplay, None]:
        """Stored calls that the caller may see, oldest first, whose decision the rules in `files` (name to
        text) would change. The last answer has no call, and the counts of all. Raises ConfigError.

        Rules of a caller's own can keep the daemon's event loop busy, so it is for administrators.
        """
        caller = await self._admit(caller, Operation.ADMINISTER)
        if agent:
            await self._admit(caller, Operation.INSPECT, agent=agent)
        agents = await self._readable(caller, agent)
        replay = Replay(load_texts(_texts(files)), self._registry.policy)
        wanted = Filter(agent=agent, topic=_DISPATCH, since_us=since_us, viewer=caller.viewer, agents=agents)
        judged = changed = skipped = 0
        seq, last = 1, self._history.head_seq
        while events := await asyncio.to_thread(self._history.select, wanted, from_seq=seq, limit=_PAGE):
            for event in events:
                if event.seq > last:
                    break
                await asyncio.sleep(0)  # a replay is never more urgent than what agents do
                began_s = time.thread_time()
                found = replay.judge(event.agent, event.owner, event.data or {})
                if time.thread_time() - began_s > _JUDGING_CPU_S:
                    raise _too_slow(event)
                judged, skipped = judged + (found is not None), skipped + (found is None)
                if found is not None and found.changed:
                    changed += 1
                    change = _change(event, found)
                    yield api.PolicyReplay(judged=judged, changed=changed, skipped=skipped, change=change)
            seq = events[-1].seq + 1
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


def _rule(loaded: LoadedRule) -> api.PolicyRule:
    rule = loaded.rule
    return api.PolicyRule(
        name=rule.name,
        decision=rule.decision.value,
        reason=rule.reason,
        even_if_tainted=rule.even_if_tainted,
        conditions=rule.conditions(),
        origin=loaded.origin,
    )


def _change(event: Event, judged: Judged) -> api.PolicyChange:
    call = judged.call
    return api.PolicyChange(
        seq=event.seq,
        time_us=event.time_us,
        agent=event.agent,
        session=event.session,
        owner=event.owner,
        call_id=str((event.data or {}).get("call_id", "")),
        tool=call.tool,
        action=call.action,
        effect=call.effect.value,
        args=call.args,
        before=judged.before.value,
        before_rule=judged.before_rule,
        after=judged.after.decision.value,
        after_rule=judged.after.rule,
    )
