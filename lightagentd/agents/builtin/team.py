"""The built-in tool `agent`: asks other agents, each in a child session (`agents.team.children`).

It is offered where there is an agent to ask. What another agent answers is data. Children end with the turn
that made them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from pydantic import Field

from lightagentd.agents.builtin.running import NO_TIME_LIMIT_S, BuiltinContext, builtin_action
from lightagentd.agents.team.children import Children
from lightagentd.agents.turn import Child, Join
from lightagentd.api.turn_events import Notice
from lightagentd.errors import ChildFailed, Refused
from lightagentd.tool import Args, Result, Tool

TEXT_CHARS = 256 << 10
_ID = Annotated[str, Field(min_length=1, max_length=60)]


class AskArgs(Args):
    """The arguments of `agent.ask` and `agent.start`."""

    agent: str = Field(min_length=1, max_length=60, description="The name of the agent.")
    text: str = Field(
        min_length=1,
        max_length=TEXT_CHARS,
        description="What it shall do or find out, with all that it must know for that.",
    )
    context: Literal["empty", "forked"] = Field(
        default="empty", description="forked: it also gets this conversation; empty: the text alone."
    )


class WaitArgs(Args):
    """The arguments of `agent.wait`."""

    ids: list[_ID] = Field(default=[], max_length=1000, description="The children; all when left out.")


class MessageArgs(Args):
    """The arguments of `agent.message`."""

    id: _ID = Field(description="The child, as agent_start named it.")
    text: str = Field(min_length=1, max_length=TEXT_CHARS)


class StopArgs(Args):
    """The arguments of `agent.stop`."""

    id: _ID = Field(description="The child, as agent_start named it.")


class TransferArgs(Args):
    """The arguments of `agent.transfer`."""

    agent: str = Field(min_length=1, max_length=100, description="The agent that goes on from here.")
    note: str = Field(default="", max_length=4000, description="What it should know, and why it is the one.")


class AgentTool(Tool):
    """Other agents of this machine, which work for you."""

    name = "agent"

    def __init__(self, children: Children) -> None:
        self._children = children

    @builtin_action(timeout_s=NO_TIME_LIMIT_S)
    async def ask(self, ctx: BuiltinContext, args: AskArgs) -> Result:
        """Ask another agent and wait for its answer. It can do nothing that you may not do."""
        [child] = await joined(self._children, ctx, lambda: self._begin(ctx, args))
        answer = await self._children.answer(child)
        return Result(output=answer, metadata={"agent": args.agent, "session": child.session.id})

    @builtin_action(timeout_s=NO_TIME_LIMIT_S)
    async def start(self, ctx: BuiltinContext, args: AskArgs) -> Result:
        """Ask another agent without waiting. Gives the child's id; agent_wait gives the answer. It ends with
        your turn.
        """
        [child] = await self._begin(ctx, args)
        about = {"agent": args.agent, "session": child.session.id}
        return Result(output=f"{child.session.id} is at it.", metadata=about)

    @builtin_action(timeout_s=NO_TIME_LIMIT_S)
    async def wait(self, ctx: BuiltinContext, args: WaitArgs) -> Result:
        """Wait for the answers of agents that you started."""
        turn = ctx.origin.turn
        ids = args.ids or [*(turn.children if turn is not None else ())]

        async def named() -> list[Child]:
            return [self._children.child(ctx.origin, one) for one in dict.fromkeys(ids)]

        children = await joined(self._children, ctx, named)
        found = [await self._told(child) for child in children]
        states = {child.session.id: ok for child, (ok, _) in zip(children, found, strict=True)}
        return Result(output="\n\n".join(text for _, text in found), metadata={"answered": states})

    @builtin_action()
    async def message(self, ctx: BuiltinContext, args: MessageArgs) -> Result:
        """Tell an agent that you started something more; it reads it when it has answered what came before.
        agent_wait gives the answer.
        """
        check_turn(ctx)
        child = self._children.child(ctx.origin, args.id)
        await self._children.prompt(ctx.origin, child, args.text)
        return Result(output=f"{args.id} gets it.", metadata={"session": args.id})

    @builtin_action(timeout_s=NO_TIME_LIMIT_S)
    async def stop(self, ctx: BuiltinContext, args: StopArgs) -> Result:
        """Stop an agent that you started. What it has done until then stays done."""
        check_turn(ctx)
        await self._children.stop(self._children.child(ctx.origin, args.id))
        return Result(output=f"{args.id} has stopped.", metadata={"session": args.id})

    @builtin_action()
    async def transfer(self, ctx: BuiltinContext, args: TransferArgs) -> Result:
        """Hand this conversation over to another agent, which goes on with the user's request and gets later
        prompts, too, until it hands it back.
        """
        check_turn(ctx)
        assert ctx.origin.session is not None
        agent = await self._children.transfer(ctx.origin.session, args.agent, args.note)
        ctx.stream.emit(Notice(code="transferred", message=f"{agent.name} has the conversation now."))
        note = f"\n{args.note}" if args.note else ""
        return Result(output=f"{agent.name} has the conversation now.{note}", metadata={"agent": agent.name})

    async def _begin(self, ctx: BuiltinContext, args: AskArgs) -> list[Child]:
        check_turn(ctx)
        forked = args.context == "forked"
        return [await self._children.make(ctx.origin, ctx.call_id, args.agent, args.text, forked=forked)]

    async def _told(self, child: Child) -> tuple[bool, str]:
        """Whether a child answered, and what it said, under its id."""
        head = f"{child.session.id} ({child.session.record.agent})"
        try:
            return True, f"{head} answered:\n{await self._children.answer(child)}"
        except ChildFailed as err:
            return False, f"{head}: {err.message}"


async def joined(
    service: Children, ctx: BuiltinContext, children: Callable[[], Awaitable[list[Child]]]
) -> list[Child]:
    """Wait for children that `children` makes or finds. Raises as that does, and as `Children.join`."""
    check_turn(ctx)
    join = Join(call_id=ctx.call_id, model_call=ctx.model_call)
    return await service.join(ctx.origin, join, children, ctx.in_order)


def check_turn(ctx: BuiltinContext) -> None:
    """Raises Refused for a call that belongs to no turn."""
    if ctx.origin.turn is None:
        raise Refused(
            "An agent asks others in the middle of a turn, and this call belongs to none.",
            suggestion=f"Prompt the agent itself: lactl prompt {ctx.agent}",
        )
