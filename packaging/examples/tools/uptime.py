"""How long this machine has been running."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from lightagentd.tool import Args, Context, Effect
from lightagentd.tool import Result, Tool, ToolError, action

SECONDS = {"minutes": 60, "hours": 3600, "days": 86400}


class ShowArgs(Args):
    unit: Literal["minutes", "hours", "days"] = Field(
        default="hours", description="The unit to say it in."
    )


class Uptime(Tool):
    """How long this machine has been running."""

    name = "uptime"

    @action(effect=Effect.OBSERVE, timeout_s=5)
    async def show(self, ctx: Context, args: ShowArgs) -> Result:
        """Say for how long the machine has been running."""
        try:
            text = Path("/proc/uptime").read_text()
        except OSError as err:
            raise ToolError(
                f"/proc/uptime cannot be read: {err.strerror}.",
                suggestion="Look whether /proc is mounted.",
            ) from err
        seconds = float(text.split()[0])
        return Result(
            output=f"{seconds / SECONDS[args.unit]:.1f} {args.unit}",
            metadata={"seconds": seconds},
        )
