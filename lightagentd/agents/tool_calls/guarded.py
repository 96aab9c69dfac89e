"""Has guards look at the result of a call before the model, the history and the watchers get it.

A call whose result is blocked, or that a person does not let through, has run all the same: it ends with an
error that says so. The question to the person does not survive a restart, since the result is nowhere stored:
the call then ends with an error, and is not run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any

from lightagentd.agents.guard_stages import OutputGuard
from lightagentd.agents.guarding import acted, blocked
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.asking import ask
from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.errors import LightagentError, PolicyDenied, StorageError
from lightagentd.policy.guards import GuardAction, Guards, LoadedGuard, On, covering
from lightagentd.policy.looking import judge
from lightagentd.policy.questions.question import State
from lightagentd.redaction import Redactor

_YES, _NO = "yes", "no"


async def guarded(
    run: Awaitable[tuple[str, dict[str, Any]]],
    dispatcher: Dispatcher,
    origin: Origin,
    ready: Ready,
    stream: TurnStream,
) -> tuple[str, dict[str, Any]]:
    """The output and the metadata of a call, as they may be seen. Raises PolicyDenied, the errors of the
    call and of `ask`, and StorageError.
    """
    guards = dispatcher.policy.rules.guards
    found = covering(guards, On.TOOL_RESULT, origin.agent.name, origin.owner) if guards else ()
    if not found:
        return await run
    stream.output_guard = stream.output_guard or OutputGuard(found)
    try:
        output, metadata = await run
    except StorageError:
        raise
    except LightagentError as err:  # a tool says in it what it likes
        err.message, _ = await _seen(found, err.message, {}, dispatcher, origin, ready, stream)
        raise
    return await _seen(found, output, metadata, dispatcher, origin, ready, stream)


async def _seen(
    guards: Guards,
    output: str,
    metadata: dict[str, Any],
    dispatcher: Dispatcher,
    origin: Origin,
    ready: Ready,
    stream: TurnStream,
) -> tuple[str, dict[str, Any]]:
    history = dispatcher.history
    verdict = judge(guards, output, history.redactor)
    beside = judge(guards, "\n".join(_texts(metadata)), history.redactor)
    events = acted(On.TOOL_RESULT, verdict) + acted(On.TOOL_RESULT, beside)
    if not events:
        return output, metadata
    await history.append(*events)
    for one in (verdict, beside):
        if (guard := one.first(GuardAction.BLOCK)) is not None:
            raise blocked(On.TOOL_RESULT, guard)
    asks = verdict.first(GuardAction.ASK) or beside.first(GuardAction.ASK)
    if asks is not None:
        await _ask(asks, dispatcher, origin, ready, stream)
    return verdict.text, _clean(guards, metadata, history.redactor) if beside.hits else metadata


async def _ask(
    guard: LoadedGuard, dispatcher: Dispatcher, origin: Origin, ready: Ready, stream: TurnStream
) -> None:
    """Ask the person whose session it is. Raises PolicyDenied for another answer than yes."""
    if origin.turn is not None and origin.turn.at_work > 1:  # one question at a time
        raise blocked(On.TOOL_RESULT, guard)
    reason = f" {guard.guard.reason}" if guard.guard.reason else ""
    found = await ask(
        dispatcher.asked.inputs,
        origin,
        stream,
        ready.name,
        call_id=ready.call_id,
        question=f"The guard {guard.label} found something in the result of {ready.name}.{reason}"
        " May the model read it?",
        choices=[_YES, _NO],
        timeout_s=None,
    )
    if found.state is not State.ANSWERED or found.answer != _YES:
        raise PolicyDenied(
            f"The call ran, and its result stays closed: the guard {guard.label} asked, and nobody said yes.",
            suggestion="Go on without it.",
        )


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _clean(guards: Guards, value: Any, redactor: Redactor) -> Any:
    """The same JSON value with its texts redacted."""
    if isinstance(value, str):
        return judge(guards, value, redactor).text
    if isinstance(value, dict):
        return {_clean(guards, key, redactor): _clean(guards, item, redactor) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(guards, item, redactor) for item in value]
    return value
