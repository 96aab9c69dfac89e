"""Removes one old file of a folder; a person picks which one."""

import time
from pathlib import Path
from typing import Any

from pydantic import Field

from lightagentd.tool import Args, Context, Effect, NeedsInput
from lightagentd.tool import Result, Tool, ToolError, action

NONE = "none of them"


class RemoveArgs(Args):
    folder: str = Field(description="The folder to look into.")
    days: int = Field(default=30, ge=1, description="How old a file is.")


class Tidy(Tool):
    """Removes old files."""

    name = "tidy"

    @action(effect=Effect.CHANGE, taints=True, resume="picked")
    async def remove(self, ctx: Context, args: RemoveArgs) -> Result:
        """Remove an old file of a folder; a person is asked which one."""
        folder = Path(args.folder)
        files = [one for one in folder.iterdir() if one.is_file()]
        written = {
            one.name: one.stat().st_mtime
            for one in files
            if one.name.isprintable() and len(one.name) < 100
        }
        before = time.time() - args.days * 86400
        oldest = sorted(written, key=lambda name: written[name])[:10]
        old = {n: written[n] for n in oldest if written[n] < before}
        if not old:
            return Result(output="No file is that old.")
        raise NeedsInput(
            f"Which file of {folder} may go?",
            [*old, NONE],
            {"folder": str(folder), "old": old},
        )

    async def picked(
        self, ctx: Context, state: Any, answer: str
    ) -> Result:
        if answer == NONE:
            return Result(output="The person keeps all of them.")
        path = Path(state["folder"], answer)
        if path.stat().st_mtime != state["old"].get(answer):
            raise ToolError(
                f"{path} was written to since then.",
                suggestion="Ask again, if it is still wanted.",
            )
        path.unlink()
        return Result(output=f"{path} is removed.")
