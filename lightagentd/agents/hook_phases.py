"""What hooks are given in each phase of a turn, and what becomes of what they replace (see `hooks`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lightagentd.agents.hooks import Hooks
from lightagentd.agents.model_calls.call import Reply, store_failed
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.results import error_text
from lightagentd.errors import HookBlocked, LightagentError
from lightagentd.events.model import current_context, new_id
from lightagentd.llm.protocol import Message, Request, ToolCall
from lightagentd.memory.entries import Entry
from lightagentd.memory.wanted import Wanted
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.flows.records import RunRecord
    from lightagentd.agents.turn import Turn


def about(agent: str, **more: Any) -> dict[str, Any]:
    """What each payload has: agent, session, owner (a uid), trace_id."""
    context = current_context()
    known = {"session": context.session, "owner": context.owner, "trace_id": context.trace_id}
    return {"agent": agent, **known, **more}


async def before_turn(hooks: Hooks, agent: str, turn: Turn) -> None:
    """`before_turn` of a new turn, whose prompt it may replace; `on_resume` of one that goes on. Raises
    HookBlocked.
    """
    how = {"trigger": turn.trigger, "unattended": turn.unattended}
    if turn.resumed is not None:
        if hooks.has("on_resume", agent):
            await hooks.ask("on_resume", agent, about(agent, **how, what="turn", waits_for=turn.waits_for))
        return
    if not hooks.has("before_turn", agent):
        return
    found = await hooks.ask("before_turn", agent, about(agent, **how, prompt=turn.prompt.text))
    if found["prompt"] != turn.prompt.text:
        turn.prompt = Prompt(found["prompt"])


async def after_turn(hooks: Hooks, agent: str, turn: Turn, failure: LightagentError | None) -> None:
    """Tell the hooks that a turn ended."""
    if hooks.has("after_turn", agent):
        code = failure.code if failure is not None else ""
        said = about(agent, prompt=turn.prompt.text, answer=turn.answer, error=code, **turn.figures)
        await hooks.tell("after_turn", agent, said)


async def before_request(hooks: Hooks, agent: str, model: str, request: Request) -> Request:
    """The request to make. Raises HookBlocked."""
    if not hooks.has("before_model_request", agent):
        return request
    messages = [one.to_dict() for one in request.messages]
    names = [one.name for one in request.functions]
    payload = about(agent, model=model, system=request.system, messages=messages, functions=names)
    found = await hooks.ask("before_model_request", agent, payload)
    if found is payload:
        return request
    try:
        read = tuple(Message.from_dict(one) for one in found["messages"])
    except (KeyError, TypeError) as err:
        raise HookBlocked(f"A hook replaced the messages by some that cannot be read: {err}.") from err
    return replace(request, system=found["system"], messages=read)


async def after_response(hooks: Hooks, agent: str, reply: Reply, meter: Meter) -> Reply:
    """The reply to go on with. One that is blocked is counted all the same. Raises HookBlocked."""
    if not hooks.has("after_model_response", agent):
        return reply
    calls = [one.to_dict() for one in reply.calls]
    payload = about(agent, model=reply.model, text=reply.text, calls=calls, finish=reply.finish.reason)
    try:
        found = await hooks.ask("after_model_response", agent, payload)
        if found is payload:
            return reply
        return replace(reply, text=found["text"], calls=_calls(found["calls"]))
    except HookBlocked:
        store_failed(reply, meter)
        raise


def _calls(said: list[Any]) -> tuple[ToolCall, ...]:
    """Raises HookBlocked."""
    try:
        found = tuple(ToolCall(**{"id": new_id("call"), **one}) for one in said)
    except TypeError:
        found = ()
    texts = [text for one in found for text in one.to_dict().values()]
    if len(found) != len(said) or not all(isinstance(text, str) for text in texts):
        raise HookBlocked("A hook replaced the calls by some that cannot be read: {id, name, arguments}.")
    return found


class HookedCall:
    """The hooks around one tool call."""

    def __init__(self, hooks: Hooks, origin: Origin) -> None:
        self._hooks, self._origin = hooks, origin
        self._found: dict[str, Any] | HookBlocked | None = None
        """The arguments that hooks left it, or why they block it; None until they were asked."""

    @cached_property
    def _agent(self) -> str:
        """Whose call it is. Kept, since `Origin.agent` is made anew each time, which takes a while."""
        return self._origin.agent.name

    def _has(self, phase: str) -> bool:
        return self._hooks.has(phase, self._agent)

    async def before(self, ready: Ready) -> dict[str, Any]:
        """The arguments to go on with, which are those of `ready` if nothing is replaced; a call may be
        checked several times, and hooks are asked once. Raises HookBlocked.
        """
        if not self._has("before_tool_call"):
            return ready.args
        if self._found is None:
            try:
                self._found = await self._before(ready)
            except HookBlocked as err:
                self._found = err
        if isinstance(self._found, HookBlocked):
            raise self._found
        return ready.args if self._found == ready.args else self._found

    async def _before(self, ready: Ready) -> dict[str, Any]:
        payload = self._about(ready)
        found = await self._hooks.ask("before_tool_call", self._agent, payload)
        if found is payload:
            return ready.args
        hidden = {name: ready.args[name] for name in ready.action.hidden if name in ready.args}
        for name in hidden:
            if found["args"].get(name) != payload["args"].get(name):
                raise HookBlocked(f"A hook replaced {name}, which is for the tool alone.")
        return {**found["args"], **hidden}

    async def on_approval(self, ready: Ready, **more: Any) -> None:
        """Raises HookBlocked when no person is to be asked about the call."""
        if self._has("on_approval_required"):
            payload = self._about(ready, **more)
            await self._hooks.ask("on_approval_required", self._agent, payload)

    @property
    def hears_results(self) -> bool:
        return self._has("after_tool_result")

    async def after(
        self, ready: Ready, result: str, text: str, metadata: dict[str, Any]
    ) -> tuple[str, str, dict[str, Any]]:
        """The result to go on with. The call has run, so one that is blocked is kept back."""
        payload = self._about(ready, result=result, text=text, metadata=metadata)
        try:
            found = await self._hooks.ask("after_tool_result", self._agent, payload)
        except HookBlocked as err:
            err = HookBlocked(f"The call ran, and its result is kept back. {err.message}")
            return err.code, error_text(err), {}
        return result, found["text"], metadata

    def _about(self, ready: Ready, **more: Any) -> dict[str, Any]:
        """The payload about a call; arguments that are for the tool alone are not in it."""
        said = ready.what | {"call_id": ready.call_id, "trigger": self._origin.trigger}
        return about(self._agent, **said, tainted=self._origin.tainted, **more)


async def before_step(hooks: Hooks, payload: dict[str, Any]) -> None:
    """Raises HookBlocked for a step of a flow that is not to run."""
    if hooks.has("before_flow_step", payload["agent"]):
        await hooks.ask("before_flow_step", payload["agent"], payload)


async def after_step(hooks: Hooks, payload: dict[str, Any], output: str) -> str:
    """The output of a step to go on with. Raises HookBlocked."""
    if not hooks.has("after_flow_step", payload["agent"]):
        return output
    found = await hooks.ask("after_flow_step", payload["agent"], payload | {"output": output})
    said: str = found["output"]
    return said


async def before_again(hooks: Hooks, phase: str, run: RunRecord, **more: Any) -> None:
    """`on_resume` and `on_rerun` of a run of a flow. Raises HookBlocked."""
    if hooks.has(phase, run.agent):
        said = _about_run(run) | {"agent": run.agent, "what": "flow", **more}
        await hooks.ask(phase, run.agent, said)


def about_step(run: RunRecord, agent: str, step: str, kind: str) -> dict[str, Any]:
    """What hooks are told of a step."""
    return _about_run(run) | {"agent": agent, "step": step, "kind": kind}


def _about_run(run: RunRecord) -> dict[str, Any]:
    known = {"session": run.session, "owner": run.owner, "trace_id": ""}
    return known | {"run": run.id, "flow": run.flow, "inputs": {**run.inputs}}


class MemoryHooks:
    """The hooks and guards around a write of a memory (`Memories.around`)."""

    def __init__(self, hooks: Hooks, guard: Callable[[Wanted], Awaitable[Wanted]]) -> None:
        self._hooks, self._guard = hooks, guard

    async def before(self, wanted: Wanted) -> Wanted:
        """What to remember. Raises HookBlocked, PolicyDenied."""
        return await self._guard(await self._before(wanted))

    async def _before(self, wanted: Wanted) -> Wanted:
        agent = wanted.maker or wanted.agent or current_context().agent
        if not self._hooks.has("before_memory_write", agent):
            return wanted
        payload = about(
            agent, text=wanted.text, tags=[*wanted.tags], by_agent=wanted.by_agent, candidate=wanted.candidate
        )
        found = await self._hooks.ask("before_memory_write", agent, payload)
        return wanted if found is payload else replace(wanted, text=found["text"], tags=found["tags"])

    async def after(self, entry: Entry) -> None:
        """Tell of what was written."""
        agent = entry.from_agent or entry.agent or current_context().agent
        if self._hooks.has("after_memory_write", agent):
            said = about(agent, id=entry.id, state=entry.state, text=entry.text, tags=[*entry.tags])
            await self._hooks.tell("after_memory_write", agent, said)
