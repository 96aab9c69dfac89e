"""The calls of a turn whose prompt has stubs: an assessment, which changes nothing.

A call that a stub matches is judged as if a person had prompted and said yes, so that only what the agent
does not have, and what a rule denies, is refused. It runs nowhere, and its result is the stub's own. Every
other call is refused unless it observes; of the daemon's own tools only what is in _READING does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from lightagentd.agents.definition import SEARCH
from lightagentd.agents.tool_calls import calls, deciding
from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.config.stubs import Stub
from lightagentd.errors import InvalidArgument, PolicyDenied, ToolError
from lightagentd.policy.decide import PERSON, Decision, Ruling
from lightagentd.tool import Effect, Place
from lightagentd.worker.lanes import Checked

RULE = "stub"
NO_STUB = "no-stub"
_READING = frozenset({SEARCH, ("memory", "recall"), ("plan", "show"), ("agent", "transfer")})


def stub_of(origin: Origin, ready: Ready) -> Stub | None:
    """The stub that matches a call."""
    action = ready.action
    return next(
        (one for one in _stubs(origin) or () if one.matches(action.tool, action.name, ready.args)), None
    )


def result_of(stub: Stub) -> tuple[str, dict[str, Any]]:
    """The output and metadata of a call that a stub matches. Raises ToolError."""
    if stub.error is not None:
        raise ToolError(stub.error)
    return stub.output or "", {"stub": True}


def checked_here(dispatcher: Dispatcher, origin: Origin, ready: Ready) -> Checked | None:
    """As `calls.checked_here`; a change that a stub matches takes no worker, which the agent may not have.

    Raises InvalidArgument for invalid arguments of such a change.
    """
    checked = calls.checked_here(ready)
    if checked is not None or ready.effect is not Effect.CHANGE or stub_of(origin, ready) is None:
        return checked
    if dispatcher.pool.has_change(origin.agent.name):
        return None
    if ready.action.check is not None:
        try:
            ready.action.check(ready.args)
        except ValidationError as err:
            said = err.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, said["loc"]))
            raise InvalidArgument(f"{ready.action.function}: {where}: {said['msg']}.", field=where) from None
    return Checked(args=ready.args)


def decide(dispatcher: Dispatcher, origin: Origin, ready: Ready) -> Ruling:
    """The ruling on a call, as `deciding.decide` where its turn has no stubs."""
    has_change = dispatcher.pool.has_change
    if _stubs(origin) is None or (stub_of(origin, ready) is None and _observes(dispatcher, origin, ready)):
        return deciding.decide(dispatcher.policy, ready, origin, has_change=has_change)
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
