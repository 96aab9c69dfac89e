"""A tool that misbehaves on request. The tests install it beside the shipped ones."""

import asyncio
import os
import subprocess
import sys
import time

from lightagentd.errors import Unavailable
from lightagentd.tool import Args, Context, Effect, Result, SystemdUnavailable, Tool, ToolError, action


class NoArgs(Args):
    pass


class CountArgs(Args):
    count: int = 1


class SecondsArgs(Args):
    seconds: float


class Probe(Tool):
    """Misbehaves."""

    name = "probe"

    def __init__(self) -> None:
        self.calls = 0

    @action()
    async def noop(self, ctx: Context, args: NoArgs) -> Result:
        """Do nothing but count."""
        self.calls += 1
        return Result(output="done", metadata={"pid": os.getpid(), "calls": self.calls})

    @action(effect=Effect.CHANGE)
    async def who(self, ctx: Context, args: NoArgs) -> Result:
        """Say as whom it runs, and where it may write."""
        return Result(output=f"{os.getuid()} {ctx.effect} {os.access(ctx.scratch.parent, os.W_OK)}")

    @action()
    async def fail(self, ctx: Context, args: NoArgs) -> Result:
        """Fail as no tool should."""
        raise ValueError("nobody expected this")

    @action()
    async def refuse(self, ctx: Context, args: NoArgs) -> Result:
        """Fail as a tool should."""
        raise ToolError("The disk is full.", suggestion="Empty it.")

    @action()
    async def no_systemd(self, ctx: Context, args: NoArgs) -> Result:
        """Say that systemd is not there."""
        raise SystemdUnavailable("systemd is not running here.")

    @action()
    async def no_bus(self, ctx: Context, args: NoArgs) -> Result:
        """Say that something it needs is not there."""
        raise Unavailable("No bus answers.")

    @action()
    async def exit(self, ctx: Context, args: NoArgs) -> Result:
        """Try to end the worker."""
        sys.exit(3)

    @action()
    async def cancel(self, ctx: Context, args: NoArgs) -> Result:
        """Cancel itself."""
        raise asyncio.CancelledError

    @action()
    async def text(self, ctx: Context, args: NoArgs) -> Result:
        """Give back what is not a result."""
        return "text"  # type: ignore[return-value]  # that is the point

    @action()
    async def odd_metadata(self, ctx: Context, args: NoArgs) -> Result:
        """Give back what JSON cannot say."""
        return Result(output="x", metadata={"at": object()})

    @action()
    async def odd_event(self, ctx: Context, args: NoArgs) -> Result:
        """Emit what JSON cannot say."""
        ctx.emit("tool.probe", "odd", {"at": object()})
        return Result(output="x")

    @action()
    async def bytes(self, ctx: Context, args: NoArgs) -> Result:
        """Give back text made of bytes that are not UTF-8."""
        return Result(output=b"a\xff\x00b".decode(errors="surrogateescape"))

    @action()
    async def much(self, ctx: Context, args: CountArgs) -> Result:
        """Give back a long text."""
        return Result(output="x" * args.count + "end")

    @action()
    async def live(self, ctx: Context, args: CountArgs) -> Result:
        """Show lines and emit an event, without waiting for anybody."""
        for number in range(args.count):
            ctx.progress(f"line {number}\n")
        ctx.emit("tool.probe", "shown", {"lines": args.count})
        return Result(output="shown")

    @action()
    async def block(self, ctx: Context, args: SecondsArgs) -> Result:
        """Block the whole worker."""
        time.sleep(args.seconds)
        return Result(output="woke")

    @action()
    async def deaf(self, ctx: Context, args: SecondsArgs) -> Result:
        """Ignore that it was cancelled."""
        until = time.monotonic() + args.seconds
        while time.monotonic() < until:
            try:
                await asyncio.sleep(until - time.monotonic())
            except asyncio.CancelledError:
                continue
        return Result(output="slept")

    @action()
    async def leave(self, ctx: Context, args: SecondsArgs) -> Result:
        """Leave a process behind that nobody waits for."""
        subprocess.Popen(["sleep", str(args.seconds)])
        return Result(output="left")

    async def close(self) -> None:
        raise RuntimeError("cannot let go")
