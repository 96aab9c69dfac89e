"""The calls of a turn whose prompt has stubs: an assessment, which changes nothing.

A call that a stub matches is judged as if a person had prompted and said yes, so that only what the agent
does not have, and what a rule denies, is refused. It runs nowhere, and its result is the stub's own. Every
other call is refused unless it observes; of the daemon's own tools only what is in _READING does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightagentd.agents.definition import SEARCH
from lightagentd.agents.tool_calls import deciding
from lightagentd.agents.tool_calls.calls import MAX_DEPTH, Ready
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.leaves import with_leave
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.signing import is_verified
from lightagentd.config.stubs import Stub
from lightagentd.errors import PolicyDenied, ToolError
from lightagentd.policy.decide import PERSON, Decision, Ruling
from lightagentd.text.strict_json import BadJson, decoded
from lightagentd.tool import Effect, Place

RULE = "stub"
NO_STUB = "no-stub"
_READING = frozenset({SEARCH, ("memory", "recall"), ("plan", "show"), ("agent", "transfer")})


def stub_of(origin: Origin, ready: Ready) -> Stub | None:
    """The stub that matches a call, by its arguments as the model wrote them or as the check left them: some
    tools write a unit's name in full.
    """
    stubs = _stubs(origin)
    if not stubs:
        return None
    tool, action = ready.action.tool, ready.action.name
    given = (ready.args, _written(ready))
    return next((one for one in stubs if any(one.matches(tool, action, args) for args in given)), None)


def _written(ready: Ready) -> dict[str, Any]:
    try:
        found = decoded(ready.call.arguments or "{}", depth=MAX_DEPTH)
    except BadJson:
        return {}
    return found if isinstance(found, dict) else {}


def result_of(stub: Stub) -> tuple[str, dict[str, Any]]:
    """The output and metadata of a call that a stub matches. Raises ToolError."""
    if stub.error is not None:
        raise ToolError(stub.error)
    return stub.output or "", {"stub": True}


def decide(dispatcher: Dispatcher, origin: Origin, ready: Ready) -> Ruling:
    """The ruling on a call, as `deciding.decide` where its turn has no stubs."""
    has_change = dispatcher.pool.has_change
    if _stubs(origin) is None or (stub_of(origin, ready) is None and _observes(dispatcher, origin, ready)):
        found = deciding.decide(dispatcher.policy, ready, origin, has_change=has_change)
        # Where its worker verifies a change, the approver has the leaves.
        return found if is_verified(dispatcher, ready) else with_leave(found, ready, origin)
    if stub_of(origin, ready) is None:
        message = f"{ready.name} has no stub in this assessment, where nothing else than observing runs."
        refused = PolicyDenied(message, suggestion="Go on without it.")
        return Ruling(decision=Decision.DENY, rule=NO_STUB, reason=message, error=refused)
    judged = deciding.policy_calls(ready, origin, has_change=has_change)
    asked = [replace(one, trigger=PERSON, change_enabled=True) for one in judged]
    found = deciding.strictest(dispatcher.policy, asked)
    return found if found.decision is Decision.DENY else Ruling(decision=Decision.ALLOW, rule=RULE)


def _observes(dispatcher: Dispatcher, origin: Origin, ready: Ready) -> bool:
    action, policy = ready.action, dispatcher.policy
    if action.place is Place.DAEMON:
        return (action.tool, action.name) in _READING
    judged = deciding.policy_calls(ready, origin, has_change=dispatcher.pool.has_change)
    return all(policy.effect_in_force(one)[0] is Effect.OBSERVE for one in judged)


def _stubs(origin: Origin) -> tuple[Stub, ...] | None:
    """Those of the call's turn, or of the nearest above it that has some; None in an ordinary turn."""
    turns = (one.turn for one in origin.line)
    return next(
        (turn.choice.stubs for turn in turns if turn is not None and turn.choice.stubs is not None), None
    )
