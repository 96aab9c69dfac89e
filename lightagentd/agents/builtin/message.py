"""The built-in tool `message`: writes to other agents' sessions of the same owner (`agents.team.mail`).

`send` is offered where there is an agent to write to, `parent` in child sessions.
"""

from __future__ import annotations

from pydantic import Field

from lightagentd.agents.builtin.running import BuiltinContext, builtin_action
from lightagentd.agents.team.mail import PARENT, Mail
from lightagentd.tool import Args, Result, Tool

TEXT_CHARS = 16 << 10


class ParentArgs(Args):
    """The arguments of `message.parent`."""

    text: str = Field(min_length=1, max_length=TEXT_CHARS)


class SendArgs(ParentArgs):
    """The arguments of `message.send`."""

    to: str = Field(min_length=1, max_length=100, description="An agent, or the id of a session.")


class MessageTool(Tool):
    """Messages to other agents of the same user."""

    name = "message"

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    @builtin_action()
    async def send(self, ctx: BuiltinContext, args: SendArgs) -> Result:
        """Write to another agent that the user talks with, without waiting for an answer. It reads the
        message at its next step, or begins to work with it.
        """
        return await self._send(ctx, args.to, args.text)

    @builtin_action()
    async def parent(self, ctx: BuiltinContext, args: ParentArgs) -> Result:
        """Write into the conversation for which you work, if it has to know something."""
        return await self._send(ctx, PARENT, args.text)

    async def _send(self, ctx: BuiltinContext, to: str, text: str) -> Result:
        letter = await self._mail.send(ctx.origin, to, text)
        return Result(output="It is sent.", metadata={"message": letter.id, "session": letter.session})
